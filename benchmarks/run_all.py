"""Run every benchmark: the `run.py` of each folder beside this file.

    python benchmarks/run_all.py [arguments for each of them]

The exit code is 0 if all claims hold.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main(argv: list[str]) -> int:
    """Run all, and go on after one that misses its bars."""
    programs = sorted(Path(__file__).parent.glob("*/run.py"))
    missed = []
    for program in programs:
        print(f"=== {program.parent.name}", flush=True)
        if subprocess.run([sys.executable, program, *argv], check=False).returncode:
            missed.append(program.parent.name)
    print(f"=== {len(programs) - len(missed)} of {len(programs)} claims hold", *missed)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

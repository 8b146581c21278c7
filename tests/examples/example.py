"""How the tests of this folder run an example."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["EXAMPLES", "run_example"]

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *arguments: str, num_ranks: int = 2, options: tuple[str, ...] = ()
) -> list[str]:
    """What an example prints on some ranks, without the numbers of the ranks."""
    launch = [sys.executable, "-m", "kadril", "run", "-np", str(num_ranks), "--no-prefix"]
    done = subprocess.run(
        [*launch, *options, "--", sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()

"""A rank of an MPI job: runs one scenario, and writes to a file what became of it."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fault_comparison.engines import MpiEngine
from fault_comparison.scenarios import SCENARIOS


def main(scenario: str, directory: str) -> None:
    """Run it, then stay until the job is ended: a rank that leaves would be another fault."""
    engine = MpiEngine()
    path = Path(directory) / f"rank-{engine.rank}"

    def tell(**fields: object) -> None:
        told = json.dumps({"pid": os.getpid(), "at": time.monotonic(), **fields})
        with path.open("a") as file:
            file.write(told + "\n")

    try:
        SCENARIOS[scenario](engine, lambda label: tell(mark=label))
        tell(end="returned")
    except Exception as error:
        tell(end=type(error).__name__, text=str(error))
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The program of a rank that has called `init()` and nothing since.

python idle.py DIRECTORY --seconds S
"""

from __future__ import annotations

import argparse
import time

from harness.program import leave_answer

import kadril.torch as hvd

SETTLE_SECONDS = 1.0


def main() -> None:
    """Sleep, and tell what processor time was used meanwhile, user and system, by all threads."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--seconds", type=float, required=True)
    words = parser.parse_args()
    hvd.init()
    time.sleep(SETTLE_SECONDS)
    cpu, wall = time.process_time(), time.monotonic()
    time.sleep(words.seconds)
    idle = {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}
    leave_answer(words.directory, hvd.rank(), idle)
    hvd.shutdown()


if __name__ == "__main__":
    main()

"""Printing on many workers."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["print_sequential"]


def print_sequential(comm: Any, val: object) -> None:
    """Print a value of each rank of a communicator in the order of ranks; rank 0 prints."""
    lines = comm.gather(f"{val}", root=0)
    if lines is not None:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()

"""The main program of a `check_bars.py`: compare results files with the bars of a claim.

    python benchmarks/<claim>/check_bars.py benchmarks/results/<claim>-<cpu>-<date>.json ...

Prints one line per bar. The exit code is 0 if all are reached, 1 if one is missed or not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness.bars import Bar, print_bars
from harness.results import Results

__all__ = ["check_files", "main"]


def check_files(
    argv: Sequence[str],
    check: Callable[[Any], Iterable[Bar]],
    read: Callable[[Path], Any] = Results.read,
) -> int:
    """Print the bars of each results file, and return the exit code.

    Args:
        argv: paths of results files.
        check: yields the bars of what `read` gives.
        read: reads a file.
    """
    if not argv:
        print(__doc__)
        return 2
    are_reached = [print_bars(list(check(read(Path(name))))) for name in argv]
    return 0 if all(are_reached) else 1


def main(
    check: Callable[[Any], Iterable[Bar]], read: Callable[[Path], Any] = Results.read
) -> NoReturn:
    """Check the files that the command line names, and exit; see `check_files`."""
    sys.exit(check_files(sys.argv[1:], check, read))

"""A progress bar for ranks whose output goes through a launcher, line by line."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from kadril.experiment.models import Stage

__all__ = ["ProgressBar"]

WIDTH = 24


class ProgressBar:
    """A bar for each epoch.

    On a terminal it grows in place; elsewhere a line is printed for each quarter that is done.

    Args:
        stream: where to; standard error where None.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr
        self.is_terminal = self.stream.isatty()
        self.start = time.perf_counter()
        self.quarter = 0

    def __call__(self, stage: Stage, done: int, total: int) -> None:
        """Report how many batches of a stage are done."""
        if done == 1:
            self.start, self.quarter = time.perf_counter(), 0
        quarter = 4 * done // total
        if not self.is_terminal and quarter == self.quarter:
            return
        self.quarter = quarter
        filled = WIDTH * done // total
        bar = "#" * filled + "." * (WIDTH - filled)
        seconds = time.perf_counter() - self.start
        line = f"{stage} [{bar}] {done}/{total} batches, {seconds:.1f} s"
        end = "\n" if not self.is_terminal or done == total else "\r"
        self.stream.write(line + end)
        self.stream.flush()

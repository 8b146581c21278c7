"""A control group of the kernel that has a share of one core."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["CoreGroup", "core_group"]

ALL_GROUPS = Path("/sys/fs/cgroup/cpu")


class CoreGroup:
    """Processes that together have a share of one core."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def limit(self, quota: float, period: float) -> None:
        """Let the group run for `quota` milliseconds in each `period`, from 1 to 1000."""
        (self.folder / "cpu.cfs_period_us").write_text(str(int(period * 1000)))
        (self.folder / "cpu.cfs_quota_us").write_text(str(int(quota * 1000)))

    def free(self) -> None:
        """End the limit."""
        (self.folder / "cpu.cfs_quota_us").write_text("-1")

    def await_limit(self) -> None:
        """Wait until the group has used up its time, and is held."""
        while "nr_throttled 0\n" in (self.folder / "cpu.stat").read_text():
            time.sleep(0.001)

    def add(self, pid: int) -> None:
        """Put a process with all of its threads into the group."""
        (self.folder / "cgroup.procs").write_text(str(pid))


@contextmanager
def core_group(quota: float, period: float) -> Iterator[CoreGroup]:
    """Make a group for the time of a test, which is skipped where none can be made."""
    group = CoreGroup(ALL_GROUPS / f"kadril-test-{os.getpid()}")
    try:
        group.folder.mkdir()
        group.limit(quota, period)
    except OSError as error:
        pytest.skip(f"no control group of cores can be made here: {error}")
    try:
        yield group
    finally:
        with suppress(OSError):
            group.free()
            group.folder.rmdir()

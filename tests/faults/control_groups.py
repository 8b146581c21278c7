"""Control groups of the kernel, version 1: a share of one core, or none for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["CoreGroup", "HeldGroup", "core_group", "held_group"]


class ControlGroup:
    """Processes that the kernel treats alike."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, pid: int) -> None:
        """Put a process with all of its threads into the group."""
        (self.folder / "cgroup.procs").write_text(str(pid))


class CoreGroup(ControlGroup):
    """Processes that together have a share of one core."""

    def limit(self, quota: float, period: float) -> None:
        """Let the group run for `quota` milliseconds in each `period`, from 1 to 1000."""
        (self.folder / "cpu.cfs_period_us").write_text(str(int(period * 1000)))
        (self.folder / "cpu.cfs_quota_us").write_text(str(int(quota * 1000)))


class HeldGroup(ControlGroup):
    """Processes that get no core until they are let go, not even to die by SIGKILL."""

    def hold(self) -> None:
        """Take the core from all of them; they have none when this returns."""
        self._set("FROZEN")
        while "FROZEN" not in (self.folder / "freezer.state").read_text():
            os.sched_yield()

    def let_go(self) -> None:
        """Let them run again."""
        self._set("THAWED")

    def _set(self, state: str) -> None:
        (self.folder / "freezer.state").write_text(state)


@contextmanager
def folder_of(controller: str) -> Iterator[Path]:
    """Make a group for the time of a test, which is skipped where none can be made."""
    folder = Path("/sys/fs/cgroup", controller, f"kadril-test-{os.getpid()}")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group of {controller} can be made here: {error}")
    try:
        yield folder
    finally:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def core_group(quota: float, period: float) -> Iterator[CoreGroup]:
    """Make a group with a limit; see `CoreGroup.limit`."""
    with folder_of("cpu") as folder:
        group = CoreGroup(folder)
        group.limit(quota, period)
        yield group


@contextmanager
def held_group() -> Iterator[HeldGroup]:
    """Make a group that can be held; it is let go at the end."""
    with folder_of("freezer") as folder:
        group = HeldGroup(folder)
        try:
            yield group
        finally:
            group.let_go()

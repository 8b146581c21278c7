"""Limits that a container or a batch system sets: cgroups of version 1 and 2.

A process sees all cores and all memory of the machine, and may use a part of them only. The limit
that counts is the least on the way from its own group up to the root.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["cpu_limit", "memory_limit"]

# Version 1 says "no limit" by a number near 2^63.
NO_LIMIT = 1 << 60


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return how many cores' worth of time this process may use; None where there is no limit."""
    limits = []
    for directory in groups("cpu", root):
        quota, period = read_words(directory / "cpu.max", 2) or (
            *(read_words(directory / "cpu.cfs_quota_us", 1) or ("max",)),
            *(read_words(directory / "cpu.cfs_period_us", 1) or ("100000",)),
        )
        if quota.isdecimal():  # neither "max" nor -1
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process and its group may use; None where there is no limit."""
    limits = []
    for directory in groups("memory", root):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = read_words(directory / name, 1)
            if words and words[0].isdecimal() and int(words[0]) < NO_LIMIT:
                limits.append(int(words[0]))
    return min(limits, default=None)


def groups(controller: str, root: Path) -> Iterator[Path]:
    """Directories of this process's group for a controller, and of all groups above it."""
    mounts = dict(mounted_at(root))
    for line in read_lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        # "4:memory:/path" is version 1, "0::/path" version 2.
        if names and controller not in names.split(","):
            continue
        mount = mounts.get(controller if names else "")
        if mount is None:
            continue
        mounted_group, directory = mount
        # In a container, the mount shows the group's own directory as its root.
        inner = path.removeprefix(mounted_group) if mounted_group != "/" else path
        group = directory / inner.strip("/")
        while True:
            yield group
            if group == directory or directory not in group.parents:
                break
            group = group.parent


def mounted_at(root: Path) -> Iterator[tuple[str, tuple[str, Path]]]:
    """Controllers ("" for version 2) with the group that is mounted, and where."""
    for line in read_lines(root / "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        kind, _, options = right.partition(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        _, _, _, group, place, *_ = left.split()
        mount = (group, root / place.lstrip("/"))
        if kind == "cgroup2":
            yield "", mount
        else:
            for controller in options.split()[-1].split(","):
                yield controller, mount


def read_lines(path: Path) -> list[str]:
    """Lines of a file; none where it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def read_words(path: Path, count: int) -> tuple[str, ...] | None:
    """Return the first words of a file; None where it has fewer, or is not there."""
    words = " ".join(read_lines(path)).split()
    return tuple(words[:count]) if len(words) >= count else None

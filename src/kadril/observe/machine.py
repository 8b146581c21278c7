"""Facts about this machine: processor, cores, memory, kernel."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

from kadril.observe.cgroup import cpu_limit, memory_limit, read_lines

__all__ = ["Machine", "look_at_machine"]


class Machine(NamedTuple):
    """Description of this machine, as this process may use it.

    Attributes:
        cpu: model of the processor.
        num_cores: logical cores that are online.
        cores: those this process may run on.
        cpu_limit: cores' worth of time that a container allows, or None.
        memory: bytes of memory.
        free_memory: bytes that could be had without swapping.
        memory_limit: bytes that a container allows, or None.
        kernel: name and release.
        libc: name and version.
        architecture: x86_64, aarch64, ...
    """

    cpu: str
    num_cores: int
    cores: tuple[int, ...]
    cpu_limit: float | None
    memory: int
    free_memory: int
    memory_limit: int | None
    kernel: str
    libc: str
    architecture: str


def look_at_machine() -> Machine:
    """Look; takes a millisecond."""
    memory = meminfo()
    return Machine(
        cpu=cpu_model(),
        num_cores=os.cpu_count() or 1,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        cpu_limit=cpu_limit(),
        memory=memory.get("MemTotal", 0),
        free_memory=memory.get("MemAvailable", 0),
        memory_limit=memory_limit(),
        kernel=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()).strip() or "unknown",
        architecture=platform.machine(),
    )


def cpu_model() -> str:
    """Return the model of the processor; ARM names it by numbers only."""
    lines = [line.partition(":") for line in read_lines(Path("/proc/cpuinfo"))]
    fields = {name.strip(): value.strip() for name, _, value in lines}
    if "model name" in fields:
        return fields["model name"]
    if "CPU part" in fields:
        return f"{platform.machine()} {fields.get('CPU implementer', '')}:{fields['CPU part']}"
    return platform.machine()


def meminfo() -> dict[str, int]:
    """Return the lines of /proc/meminfo, in bytes."""
    found = {}
    for line in read_lines(Path("/proc/meminfo")):
        match = re.match(r"(\w+):\s+(\d+) kB", line)
        if match:
            found[match[1]] = int(match[2]) * 1024
    return found

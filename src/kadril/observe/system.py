"""Cores, memory, limits, and what the kernel offers."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from kadril.observe.cgroup import read_lines
from kadril.observe.finding import Finding
from kadril.observe.machine import Machine, look_at_machine

__all__ = ["find_kernel", "find_limits", "find_machine", "why_no_memfd", "why_no_pidfd"]

GIB = 1 << 30
MIN_FILES = 256  # some ranks with their pipes, and torch's own
MIN_SHM = 1 * GIB
SHM = "/dev/shm"  # noqa: S108 - looked at, nothing is written

LIMITS = (
    (resource.RLIMIT_NOFILE, "RLIMIT_NOFILE", "open files"),
    (resource.RLIMIT_NPROC, "RLIMIT_NPROC", "processes and threads"),
    (resource.RLIMIT_AS, "RLIMIT_AS", "address space"),
    (resource.RLIMIT_FSIZE, "RLIMIT_FSIZE", "size of a file"),
    (resource.RLIMIT_MEMLOCK, "RLIMIT_MEMLOCK", "locked memory"),
)


def find_machine() -> Iterator[Finding]:
    """Cores and memory, and how much of them this process may use."""
    machine = look_at_machine()
    topic = "machine"
    yield Finding(topic, "processor", f"{machine.cpu}, {machine.architecture}")
    yield find_cores(topic, machine)
    if machine.cpu_limit is not None:
        value = f"a container allows {machine.cpu_limit:.3g} cores' worth of time"
        if machine.cpu_limit < len(machine.cores):
            remedy = "start no more ranks than that, or they are stopped in turns"
            yield Finding(topic, "cpu limit", value, "note", remedy)
        else:
            yield Finding(topic, "cpu limit", value)
    memory = f"{machine.memory / GIB:.1f} GiB, {machine.free_memory / GIB:.1f} GiB free"
    yield Finding(topic, "memory", memory)
    if machine.memory_limit is not None and machine.memory_limit < machine.memory:
        value = f"a container allows {machine.memory_limit / GIB:.2f} GiB"
        remedy = "shared memory counts too; who exceeds it is killed"
        yield Finding(topic, "memory limit", value, "note", remedy)
    load = " ".join(f"{value:.2f}" for value in os.getloadavg())
    yield Finding(topic, "load average", load)
    yield Finding(topic, "kernel", f"{machine.kernel}, {machine.libc}")


def find_cores(topic: str, machine: Machine) -> Finding:
    """Cores of the machine, and those this process may run on."""
    if len(machine.cores) == machine.num_cores:
        return Finding(topic, "cores", str(machine.num_cores))
    cores = ", ".join(map(str, machine.cores))
    return Finding(
        topic,
        "cores",
        f"{len(machine.cores)} of {machine.num_cores} allowed: {cores}",
        "note",
        "ranks that share a core take turns; see `taskset -p $$` and your batch system's options",
    )


def find_limits() -> Iterator[Finding]:
    """Limits of this process, which its ranks inherit."""
    for limit, name, meaning in LIMITS:
        soft, hard = resource.getrlimit(limit)
        value = f"{show_limit(soft)} (at most {show_limit(hard)}): {meaning}"
        if soft != resource.RLIM_INFINITY and name in ("RLIMIT_AS", "RLIMIT_FSIZE"):
            flag = {"RLIMIT_AS": "-v", "RLIMIT_FSIZE": "-f"}[name]
            remedy = (
                f"shared memory needs address space, and a file as large: ulimit {flag} unlimited"
            )
            yield Finding("limits", name, value, "note", remedy)
        elif name == "RLIMIT_NOFILE" and 0 <= soft < MIN_FILES:
            yield Finding("limits", name, value, "note", f"ulimit -n {MIN_FILES} or more")
        else:
            yield Finding("limits", name, value)


def show_limit(value: int) -> str:
    """Return a limit as text."""
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def find_kernel() -> Iterator[Finding]:
    """Yield what the native core wants of the kernel."""
    topic = "kernel"
    reason = why_no_memfd()
    if reason:
        remedy = "a file in /dev/shm takes its place (KADRIL_SHARED_BACKING=named)"
        yield Finding(topic, "memfd", reason, "note", remedy)
    else:
        yield Finding(topic, "memfd", "available")
    reason = why_no_pidfd()
    if reason:
        remedy = "a dead rank could not be noticed; needs Linux 5.3, and a sandbox that allows it"
        yield Finding(topic, "pidfd", reason, "bad", remedy)
    else:
        yield Finding(topic, "pidfd", "available")
    yield find_shm(topic)
    for name in ("enabled", "shmem_enabled"):
        lines = read_lines(Path("/sys/kernel/mm/transparent_hugepage") / name)
        chosen = re.search(r"\[(\w+)\]", " ".join(lines))
        yield Finding(topic, f"huge pages, {name}", chosen[1] if chosen else "unknown")


def find_shm(topic: str) -> Finding:
    """Return the room for named shared memory, which is used where there is no memfd."""
    try:
        room = os.statvfs(SHM)
    except OSError as error:
        remedy = "only needed without memfd, and by torch's data loaders"
        return Finding(topic, SHM, f"missing: {error.strerror}", "note", remedy)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    value = f"{size / GIB:.2f} GiB, {free / GIB:.2f} GiB free"
    if free < MIN_SHM:
        remedy = "kadril itself does without; torch's data loaders do not: docker run --shm-size=8g"
        return Finding(topic, SHM, value, "note", remedy)
    return Finding(topic, SHM, value)


def why_no_memfd() -> str:
    """Return why there is no anonymous shared memory, or an empty string."""
    try:
        os.close(os.memfd_create("kadril-doctor", os.MFD_CLOEXEC))
    except OSError as error:
        return f"memfd_create: {error.strerror}"
    return ""


def why_no_pidfd() -> str:
    """Return why processes cannot be watched, or an empty string."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"pidfd_open: {error.strerror}"
    return ""

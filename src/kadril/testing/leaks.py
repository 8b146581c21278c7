"""The leak check: what a piece of code has left behind in this process and on this machine.

    with no_leaks():
        with kadril.init():
            ...

It looks at what can be seen from outside, in /proc and the file system, so native code counts as
well: child processes, descriptors, threads, segments of shared memory, files in /dev/shm, and
kadril's directories.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from kadril.testing.process import state_of
from kadril.transport.recording import MEMORY_NAME

__all__ = ["LeakError", "Snapshot", "keep", "no_leaks", "release", "take_snapshot"]

# Ends of threads and processes are seen by the kernel a moment after their owner has let go of
# them.
SETTLE_SECONDS = 2.0

RECORD = f"/memfd:{MEMORY_NAME} (deleted)"

# What the kit itself keeps from test to test: pids of its processes, and targets of its
# descriptors.
_kept: dict[object, set[str]] = {}


class LeakError(AssertionError):
    """Something was left behind; the message lists it."""


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Resources that exist at one moment, by kind: names, and how often each is there."""

    processes: collections.Counter[str]
    descriptors: collections.Counter[str]
    threads: collections.Counter[str]
    segments: collections.Counter[str]
    files: collections.Counter[str]

    def since(self, before: Snapshot) -> dict[str, list[str]]:
        """Return what is here and was not there before, by kind."""
        found = {}
        for field in dataclasses.fields(self):
            extra = getattr(self, field.name) - getattr(before, field.name)
            if extra:
                found[field.name] = sorted(extra.elements())
        return found


def take_snapshot() -> Snapshot:
    """Look at this process and this machine."""
    raise_thread_pool()
    # The flight record of a process stays, once it is there, and is nobody's leak; a second one is.
    return Snapshot(
        processes=collections.Counter(child_processes()),
        descriptors=collections.Counter(descriptors()) | collections.Counter([RECORD]),
        threads=collections.Counter(threads()),
        segments=collections.Counter(segments()),
        files=collections.Counter(kadril_files()),
    )


@contextlib.contextmanager
def no_leaks(*, threads: bool = True, settle: float = SETTLE_SECONDS) -> Iterator[None]:
    """Raise if the block leaves something behind.

    Args:
        threads: whether threads count; a library may start a pool of its own when it is first used.
        settle: seconds that what is on its way out may take.

    Raises:
        LeakError: with a list of what was left.
    """
    before = take_snapshot()
    yield
    gc.collect()
    deadline = time.monotonic() + settle
    while True:
        found = take_snapshot().since(before)
        if not threads:
            found.pop("threads", None)
        if not found or time.monotonic() >= deadline:
            break
        time.sleep(0.01)
    if found:
        lines = [f"  {kind}: {describe(item)}" for kind, items in found.items() for item in items]
        raise LeakError("left behind:\n" + "\n".join(lines))


def keep(
    owner: object,
    *,
    pids: Iterable[int] = (),
    fds: Iterable[int] = (),
    paths: Iterable[Path] = (),
) -> None:
    """Declare what the kit keeps from test to test until `release(owner)`: no leak of a test."""
    kept = _kept.setdefault(owner, set())
    kept.update(f"pid {pid}" for pid in pids)
    kept.update(readlink(f"/proc/self/fd/{fd}") for fd in fds)
    kept.update(map(str, paths))


def release(owner: object) -> None:
    """Declare that an owner has let go of all it kept; what is still there is a leak."""
    _kept.pop(owner, None)


def is_kept(name: str) -> bool:
    """Whether something belongs to the kit."""
    return any(name in kept for kept in _kept.values())


def child_processes() -> Iterator[str]:
    """Processes whose parent is this one, dead ones that nobody has reaped included."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, of which most are dropped
        if entry.isdecimal() and parent_of(entry) == os.getpid() and not is_kept(f"pid {entry}"):
            yield f"pid {entry}"


def parent_of(pid: str) -> int:
    """Pid of the parent of a process, 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def descriptors() -> Iterator[str]:
    """Yield what the open descriptors of this process lead to."""
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208
        target = readlink(f"/proc/self/fd/{entry}")
        # The descriptor that lists this directory is gone when it is looked at.
        if target and not is_kept(target) and not re.fullmatch(r"/proc/\d+/fd", target):
            yield target


def threads() -> Iterator[str]:
    """Threads of this process, native ones included."""
    for entry in os.listdir("/proc/self/task"):  # noqa: PTH208
        yield f"thread {entry}"


def describe(item: str) -> str:
    """Return a leak with what is worth telling beside its name, which changes meanwhile."""
    kind, _, number = item.partition(" ")
    with contextlib.suppress(OSError):
        if kind == "pid":
            command = Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ")
            words = command.decode(errors="replace").strip()
            return f"{item} ({state_of(int(number))}) {words}".rstrip()
        if kind == "thread":
            names = {thread.native_id: thread.name for thread in threading.enumerate()}
            native = Path(f"/proc/self/task/{number}/comm").read_text().strip()
            return f"{item} ({names.get(int(number), native)})"
    return item


def segments() -> Iterator[str]:
    """Shared memory mapped into this process: memfd segments and files in /dev/shm."""
    shared = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if (
            len(fields) == 6
            and fields[5].startswith(("/memfd:", "/dev/shm/"))  # noqa: S108
            and fields[5] != RECORD  # counted by its descriptor
        ):
            shared.add(f"{fields[5]} (inode {fields[4]})")
    yield from shared


def kadril_files() -> Iterator[str]:
    """Files in /dev/shm and directories for temporary files that bear kadril's name.

    Those whose name says which process made them, `kadril-<purpose>-<pid>-...`, are not
    counted while that process lives and is not this one: several sessions may run on a machine.
    """
    places = {"/dev/shm", tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", "")}  # noqa: S108
    for directory in filter(None, places):
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(directory):  # noqa: PTH208
                path = os.path.join(directory, name)  # noqa: PTH118
                if (
                    name.startswith("kadril")
                    and not is_kept(path)
                    and not is_of_another(name, path)
                ):
                    yield path


def is_of_another(name: str, path: str) -> bool:
    """Whether a file belongs to a living process that is not this one, or to another user."""
    try:
        if Path(path).lstat().st_uid != os.getuid():
            return True
    except OSError:
        return True  # it is gone
    match = re.match(r"kadril-[a-z]+-(\d+)-", name)
    maker = int(match[1]) if match else os.getpid()
    if name.startswith("kadril-session-"):
        return maker != os.getpid()  # of one that was killed; the next one that starts removes it
    return maker != os.getpid() and state_of(maker) != "dead"


def readlink(path: str) -> str:
    """Return where a link leads, or nothing if it is gone."""
    try:
        return os.readlink(path)  # noqa: PTH115 - the target is no path
    except OSError:
        return ""


def raise_thread_pool() -> None:
    """Have torch start its threads, if it has any: they stay, and are nobody's leak."""
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "get_num_threads", int)() > 1:
        torch.ones(1 << 16).add_(1)  # large enough to be shared out among them

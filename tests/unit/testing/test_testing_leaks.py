"""The leak check, on real leaks of every kind it knows."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kadril.testing import LeakError, no_leaks
from kadril.testing.leaks import keep, release, take_snapshot
from kadril.transport.recording import MEMORY_NAME

Leak = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def descriptor() -> Iterator[str]:
    reading, writing = os.pipe()
    yield "descriptors: pipe:"
    os.close(reading)
    os.close(writing)


@contextlib.contextmanager
def thread() -> Iterator[str]:
    done = threading.Event()
    worker = threading.Thread(target=done.wait, name="forgotten")
    worker.start()
    yield r"threads: thread \d+ \(forgotten\)"
    done.set()
    worker.join()


@contextlib.contextmanager
def process() -> Iterator[str]:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield rf"processes: pid {child.pid} \(\w+\) .*input\(\)"
    child.communicate(b"\n")


@contextlib.contextmanager
def zombie() -> Iterator[str]:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield rf"processes: pid {child.pid} \(dead\)"
    child.wait()


@contextlib.contextmanager
def mapped_segment() -> Iterator[str]:
    """Closed, but still mapped: only the map of the process shows it."""
    fd = os.memfd_create("forgotten")
    os.ftruncate(fd, 4096)
    memory = mmap.mmap(fd, 4096)
    os.close(fd)
    yield "segments: /memfd:forgotten"
    memory.close()


@contextlib.contextmanager
def shared_file() -> Iterator[str]:
    path = Path("/dev/shm", f"kadril-{secrets.token_hex(8)}")  # noqa: S108
    path.touch()
    yield f"files: {path}"
    path.unlink()


@contextlib.contextmanager
def directory() -> Iterator[str]:
    path = Path(tempfile.mkdtemp(prefix=f"kadril-test-{os.getpid()}-"))
    yield f"files: {path}"
    path.rmdir()


KINDS = [descriptor, thread, process, zombie, mapped_segment, shared_file, directory]


@pytest.mark.parametrize("leak", KINDS, ids=lambda leak: leak.__name__)
def test_a_leak_is_found_and_described(leak: Leak) -> None:
    with contextlib.ExitStack() as stack:
        check = no_leaks(settle=0.0)
        check.__enter__()
        description = stack.enter_context(leak())
        with pytest.raises(LeakError, match=str(description)):
            check.__exit__(None, None, None)


@pytest.mark.parametrize("leak", KINDS, ids=lambda leak: leak.__name__)
def test_what_was_there_before_is_no_leak(leak: Leak) -> None:
    with leak(), no_leaks(settle=0.0):
        pass


def test_what_is_given_back_is_no_leak() -> None:
    with no_leaks():
        for leak in KINDS:
            with leak():
                pass


def test_a_flight_record_stays_and_a_second_one_is_a_leak() -> None:
    records = []
    with no_leaks(settle=0.0):
        records.append(os.memfd_create(MEMORY_NAME))
    with pytest.raises(LeakError, match="descriptors: /memfd:kadril-record"), no_leaks(settle=0.0):
        records.append(os.memfd_create(MEMORY_NAME))
    for record in records:
        os.close(record)


def test_an_exchanged_descriptor_is_a_leak() -> None:
    """The number of descriptors is the same; what one of them leads to is not."""
    ours, theirs = os.pipe()
    check = no_leaks(settle=0.0)
    check.__enter__()
    other = os.memfd_create("other")
    os.dup2(other, ours)
    os.close(other)
    with pytest.raises(LeakError, match="descriptors: /memfd:other"):
        check.__exit__(None, None, None)
    os.close(ours)
    os.close(theirs)


def test_what_is_on_its_way_out_may_settle() -> None:
    with no_leaks(settle=10.0):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        assert child.stdin is not None
        child.stdin.close()
        reaper = threading.Thread(target=child.wait)
        reaper.start()  # not joined: it ends when the child does


def test_threads_can_be_left_out() -> None:
    with contextlib.ExitStack() as stack, no_leaks(threads=False, settle=0.0):
        stack.enter_context(thread())


def leak_and_raise(stack: contextlib.ExitStack) -> None:
    with no_leaks(settle=0.0):
        stack.enter_context(descriptor())
        raise KeyError


def test_an_error_in_the_block_is_not_hidden() -> None:
    with contextlib.ExitStack() as stack, pytest.raises(KeyError):
        leak_and_raise(stack)


def test_files_of_living_strangers_are_theirs() -> None:
    """Several sessions run on one machine; a file of a dead process belongs to nobody."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        path = Path(tempfile.mkdtemp(prefix=f"kadril-pool-{stranger.pid}-"))
        assert str(path) not in take_snapshot().files
        stranger.communicate(b"\n")
    assert str(path) in take_snapshot().files
    path.rmdir()


def test_the_directory_of_a_killed_session_is_its_own() -> None:
    """Another session that ran meanwhile failed over it, until a next one had removed it."""
    with subprocess.Popen(["true"]) as dead:
        pass
    with no_leaks():
        directory = Path(tempfile.mkdtemp(prefix=f"kadril-session-{dead.pid}-"))
    directory.rmdir()


def test_what_the_kit_keeps_is_a_leak_once_it_is_released() -> None:
    owner = object()
    before = take_snapshot()
    ours, theirs = os.pipe()
    keep(owner, fds=[ours, theirs])
    assert take_snapshot().since(before) == {}
    release(owner)
    assert len(take_snapshot().since(before)["descriptors"]) == 2
    os.close(ours)
    os.close(theirs)


def test_native_threads_are_seen() -> None:
    """Threads that Python does not know of, as those of a native library, are in /proc."""
    libc = ctypes.CDLL(None)
    thread_id = ctypes.c_ulong()
    before = take_snapshot()
    assert libc.pthread_create(ctypes.byref(thread_id), None, libc.pause, None) == 0
    assert len(take_snapshot().since(before)["threads"]) == 1
    libc.pthread_cancel(thread_id)
    libc.pthread_join(thread_id, None)


def test_the_fixture(no_leaks: None) -> None:
    os.close(os.memfd_create("short"))

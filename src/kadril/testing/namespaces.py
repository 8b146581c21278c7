"""Namespaces of the kernel, held by a process: what makes one machine look like several.

    session ---- stdin (a pipe) ----> holder: process 1 of its namespaces, waits for the pipe's end
       |                                 |
       +-- descriptors of namespaces     +-- all processes that were started inside

The session alone holds the write end of that pipe. So the holder ends with the session, however
that ends, and the kernel ends everything inside with the holder, stopped processes too, and removes
the network, mounts and files in memory that nobody else has.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from unittest import SkipTest

from kadril.testing.leaks import parent_of

__all__ = ["HostsUnavailable", "Namespaces", "child_of", "enter_namespaces"]

END_TIMEOUT = 10.0

# The namespaces of a holder; `--kill-child` and `--mount-proc` go with the one of processes.
KINDS = {"net": "--net", "uts": "--uts", "mnt": "--mount", "ipc": "--ipc", "pid": "--pid"}

# What process 1 does at last. It ignores SIGCHLD, so that orphans leave no zombies behind.
WAIT = "\ntrap '' CHLD\necho ready\nexec cat > /dev/null\n"


class HostsUnavailable(SkipTest):
    """This machine cannot show several hosts; the message says why. pytest takes it for a skip."""


class Namespaces:
    """A process with namespaces of its own, and the way into them.

    Args:
        script: commands of the shell that set them up, run inside.
        arguments: `$1` and so on of the script.

    Raises:
        HostsUnavailable: the kernel refuses the namespaces or the script's mounts.
        RuntimeError: they are the session's own: nothing inside is touched.
    """

    def __init__(self, script: str, arguments: Sequence[str | os.PathLike[str]] = ()) -> None:
        self.descriptors: dict[str, int] = {}
        apart = ["unshare", *KINDS.values(), "--fork", "--kill-child", "--mount-proc"]
        commands = f"set -e\n{script}{WAIT}"
        self.holder = subprocess.Popen(
            [*apart, "sh", "-c", commands, "sh", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt at the terminal is for the session alone
        )
        try:
            self.wait_until_ready()
            self.pid = child_of(self.holder.pid)
            for kind in KINDS:
                self.descriptors[kind] = open_other(self.pid, kind)
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self) -> None:
        """Wait until the script is through."""
        assert self.holder.stdout is not None
        assert self.holder.stderr is not None
        if self.holder.stdout.readline() != b"ready\n":
            problem = self.holder.stderr.read().decode(errors="replace").strip()
            raise HostsUnavailable(f"this machine does not allow namespaces of a host: {problem}")

    def entry(self, *kinds: str) -> list[str]:
        """Return the command that enters some of the namespaces, or all, and runs what follows it.

        It names them by descriptors, which lead to these namespaces even when the holder's pid
        belongs to another process by now.

        Raises:
            RuntimeError: they are gone.
        """
        if not self.descriptors or self.holder.poll() is not None:
            raise RuntimeError("the processes that hold this host have ended")
        entered = kinds or tuple(KINDS)
        files = zip(entered, self.files(*entered), strict=True)
        return ["nsenter", *(f"{KINDS[kind]}={file}" for kind, file in files), "--"]

    def files(self, *kinds: str) -> list[str]:
        """Files of some of the namespaces, for `enter_namespaces` in another process."""
        return [f"/proc/{os.getpid()}/fd/{self.descriptors[kind]}" for kind in kinds]

    def network(self, *command: str) -> str:
        """Run a command that looks at or changes the network inside; returns its output.

        Raises:
            RuntimeError: it failed, with what it said.
        """
        entered = [*self.entry("net", "mnt"), *command]
        done = subprocess.run(entered, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
        return done.stdout

    def close(self) -> None:
        """End everything inside; returns when it is gone."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()
        assert self.holder.stdin is not None
        self.holder.stdin.close()
        try:
            self.holder.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.holder.kill()
            self.holder.wait()
        for stream in (self.holder.stdout, self.holder.stderr):
            assert stream is not None
            stream.close()


def open_other(pid: int, kind: str) -> int:
    """Open a namespace of a process that must not be this process's own.

    Raises:
        RuntimeError: it is, or that cannot be found out.
    """
    mine = Path(f"/proc/self/ns/{kind}").stat()
    descriptor = os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY)
    theirs = os.fstat(descriptor)
    if (mine.st_dev, mine.st_ino) == (theirs.st_dev, theirs.st_ino):
        os.close(descriptor)
        raise RuntimeError(
            f"the {kind} namespace of process {pid} is the machine's own: a fixture must not"
            " touch it"
        )
    return descriptor


def enter_namespaces(files: Sequence[str]) -> None:
    """Enter namespaces, given as files, with this process, which must have one thread only."""
    libc = ctypes.CDLL(None, use_errno=True)
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            if libc.setns(descriptor, 0) != 0:
                raise OSError(ctypes.get_errno(), f"setns to {file}")
        finally:
            os.close(descriptor)


def child_of(pid: int) -> int:
    """Return the pid of the only child of a process.

    Raises:
        ProcessLookupError: it has none.
    """
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names, of which most are dropped
        if entry.isdecimal() and parent_of(entry) == pid:
            return int(entry)
    raise ProcessLookupError(f"process {pid} has no child")

"""One host of `kadril.testing.hosts`: run programs in it, as if it were another machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kadril.testing.mpi_worker_pool import OPENMPI_DIRECTORY
from kadril.testing.namespaces import Namespaces, child_of

__all__ = ["INTERFACE", "PRIVATE", "Host", "HostProcess", "Uplink"]

# The interface by which a host reaches the others.
INTERFACE = "net0"

# Directories that each host has to itself.
PRIVATE = ("/tmp", "/dev/shm", "/run")  # noqa: S108

# Variables that name directories of the session which hosts do not see.
ELSEWHERE = ("TMPDIR", "XDG_RUNTIME_DIR", OPENMPI_DIRECTORY)

# Its arguments: name, own /etc/hosts, a directory to mount at, and what is to be seen as well that
# lies in a directory which is private from here on: it is bound into the new one first.
SET_UP = """
name=$1 hosts=$2 stage=$3
shift 3
mount -n --make-rprivate /
hostname "$name"
mount -n --bind "$hosts" /etc/hosts
mount -n -t sysfs sysfs /sys
for private in /tmp /dev/shm /run; do
    mount -n -t tmpfs -o mode=1777 tmpfs "$stage"
    for path in "$@"; do
        case "$path" in "$private"/*)
            mkdir -p "$stage${path#"$private"}"
            mount -n --bind "$path" "$stage${path#"$private"}"
        esac
    done
    mount -n --move "$stage" "$private"
done
mkdir -p /run/sshd
ip link set lo up
"""


class Uplink(NamedTuple):
    """Bytes that have gone through the interface of a host.

    Headers of packets count, and packets may be of 64 KiB: the kernel would cut them into frames
    only for a real cable. So 1 MiB by TCP counts as little more than 1 MiB. The rate of a link
    counts frames.
    """

    sent: int
    received: int

    def since(self, before: Uplink) -> Uplink:
        """Return what has gone through since an earlier look."""
        return Uplink(self.sent - before.sent, self.received - before.received)


class HostProcess(subprocess.Popen[str]):
    """A program in a host. Signals go to the program itself, and so does what `kill()` does.

    The process that `pid` names is the one that entered the host and waits for the program;
    `program_pid` is the program's, seen from the session. If the former is killed, so is the
    latter.
    """

    @property
    def program_pid(self) -> int:
        """Pid of the program in the session's namespace, as soon as there is one.

        Raises:
            ProcessLookupError: it has ended.
        """
        while self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                return child_of(self.pid)
            time.sleep(0.001)
        raise ProcessLookupError(f"process {self.pid} has ended")

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.program_pid, sig)
            if sig in (signal.SIGCONT, signal.SIGKILL):
                # The process that waits stops with the program, and would not see its end.
                super().send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Host:
    """One host; made by `hosts`.

    Attributes:
        index: its place in `HostNetwork.hosts`.
        name: its host name, which all hosts find in their /etc/hosts.
        address: its address on the network of the fixture.
        ranks: how many ranks it is to have, as given to `hosts`.
    """

    def __init__(
        self, index: int, name: str, address: str, ranks: int, directory: Path, shared: list[Path]
    ) -> None:
        self.index = index
        self.name = name
        self.address = address
        self.ranks = ranks
        self._started: list[HostProcess] = []
        stage = directory / f"stage-{index}"
        stage.mkdir()
        arguments: list[str | Path] = [name, directory / "hosts", stage, *shared]
        self.namespaces = Namespaces(SET_UP, arguments)

    def popen(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> HostProcess:
        """Start a program in this host, as user root.

        Args:
            command: the program and its arguments.
            env: its environment; by default the session's, without the places of temporary files.
            cwd: its working directory, which must exist in the host; by default the session's.
            options: of `subprocess.Popen`; streams are text unless told otherwise.
        """
        if env is None:
            env = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
        directory = os.fspath(Path.cwd() if cwd is None else cwd)
        # The program dies with the process that entered, which a test knows and may kill.
        entry = [*self.namespaces.entry(), "setpriv", "--pdeathsig", "KILL", "--"]
        entered = [*entry, "env", f"--chdir={directory}", "--", *command]
        process = HostProcess(entered, env=env, **{"text": True, **options})
        self._started = [*(each for each in self._started if each.returncode is None), process]
        return process

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        timeout: float = 60.0,
        check: bool = True,
        text_input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in this host to its end, and return its exit code and output.

        Args:
            command: the program and its arguments.
            env: see `popen`.
            cwd: see `popen`.
            timeout: seconds after which it is killed.
            check: whether an exit code other than 0 is an error.
            text_input: what it reads from its standard input.

        Raises:
            RuntimeError: it failed, with all it has printed.
            subprocess.TimeoutExpired: it has not ended in time.
        """
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.popen(command, env=env, cwd=cwd, **streams) as process:
            try:
                output, errors = process.communicate(text_input, timeout=timeout)
            except BaseException:
                process.kill()
                raise
        words = [os.fspath(word) for word in command]
        if check and process.returncode:
            raise RuntimeError(
                f"on {self.name}: {' '.join(words)} ended with {process.returncode}\n"
                f"{output}{errors}"
            )
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    def uplink(self) -> Uplink:
        """Return how many bytes have gone through its interface, in both directions."""
        report = self.namespaces.network("ip", "-json", "-stats", "link", "show", INTERFACE)
        (link,) = json.loads(report)
        counted = link["stats64"]
        return Uplink(counted["tx"]["bytes"], counted["rx"]["bytes"])

    def close(self) -> None:
        """End the host, and all that runs in it."""
        # Those first whose parents are outside: the kernel waits until they are reaped.
        for process in self._started:
            process.kill()
            process.wait()
        self._started.clear()
        self.namespaces.close()

    def __repr__(self) -> str:
        return f"Host({self.index}, {self.name!r}, {self.address!r}, ranks={self.ranks})"

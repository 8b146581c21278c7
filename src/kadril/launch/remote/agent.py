"""The agent: starts the ranks of its host, and tells the launcher on another host of them.

    launcher == ssh ==> agent:  JOB, START, SIGNAL, STOP, FINISH, CREDIT
    launcher <== ssh == agent:  HELLO, READY or REFUSED, STARTED, OUT, ERR, END, EXIT, DONE

It decides nothing: when to stop whom is the launcher's to say. But when the connection is gone, so
is the launcher or the network, and everything on this host is ended at once.

The job, with its secret and variables, comes over stdin: what is in arguments or in the environment
of ssh can be seen by others.
"""

from __future__ import annotations

import math
import os
import selectors
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kadril
from kadril.launch.local.guardian import Guardian
from kadril.launch.local.job import Job
from kadril.launch.local.local_host import LocalHost, RankStart
from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.options import LaunchError
from kadril.launch.remote.frame_channel import Frame, FrameChannel, Kind
from kadril.launch.remote.network_address import find_address, free_port
from kadril.launch.remote.ssh_connection import is_unanswered
from kadril.launch.supervision.log_files import Stream

__all__ = ["Agent", "host_identity", "main"]

# Bytes of a stream that are on their way to the launcher before it has said that it has room.
WINDOW = 1 << 20

# A dead connection shows only while something waits to be acknowledged.
ALIVE_INTERVAL = 10.0

# How long nothing may be acknowledged before the launcher is taken for lost; ssh has as much
# patience with this side.
SILENCE = 60.0

# Variables that belong to a host or a login, and are not taken from the launcher's.
OF_HOST = frozenset(
    {
        *("HOME", "USER", "LOGNAME", "SHELL", "MAIL", "HOSTNAME", "HOST", "PWD", "OLDPWD", "SHLVL"),
        *("TMPDIR", "DISPLAY", "XAUTHORITY", "TERM_SESSION_ID", "_"),
    }
)
OF_HOST_PREFIXES = ("XDG_", "SSH_", "DBUS_")


class Agent:
    """The ranks of this host, and the way to the launcher; a `Receiver`."""

    def __init__(self, read_end: int, write_end: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._channel = FrameChannel(
            self._selector, read_end, write_end, self._take, self._lose_launcher
        )
        self._credit: dict[Stream, int] = {"out": WINDOW, "err": WINDOW}
        self._is_lost = False
        self._is_done = False
        self._alive_at = time.monotonic() + ALIVE_INTERVAL
        self._silent_since = math.inf
        self._job: Job | None = None
        self._fields: dict[str, Any] = {}
        self._received: set[str] = set()  # files that the launcher sent
        self._host: LocalHost | None = None
        self._resources = ExitStack()

    def run(self) -> int:
        """Serve the launcher to the end, and return an exit code."""
        self._channel.send_mark()
        self._channel.send_fields(Kind.HELLO, hello())
        with self._resources:
            try:
                while not self._is_lost and not (self._is_done and not self._channel.num_pending):
                    self._turn()
            finally:
                if self._host is not None:
                    if not self._is_done:
                        self._host.abort()
                    self._host.close()
        self._channel.close()
        return 1 if self._is_lost else 0

    def _turn(self) -> None:
        host = self._host
        wake_at = min(self._alive_at, math.inf if host is None else host.wake_at)
        for key, _ in self._selector.select(max(0.0, wake_at - time.monotonic())):
            key.data()
        self._check_connection()
        if host is None or self._is_lost:
            return
        host.tick()
        for ended in host.take_ended():
            fields = {
                "status": ended.status,
                "stopped_by": ended.stopped_by,
                "last_call": ended.last_call,
            }
            self._channel.send_fields(Kind.EXIT, fields, ended.rank)
        host.balance()
        if host.has_ended and not self._is_done:
            self._is_done = True
            self._send_files()
            self._channel.send(Kind.DONE)

    def _check_connection(self) -> None:
        now = time.monotonic()
        if now < self._alive_at:
            return
        self._alive_at = now + ALIVE_INTERVAL
        self._channel.send(Kind.ALIVE)
        if is_unanswered(os.environ.get("SSH_CONNECTION", "")):
            self._silent_since = min(self._silent_since, now)
            self._is_lost = self._is_lost or now - self._silent_since >= SILENCE
        else:
            self._silent_since = math.inf

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.JOB:
            self._answer(self._prepare, frame.fields)
        elif frame.kind is Kind.START:
            self._answer(self._start, frame.fields)
        elif self._job is not None and frame.kind is Kind.FILE:
            self._received.add(frame.append_to(self._job.directory))
        elif self._host is not None:
            if frame.kind is Kind.SIGNAL:
                self._host.signal(frame.fields)
            elif frame.kind is Kind.STOP:
                self._host.stop(frame.fields)
            elif frame.kind is Kind.FINISH:
                self._host.finish(at_once=frame.fields)
            elif frame.kind is Kind.CREDIT:
                for stream, number in frame.fields.items():
                    self._credit[stream] += number

    def _answer(self, function: Any, fields: dict[str, Any]) -> None:
        try:
            function(fields)
        except LaunchError as error:
            reason = {"message": str(error), "exit_code": error.exit_code}
            self._channel.send_fields(Kind.REFUSED, reason)

    def _prepare(self, fields: dict[str, Any]) -> None:
        # Everything that can fail, so that no rank is started anywhere if it does.
        check_program(fields["command"], fields["directory"], fields["variables"])
        address = find_address(fields["interface"]) if fields["interface"] else ""
        port = free_port(address or fields["address"], fields["port"]) if fields["serves"] else 0
        self._fields = fields
        job = Job(
            fields["size"],
            job_id=fields["job"],
            secret=bytes.fromhex(fields["secret"]),
            meets_here=fields["meets_here"],
        )
        guardian = self._resources.enter_context(Guardian(job))
        self._resources.enter_context(job)
        self._job = job
        self._host = LocalHost(job.id, guardian, self._selector, self, self._notice)
        self._channel.send_fields(Kind.READY, {"address": address, "port": port})

    def _start(self, fields: dict[str, Any]) -> None:
        job, host = self._job, self._host
        if job is None or host is None:
            raise LaunchError("START came before JOB: the launcher is of another version")
        job.rendezvous = fields["rendezvous"] or job.rendezvous
        variables = rank_variables(self._fields["variables"], self._fields["exports"])
        listener = job.listener
        ranks = self._fields["ranks"]
        for local_rank, own in enumerate(ranks):
            identity = job.identity(own["rank"], local_rank, len(ranks))
            pid = host.start(
                RankStart(
                    own["rank"],
                    self._fields["command"],
                    variables | own["variables"] | identity,
                    inherit=[listener.fileno()] if listener and own["rank"] == 0 else [],
                    processors=frozenset(own["processors"]),
                    directory=self._fields["directory"],
                )
            )
            self._channel.send_fields(Kind.STARTED, pid, own["rank"])
        job.release_listener()

    def _send_files(self) -> None:
        # What ranks left for the launcher, if it gave them something to begin with.
        if self._job is not None and self._received:
            for path in self._job.files():
                if path.name not in self._received and path.is_file():
                    self._channel.send_file(path)

    def _lose_launcher(self) -> None:
        self._is_lost = True

    def _notice(self, text: str) -> None:
        self._channel.send(Kind.NOTICE, text.encode(errors="surrogateescape"))

    def receive(self, rank: int, stream: Stream, data: bytes) -> None:
        """Send on what a rank wrote."""
        self._credit[stream] -= len(data)
        self._channel.send(Kind.OUT if stream == "out" else Kind.ERR, data, rank)

    def end(self, rank: int, stream: Stream) -> None:
        """Tell that a stream has come to its end."""
        self._channel.send(Kind.END, stream.encode(), rank)

    def has_room(self, stream: Stream) -> bool:
        """Whether the launcher takes more of this stream, and ssh keeps up."""
        return self._credit[stream] > 0 and self._channel.num_pending < WINDOW


def hello() -> dict[str, Any]:
    """Return what the launcher has to know of this host."""
    return {
        "version": kadril.__version__,
        "python": sys.version.split()[0],
        "hostname": socket.gethostname(),
        "identity": host_identity(),
        "topology": this_topology().to_fields(),
        "connection": os.environ.get("SSH_CONNECTION", ""),
    }


def host_identity() -> str:
    """Return a text that is the same for two agents that would see each other's processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return f"{socket.gethostname()} {os.getpid()}"


def rank_variables(launcher: Mapping[str, str], exports: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ranks here: the launcher's, with those of this host in their place.

    Args:
        launcher: what ranks beside the launcher would get.
        exports: those of `-x`, which win over everything.
    """
    own = {name: value for name, value in os.environ.items() if belongs_to_host(name)}
    others = {name: value for name, value in launcher.items() if not belongs_to_host(name)}
    merged = {**others, **own, **exports}
    merged.pop("SSH_CONNECTION", None)
    merged.pop("SSH_CLIENT", None)
    if "HOROVOD_HOSTNAME" in merged:
        merged["HOROVOD_HOSTNAME"] = socket.gethostname()
    merged["KADRIL_PYTHON"] = sys.executable
    return merged


def belongs_to_host(name: str) -> bool:
    """Whether a variable is about a host or a login, and says nothing on another one."""
    return name in OF_HOST or name.startswith(OF_HOST_PREFIXES)


def check_program(command: list[str], directory: str, variables: Mapping[str, str]) -> None:
    """Make sure that the program is here.

    Raises:
        LaunchError: the directory, the program or the file that Python is to run is missing.
    """
    beside = "it must be at the same path on every host"
    if not Path(directory).is_dir():
        raise LaunchError(f"no such directory: {directory!r}; {beside}", exit_code=127)
    program = command[0]
    path = Path(directory, program) if "/" in program else None
    found = shutil.which(os.fspath(path) if path else program, path=variables.get("PATH"))
    if found is None:
        what = "not executable" if path and path.exists() else "no such program"
        raise LaunchError(f"cannot start {program!r}: {what}; {beside}", exit_code=127)
    script = command[1] if len(command) > 1 and command[1].endswith(".py") else ""
    if script and program == sys.executable and not Path(directory, script).is_file():
        raise LaunchError(f"no such file: {script!r} (in {directory}); {beside}", exit_code=127)


def main() -> int:
    """Serve the launcher at the other end of stdin and stdout."""
    read_end, write_end = os.dup(0), os.dup(1)
    # Whoever prints by mistake prints to stderr, and nobody reads from the channel but us.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Agent(read_end, write_end).run()


if __name__ == "__main__":
    sys.exit(main())

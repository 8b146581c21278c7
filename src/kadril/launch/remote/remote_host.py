"""The ranks of a host that an agent started, as the supervisor sees them; see `agent`."""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kadril.launch.local.guardian import Guardian
from kadril.launch.local.leftovers import kill_group
from kadril.launch.local.rank_host import EndedRank
from kadril.launch.mapping.placement import HostPlan
from kadril.launch.options import LaunchError
from kadril.launch.remote.agent import WINDOW
from kadril.launch.remote.frame_channel import Frame, FrameChannel, Kind
from kadril.launch.supervision.log_files import Stream
from kadril.launch.supervision.output import Output

__all__ = ["RemoteHost"]

# How long ssh may take to leave when all is said.
LEAVE = 5.0

MAX_WORDS = 20

# What ssh itself exits with when a connection fails.
LOST = 255


class RemoteHost:
    """Ranks of another host, or of this one beside others; a `RankHost`.

    Attributes:
        plan: its ranks.
        hello: what the agent says of its host; None until it does.
        ready: what the agent answers when everything is prepared; None until it does.
        refusal: why it cannot be, with an exit code.
        words: the last lines that ssh wrote to stderr.
        exit_code: of ssh, once it has ended.
    """

    def __init__(
        self,
        plan: HostPlan,
        command: Sequence[str],
        guardian: Guardian,
        selector: selectors.BaseSelector,
        output: Output,
        tell: Callable[[str], None],
        store: Path,
    ) -> None:
        """Start the agent.

        Args:
            plan: the ranks of the host.
            command: that runs the agent.
            guardian: learns of it.
            selector: of the event loop.
            output: takes what the ranks write.
            tell: takes what the launcher does, for users who want to know.
            store: directory for files that ranks leave, if they were sent some.

        Raises:
            LaunchError: there is no such program as the first word of the command.
        """
        self.plan = plan
        self.name = plan.name
        self.has_ended = False
        self.wake_at = math.inf
        self.hello: dict[str, Any] | None = None
        self.ready: dict[str, Any] | None = None
        self.refusal: LaunchError | None = None
        self.words: list[str] = []
        self.exit_code: int | None = None
        self._output = output
        self._tell = tell
        self._store = store
        self._selector = selector
        self._ended: list[EndedRank] = []
        self._alive: set[int] = set()  # ranks that were told to start and have not ended
        self._consumed: dict[Stream, int] = {"out": 0, "err": 0}
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
            )
        except OSError as error:
            raise LaunchError(
                f"cannot start {command[0]!r}, by which hosts are reached: {error.strerror};"
                " install an ssh client, or name one in KADRIL_SSH",
                exit_code=127,
            ) from None
        guardian.watch(self._process.pid)
        self._stderr = take_descriptor(self._process.stderr)
        os.set_blocking(self._stderr, False)
        selector.register(self._stderr, selectors.EVENT_READ, self._read_words)
        self._channel = FrameChannel(
            selector,
            take_descriptor(self._process.stdout),
            take_descriptor(self._process.stdin),
            self._take,
            self._lose,
        )
        self._channel.send_mark()

    # what several_hosts says

    def prepare(self, fields: dict[str, Any]) -> None:
        """Have the agent get everything ready."""
        self._channel.send_fields(Kind.JOB, fields)

    def send_file(self, path: Path) -> None:
        """Have the agent put a file into the directory of the job."""
        self._channel.send_file(path)

    def start(self, rendezvous: str) -> None:
        """Have the agent start its ranks."""
        self._alive = {placed.rank for placed in self.plan.ranks}
        self._channel.send_fields(Kind.START, {"rendezvous": rendezvous})

    @property
    def is_connected(self) -> bool:
        """Whether the agent can be talked to, or may still answer."""
        return self._channel.is_open

    # what the supervisor says

    @property
    def is_alive(self) -> bool:
        """Whether a rank lives, as far as is known."""
        return bool(self._alive)

    def take_ended(self) -> list[EndedRank]:
        """Return the ranks that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def signal(self, signum: int) -> None:
        """Pass a signal on to all ranks."""
        if self._alive:
            self._channel.send_fields(Kind.SIGNAL, int(signum))

    def stop(self, signum: int) -> None:
        """Send a signal that is meant to end all ranks."""
        self._channel.send_fields(Kind.STOP, int(signum))

    def finish(self, *, at_once: bool) -> None:
        """Have the agent end what its ranks left behind."""
        self._channel.send_fields(Kind.FINISH, at_once)

    def tick(self) -> None:
        """Do nothing: ssh watches over the connection."""

    def balance(self) -> None:
        """Let the agent send more of a stream where there is room."""
        for stream, number in self._consumed.items():
            if number >= WINDOW // 4 and self._output.has_room(stream):
                self._consumed[stream] = 0
                self._channel.send_fields(Kind.CREDIT, {stream: number})

    def abort(self) -> None:
        """Hang up: the agent then ends everything on its host."""
        self._channel.close()

    def close(self) -> None:
        """Hang up, and wait until ssh has left, which is after the agent has."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            # Before its first word there is no agent that would have something to clean up.
            self._process.wait(LEAVE if self.hello is not None else 0.1)
        kill_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._stderr >= 0:
            self._close_words()

    # what the agent says

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.OUT:
            self._receive(frame.rank, "out", frame.payload)
        elif frame.kind is Kind.ERR:
            self._receive(frame.rank, "err", frame.payload)
        elif frame.kind is Kind.END:
            self._output.end(frame.rank, "out" if frame.payload == b"out" else "err")
        elif frame.kind is Kind.EXIT:
            if frame.rank in self._alive:
                self._alive.discard(frame.rank)
                self._ended.append(EndedRank(frame.rank, **frame.fields))
        elif frame.kind is Kind.DONE:
            self.has_ended = True
        elif frame.kind is Kind.NOTICE:
            self._output.notice(f"{self.name}: {frame.payload.decode(errors='surrogateescape')}")
        else:
            self._take_answer(frame)

    def _take_answer(self, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            self.hello = frame.fields
        elif frame.kind is Kind.READY:
            self.ready = frame.fields
        elif frame.kind is Kind.FILE:
            frame.append_to(self._store)
        elif frame.kind is Kind.STARTED:
            self._tell(f"rank {frame.rank} is process {frame.fields} on host {self.name}")
        elif frame.kind is Kind.REFUSED:
            self.refusal = LaunchError(frame.fields["message"], frame.fields["exit_code"])
            self._end_alive(f"it could not be started: {self.refusal}")

    def _receive(self, rank: int, stream: Stream, data: bytes) -> None:
        self._consumed[stream] += len(data)
        self._output.receive(rank, stream, data)

    def _lose(self) -> None:
        # The end of ssh's output comes a moment before its own.
        with suppress(subprocess.TimeoutExpired):
            self.exit_code = self._process.wait(LEAVE)
        self._read_words()
        said = "; ".join(self.words) or f"ssh ended with exit code {self.exit_code}"
        self._end_alive(f"the connection to its host was lost: {said}")
        self.has_ended = True

    def _end_alive(self, reason: str) -> None:
        self._ended += [EndedRank(rank, LOST, lost=reason) for rank in sorted(self._alive)]
        self._alive.clear()

    def _read_words(self) -> None:
        if self._stderr < 0:
            return  # closed by another event of the same turn
        try:
            data = os.read(self._stderr, 1 << 16)
        except BlockingIOError:
            return
        lines = data.decode(errors="replace").splitlines()
        self.words = [*self.words, *(line for line in lines if line.strip())][-MAX_WORDS:]
        if self.hello is not None:
            for line in lines:
                self._output.notice(f"{self.name}: {line}")
        if not data:
            self._close_words()

    def _close_words(self) -> None:
        self._selector.unregister(self._stderr)
        os.close(self._stderr)
        self._stderr = -1


def take_descriptor(file: Any) -> int:
    """Return a descriptor of our own for a pipe of a process, and close its file object."""
    descriptor = os.dup(file.fileno())
    file.close()
    return descriptor

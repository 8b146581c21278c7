"""Membership of this process in an elastic job: which generation it is in, and what comes next.

    launcher ==== pair of sockets, one end inherited ==== Membership of a rank

A process asks for its next generation when it has left the last one. The launcher answers when all
ranks of that generation wait, the new ones included; so a meeting takes no longer than messages do.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import stat
from collections.abc import Callable, Mapping, MutableMapping

from kadril.errors import RendezvousError
from kadril.world.identity import Identity
from kadril.world.job_messages import JobMessage, MessageKind, MessageReader

__all__ = ["CONTROL_FD", "Membership", "Roster", "find_membership"]

CONTROL_FD = "KADRIL_CONTROL_FD"

# A process that waits for so long is a spare one, and may as well prepare itself.
SPARE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Roster:
    """Place of this process in a generation of the job.

    Attributes:
        generation: number of the generation.
        rank: of this process.
        size: number of ranks.
        rendezvous: where they meet.
        num_new: how many of them do not have the state of the job.
        syncs: whether they bring their states together; otherwise all of them have the same.
        hands_over: whether they part again after that, since one of them is only there to give its
            state to the others.
    """

    generation: int
    rank: int
    size: int
    rendezvous: str
    num_new: int
    syncs: bool
    hands_over: bool

    def identity(self, told: Identity) -> Identity:
        """Return the identity of this process, given the one that it was started with."""
        return dataclasses.replace(
            told,
            rank=self.rank,
            size=self.size,
            rendezvous=self.rendezvous,
            generation=self.generation,
            listen_fd=None,
        )

    def write_to(self, environment: MutableMapping[str, str]) -> None:
        """Let variables tell this rank, for programs that read them."""
        own = {"RANK": self.rank, "SIZE": self.size}
        # All ranks are on one host, so local numbers are those of the job.
        values = {**own, **{f"LOCAL_{name}": value for name, value in own.items()}}
        for name, value in values.items():
            environment[f"KADRIL_{name}"] = str(value)
            if f"HOROVOD_{name}" in environment:
                environment[f"HOROVOD_{name}"] = str(value)
        environment["KADRIL_GENERATION"] = str(self.generation)
        environment["KADRIL_RENDEZVOUS"] = self.rendezvous


class Membership:
    """This process in an elastic job.

    Attributes:
        roster: of the present generation, or the one that is about to meet; None before the first.
        is_joining: whether others were there before it, and it does not have their state yet.
        keeps_state: whether it left its generation when all ranks did, and not for a rank that is
            lost; its state is the one that the others have, then.
        preempts: whether the launcher asks for a commit.
        leaves: whether the ranks are to leave after it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.roster: Roster | None = None
        self.is_joining = False
        self.keeps_state = False
        self.preempts = False
        self.leaves = False
        self._connection = connection
        self._reader = MessageReader("the launcher")
        self._stalled = -1
        self._changes = 0
        self._lost_generation = -1
        self._answer: JobMessage | None = None
        self._preparations: list[Callable[[], object]] = []

    def prepare_by(self, preparation: Callable[[], object]) -> None:
        """Have something done while this process is a spare one: loading what it will need."""
        self._preparations.append(preparation)

    def say(self, kind: MessageKind, **fields: object) -> None:
        """Send a message to the launcher; one that is gone has no use for it."""
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self._connection.sendall(JobMessage.of(kind, **fields).encode())

    def blame(self, rank: int | None) -> None:
        """Note that a rank of this generation lives and does not answer."""
        self._stalled = -1 if rank is None else rank

    def next_roster(self) -> Roster:
        """Wait for the next generation.

        Raises:
            SystemExit: this process is not in it; code 0 where the job goes on without it.
            RendezvousError: the launcher has gone.
        """
        generation = -1 if self.roster is None else self.roster.generation
        self.say(
            MessageKind.READY,
            generation=generation,
            stalled=self._stalled,
            keeps=self.keeps_state,
        )
        self._stalled = -1
        self._hear(SPARE_SECONDS)
        while self._answer is None:
            if self._preparations:
                self._preparations.pop(0)()
                self._hear(0.0)
            else:
                self._hear(None)
        answer, self._answer = self._answer, None
        if answer.kind is MessageKind.LEAVE:
            raise SystemExit(answer.number("code"))
        self._changes = 0  # whatever changed before is in the roster
        self.is_joining = self.is_joining or (generation < 0 and not answer.number("begins"))
        self.roster = Roster(
            answer.number("generation"),
            answer.number("rank"),
            answer.number("size"),
            answer.text("rendezvous"),
            answer.number("num_new"),
            bool(answer.number("syncs")),
            bool(answer.number("hands_over")),
        )
        return self.roster

    def is_cancelled(self) -> bool:
        """Whether a rank of the generation that is about to meet has died."""
        self._hear(0.0)
        return self.roster is not None and self._lost_generation >= self.roster.generation

    def take_changes(self) -> int:
        """Return how hosts changed since the last call, as `HostUpdateResult`."""
        self._hear(0.0)
        changes, self._changes = self._changes, 0
        return changes

    def _hear(self, timeout: float | None) -> None:
        """Take what the launcher has sent; wait for it up to a time, or without a limit."""
        ready, _, _ = select.select([self._connection], [], [], timeout)
        if not ready:
            return
        data = self._connection.recv(1 << 16)
        if not data:
            raise RendezvousError("the launcher of this elastic job has gone")
        for message in self._reader.feed(data):
            self._note(message)

    def _note(self, message: JobMessage) -> None:
        if message.kind in (MessageKind.ROSTER, MessageKind.LEAVE):
            self._answer = message
        elif message.kind is MessageKind.LOST:
            self._lost_generation = max(self._lost_generation, message.number("generation"))
        elif message.kind is MessageKind.UPDATE:
            self._changes |= message.number("change")
        elif message.kind is MessageKind.PREEMPT:
            self.preempts = True
            self.leaves = self.leaves or bool(message.number("leaves"))


class _Holder:
    membership: Membership | None = None
    pid = 0


_holder = _Holder()


def find_membership(environment: Mapping[str, str] = os.environ) -> Membership | None:
    """Return the membership of this process, or None where its job is not elastic."""
    text = environment.get(CONTROL_FD)
    if text is None or not text.isdecimal():
        return None
    if _holder.membership is None and _holder.pid == 0:
        connection = adopt(int(text))
        if connection is None:
            return None
        _holder.membership, _holder.pid = Membership(connection), os.getpid()
    return _holder.membership if _holder.pid == os.getpid() else None


def adopt(descriptor: int) -> socket.socket | None:
    """Take over the inherited end; None in a child of a rank, which has only the variable."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
    except OSError:
        return None
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)

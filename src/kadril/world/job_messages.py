"""Messages between the launcher of an elastic job and its ranks, one JSON object to a line.

    rank      LISTENS        its program uses `elastic.run` and hears of updates; what it has loaded
    rank      READY          it has left its generation, if it was in one, and waits for the next;
                             whether it keeps the state that all ranks had when they left
    rank      SYNCED         it has the state of the job
    rank      FATAL          an error in the program, which would come again in every generation
    rank      PREEMPTED      it was sent SIGTERM or SIGUSR1
    launcher  ROSTER         its rank in the next generation, where that meets, whether its ranks
                             bring their states together, whether they then part again, and whether
                             all of them are in their first generation
    launcher  LOST           a rank of that generation has died: do not wait for it
    launcher  UPDATE         hosts came or went: leave the generation at the next commit
    launcher  PREEMPT        commit at the next step that all ranks share, and leave if it says so
    launcher  LEAVE          there is no place in the next generation

They travel on a pair of sockets of which the rank inherits one end, so nobody else can send any.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from kadril.errors import RendezvousError
from kadril.world.fields import MAX_OBJECT_BYTES, pack, unpack

__all__ = ["JobMessage", "MessageKind", "MessageReader"]


class MessageKind(str, enum.Enum):
    """Kind of a message; see the top of this file."""

    LISTENS = "listens"
    READY = "ready"
    SYNCED = "synced"
    FATAL = "fatal"
    PREEMPTED = "preempted"
    ROSTER = "roster"
    LOST = "lost"
    UPDATE = "update"
    PREEMPT = "preempt"
    LEAVE = "leave"


# Fields of each kind, which are numbers or texts.
FIELDS: Mapping[MessageKind, Mapping[str, type]] = {
    MessageKind.LISTENS: {"modules": str},
    MessageKind.READY: {"generation": int, "stalled": int, "keeps": bool},
    MessageKind.SYNCED: {"generation": int},
    MessageKind.FATAL: {"reason": str},
    MessageKind.PREEMPTED: {"signal": int},
    MessageKind.ROSTER: {
        "generation": int,
        "rank": int,
        "size": int,
        "rendezvous": str,
        "num_new": int,
        "syncs": bool,
        "hands_over": bool,
        "begins": bool,
    },
    MessageKind.LOST: {"generation": int},
    MessageKind.UPDATE: {"change": int},
    MessageKind.PREEMPT: {"leaves": bool},
    MessageKind.LEAVE: {"code": int},
}


class JobMessage(NamedTuple):
    """One message."""

    kind: MessageKind
    fields: Mapping[str, object]

    @classmethod
    def of(cls, kind: MessageKind, **fields: object) -> JobMessage:
        """Return a message with these fields."""
        return cls(kind, fields)

    def number(self, name: str) -> int:
        """Return a field that is a number."""
        value = self.fields[name]
        assert isinstance(value, int)  # noqa: S101 - checked when it was read
        return value

    def text(self, name: str) -> str:
        """Return a field that is a text."""
        return str(self.fields[name])

    def encode(self) -> bytes:
        """Return it as a line."""
        return pack({"kind": self.kind.value, **self.fields}) + b"\n"


def decode(line: bytes, sender: str) -> JobMessage:
    """Read a line.

    Raises:
        RendezvousError: it is no message.
    """
    for kind, fields in FIELDS.items():
        if b'"kind":"%s"' % kind.value.encode() in line[:64]:
            values = unpack(line, {"kind": str, **fields}, sender)
            del values["kind"]
            return JobMessage(kind, values)
    raise RendezvousError(f"{sender} sent what is no message of an elastic job: {line[:40]!r}")


class MessageReader:
    """Turns the bytes of a connection into messages.

    Args:
        sender: whom to name in errors.
    """

    def __init__(self, sender: str) -> None:
        self._sender = sender
        self._held = b""

    def feed(self, data: bytes) -> list[JobMessage]:
        """Take bytes as they came; return the messages that are whole.

        Raises:
            RendezvousError: something is no message, or too long.
        """
        *lines, self._held = (self._held + data).split(b"\n")
        if len(self._held) > MAX_OBJECT_BYTES:
            raise RendezvousError(f"{self._sender} sent a message of more than {MAX_OBJECT_BYTES}")
        return [decode(line, self._sender) for line in lines]

"""An ending: the note a rank leaves for the others of its group when it leaves for good.

Notes go through a store or a message, which are not trusted: they are read as short text and
nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KINDS", "MAX_BYTES", "SURE", "Ending"]

MAX_BYTES = 480

# It gave up on purpose; it closed; it knows from the kernel that ran both that the culprit is dead;
# its patience ran out on the culprit; it lost somebody itself. Where several ranks have left, the
# first of these explains the others, and all but the last are sure of the culprit.
KINDS = ("revoked", "closed", "lost", "stalled", "failed")
SURE = KINDS[:-1]


class Ending(NamedTuple):
    """Reason why a rank left the group.

    Attributes:
        kind: one of `KINDS`.
        num_completed: calls that it has completed. Ranks still busy in one of those need nothing
            more of it.
        culprit: the rank, within the group, that it holds to be the cause; None if not known. Of
            "revoked" the one that gave up first.
        reason: shown to people.
    """

    kind: str
    num_completed: int
    culprit: int | None = None
    reason: str = ""

    def encode(self) -> bytes:
        """Return the note as bytes, at most `MAX_BYTES` of them."""
        culprit = "" if self.culprit is None else str(self.culprit)
        text = f"{self.kind}\n{self.num_completed}\n{culprit}\n{self.reason}"
        return text.encode(errors="replace")[:MAX_BYTES]

    @classmethod
    def decode(cls, data: bytes) -> Ending:
        """Read a note; one that makes no sense is a failure without a culprit."""
        lines = data[:MAX_BYTES].decode(errors="replace").split("\n", 3)
        if len(lines) != 4 or lines[0] not in KINDS or not lines[1].isdecimal():
            return cls("failed", 0, None, "it left a note that makes no sense")
        culprit = int(lines[2]) if lines[2].isdecimal() else None
        return cls(lines[0], int(lines[1]), culprit, lines[3])

"""One fact, how bad it is, and what to do about it."""

from __future__ import annotations

import dataclasses
from typing import Literal, TypeAlias

__all__ = ["Finding", "State"]

# "note": worth knowing, or something optional is missing; "bad": kadril does not work so.
State: TypeAlias = Literal["ok", "note", "bad"]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A fact.

    Attributes:
        topic: what it belongs to.
        name: what was looked at.
        value: what was found.
        state: severity: "ok", "note" or "bad".
        remedy: what to do about it, where there is something to do.
    """

    topic: str
    name: str
    value: str
    state: State = "ok"
    remedy: str = ""

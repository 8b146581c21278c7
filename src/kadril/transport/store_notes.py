"""Notes that ranks leave for each other in the store, for when something goes wrong.

gloo says that a connection broke or that time ran out, not whose fault it is. So each rank notes
what it knows under its own rank, and a rank whose call failed reads the notes of the others:

    waiting/<rank>    number of the call it waits in   -> who has not come so far is late
    ending/<rank>     why it left the group            -> who alone says nothing is dead
    num_endings       so that a waiting rank asks once, not once per rank

No note is written or read as long as calls go through. Where the store itself is gone there are no
notes, and nothing is raised: what else is gone, gloo reports. A store whose host went silent
answers nothing, for minutes: so it is asked in a thread, and not waited for longer than a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kadril.transport.ending import SURE, Ending

if TYPE_CHECKING:
    from torch.distributed import Store

__all__ = ["ANSWER_TIME", "StoreNotes"]

ANSWER_TIME = 0.5  # seconds that ranks which lost the same peer have to say so
STORE_TIME = 1.5  # seconds that the store has for an answer

logger = logging.getLogger("kadril")

Answer = TypeVar("Answer")


class StoreNotes:
    """The notes of one group, seen from one of its ranks.

    Attributes:
        has_ended: whether this rank has said why it leaves.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self.store = store
        self.rank = rank
        self.others = [other for other in range(size) if other != rank]
        self.has_ended = False
        self._unanswered: threading.Thread | None = None

    def note_waiting(self, num_call: int) -> None:
        """Say that this rank waits in its n-th call."""
        self._ask(lambda: self.store.set(f"waiting/{self.rank}", str(num_call)), None)

    def late(self, num_call: int) -> list[int]:
        """Ranks that have not come to that call, as far as they have said; the last one first.

        A rank that waits in a later call is not late. One that waits in an earlier call is late
        because of another, most likely one that has not come even so far, or waits for nobody.
        """
        # Without the store, there is no doubt only among two.
        unknown = self.others if len(self.others) == 1 else []
        return self._ask(lambda: self._read_late(num_call), unknown)

    def note_ending(self, ending: Ending) -> None:
        """Say why this rank leaves; the first word counts."""
        if self.has_ended:
            return
        self.has_ended = True
        text = ending.encode().decode(errors="replace")

        def note() -> None:
            self.store.set(f"ending/{self.rank}", text)
            self.store.add("num_endings", 1)

        self._ask(note, None)

    def endings(self) -> dict[int, Ending]:
        """Return why other ranks left, by rank."""
        return self._ask(self._read_endings, None) or {}

    def silent(self) -> list[int] | None:
        """Ranks that left no note, after giving all a moment to do so; None without a store.

        One of them is the cause, unless a note names another. A rank that is busy elsewhere leaves
        no note either, so where there are several nobody knows which.
        """
        deadline = time.monotonic() + ANSWER_TIME
        while True:
            endings = self._ask(self._read_endings, None)
            if endings is None:
                return None
            silent = [rank for rank in self.others if rank not in endings]
            is_told = any(ending.kind in SURE for ending in endings.values())
            if is_told or len(silent) <= 1 or time.monotonic() > deadline:
                return silent
            time.sleep(0.01)

    def _read_late(self, num_call: int) -> list[int]:
        reached = {}
        for rank in self.others:
            note = self._read(f"waiting/{rank}") or b""
            reached[rank] = int(note) if note.isdigit() else -1
        late = [rank for rank in self.others if reached[rank] < num_call]
        return sorted(late, key=lambda rank: reached[rank])

    def _read_endings(self) -> dict[int, Ending]:
        if self.store.add("num_endings", 0) == 0:
            return {}
        notes = {rank: self._read(f"ending/{rank}") for rank in self.others}
        return {rank: Ending.decode(note) for rank, note in notes.items() if note is not None}

    def _read(self, key: str) -> bytes | None:
        return self.store.get(key) if self.store.check([key]) else None

    def _ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """The store's answer, or another where it is gone or does not answer."""
        if self._unanswered is not None and self._unanswered.is_alive():
            return otherwise
        answers: list[Answer] = []

        def ask() -> None:
            try:
                answers.append(question())
            except RuntimeError as error:
                logger.debug("no notes, the store is gone: %s", error)

        # A daemon, since the answer may never come. One for each question: they are few.
        asked = threading.Thread(target=ask, name=f"kadril-notes-{self.rank}", daemon=True)
        asked.start()
        asked.join(STORE_TIME)
        if asked.is_alive():
            self._unanswered = asked
            logger.debug("no notes, the store does not answer")
            return otherwise
        return answers[0] if answers else otherwise

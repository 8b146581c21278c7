"""Names of hosts that a discovery script lists: which of them lead to this machine.

An answer of the resolver is kept; that it cannot be asked is none, and changes nothing. It is asked
by a process of its own, since it may take half a minute.
"""

from __future__ import annotations

import math
import selectors
import socket
import sys
from collections.abc import Callable, Collection

from kadril.launch.elastic.helper_program import HelperProgram
from kadril.launch.mapping import host_lookup

__all__ = ["HostNames"]

LOOKUP_SECONDS = 30.0  # for all names that are asked for together
AGAIN_SECONDS = 60.0  # after the answer that a name is of another host: names come into being
RETRY_SECONDS = 10.0  # after no answer

ANSWERS = {"here": True, "elsewhere": False}


class HostNames:
    """Knows which names lead to this machine.

    Attributes:
        wake_at: when `tick` should be called next.
    """

    def __init__(
        self, job: str, selector: selectors.BaseSelector, on_answers: Callable[[], None]
    ) -> None:
        """Know the names that need no resolver.

        Args:
            job: name of the job.
            selector: of the event loop.
            on_answers: called when something that was asked for has an answer, or gets none.
        """
        self.wake_at = math.inf
        self.command = [sys.executable, "-I", "-S", host_lookup.__file__]
        self._on_answers = on_answers
        self._answers = dict.fromkeys(("localhost", socket.gethostname()), True)
        self._ask_at = dict.fromkeys(self._answers, math.inf)
        self._asked: list[str] = []
        self._now = -math.inf
        self._program = HelperProgram(job, selector, self._finish, lambda: self._finish(1))

    @property
    def is_asking(self) -> bool:
        """Whether answers are on their way."""
        return bool(self._asked)

    def leads_here(self, name: str) -> bool | None:
        """Whether a name leads to this machine; None where that is not known."""
        return self._answers.get(name)

    def ask(self, names: Collection[str], now: float) -> None:
        """Begin to find out about names, as far as that is due and nothing is being asked."""
        due = sorted({name for name in names if now >= self._ask_at.get(name, now)})
        if self._asked or not due:
            return
        self._asked, self._now = due, now
        self.wake_at = now + LOOKUP_SECONDS
        try:
            self._program.start([*self.command, *due])
        except OSError:
            self._finish(1)

    def tick(self, now: float) -> None:
        """Give up a resolver that takes too long."""
        if now >= self.wake_at:
            self._now = now
            self._program.end()
            self._finish(1)

    def _finish(self, _code: int) -> None:
        # What it has printed before it was ended are answers all the same.
        words = self._program.output.decode(errors="replace").split()
        words += ["unknown"] * (len(self._asked) - len(words))
        asked, self._asked, self.wake_at = self._asked, [], math.inf
        for name, word in zip(asked, words, strict=False):
            self._ask_at[name] = self._now + RETRY_SECONDS
            if word in ANSWERS:
                self._answers[name] = ANSWERS[word]
                self._ask_at[name] = math.inf if ANSWERS[word] else self._now + AGAIN_SECONDS
        self._on_answers()

    def close(self) -> None:
        """Ask no more. May be called again."""
        self._program.end()
        self._asked, self.wake_at = [], math.inf

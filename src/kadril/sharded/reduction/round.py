"""The state of one round: which gradients came, which bucket is sent next, what was dropped.

A round lasts from one step of the optimizer to the next. During it buckets are sent to their owners
in one order, the same on all ranks; one walk over that order is a *cycle*.

                 arrive, take_turn
                     +-----+
                     v     |      settle
        begin ---> OPEN ---+-----------------> SETTLED ---> begin
                   |  ^  ^                      |   |
              drop |  |  +-------- arrive ------+   |       more passes add up
                   |  |  +-------- drop ------------+       counted in num_drops
                   |  | restart
                   v  |
                   HELD        arrive, take_turn and drop leave it so

    OPEN      gradients come, and buckets are sent. A drop of nothing leaves it so
    HELD      this rank has dropped gradients that others may have in their sums. What comes now
              waits, and buckets are sent empty, until all ranks know
    SETTLED   everything that came is with its owners, and ranks agree on what that is

Nothing here communicates or looks at tensors: parameters are places in the list of all parameters,
sets of them are bits, and buckets are numbers.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from kadril.errors import StateError

__all__ = ["Round", "State"]


class State(enum.Enum):
    """State of a round; see the drawing above."""

    OPEN = enum.auto()
    HELD = enum.auto()
    SETTLED = enum.auto()


class Round:
    """Counts the gradients of a round, and says whose turn it is.

    Args:
        sends_early: whether buckets are sent during the backward pass. Otherwise none is in the
            order, and all of them are reduced when the round is settled.

    Attributes:
        state: see the drawing above.
        order: numbers of the buckets that are sent in a cycle.
        turn: index into the order of the bucket that is sent next.
        present: a bit for each parameter of which a gradient was sent in this round, here.
        agreed: a bit for each parameter that got a gradient on any rank; known when settled.
        has_given: whether other ranks may have gradients of this one in their sums.
        num_drops: how often settled gradients were dropped since the last step.
    """

    def __init__(self, *, sends_early: bool) -> None:
        self._sends_early = sends_early
        self._members: list[tuple[int, ...]] = []  # places of the parameters, by bucket
        self._bucket_of: dict[int, int] = {}
        self._arrived: set[int] = set()  # places whose gradient came and was not sent
        self._num_missing: list[int] = []  # by bucket: members that have not arrived
        self._completed: dict[int, None] = {}  # buckets, as they became complete in this round
        self._known_to_order = -1  # what was agreed when the order was learned
        self.order: list[int] = []
        self.turn = 0
        self.state = State.OPEN
        self.present = 0
        self.agreed = 0
        self.has_given = False
        self.num_drops = 0

    def add(self, buckets: Sequence[Sequence[int]], *, in_order: Sequence[bool]) -> None:
        """Take in more buckets, between cycles.

        Args:
            buckets: places of the parameters of each.
            in_order: of each, whether it is to be sent in cycles from the start.
        """
        self._check_between_cycles("add buckets")
        first = len(self._members)
        for number, (members, is_sent) in enumerate(zip(buckets, in_order, strict=True), first):
            self._members.append(tuple(members))
            self._num_missing.append(len(members))
            self._bucket_of.update(dict.fromkeys(members, number))
            if is_sent and self._sends_early:
                self.order.append(number)
        self.has_given = False
        self._known_to_order = -1

    # ---- backward -------------------------------------------------------------------------------

    @property
    def is_held(self) -> bool:
        """Whether this rank has dropped gradients, and not all ranks know."""
        return self.state is State.HELD

    @property
    def is_in_cycle(self) -> bool:
        """Whether some buckets of a cycle are sent and others are not."""
        return self.turn != 0

    @property
    def is_ready(self) -> bool:
        """Whether all gradients of the bucket whose turn it is have come."""
        return bool(self.order) and self._num_missing[self.order[self.turn]] == 0

    @property
    def next_bucket(self) -> int:
        """Number of the bucket whose turn it is.

        Raises:
            StateError: no bucket is in the order.
        """
        if not self.order:
            raise StateError("no bucket has a turn: none is sent during the backward pass")
        return self.order[self.turn]

    def is_next_alone(self, place: int) -> bool:
        """Whether a gradient of this parameter, and nothing else, is what can be sent now."""
        number = self._bucket_of[place]
        return (
            self.state is not State.HELD
            and len(self._members[number]) == 1
            and place not in self._arrived
            and bool(self.order)
            and self.order[self.turn] == number
        )

    def arrive(self, place: int) -> None:
        """Count a gradient. One that comes again before its bucket is sent counts once."""
        number = self._bucket_of[place]
        if self.state is State.SETTLED:
            self.state = State.OPEN
        if not self._sends_early or self.state is State.HELD or place in self._arrived:
            return
        self._arrived.add(place)
        self._num_missing[number] -= 1
        if not self._num_missing[number]:
            self._completed.setdefault(number)

    def take_turn(self) -> int:
        """Pass the turn on; returns the bucket that had it.

        Raises:
            StateError: no bucket is in the order.
        """
        number = self.next_bucket
        self.turn = (self.turn + 1) % len(self.order)
        return number

    def take(self, number: int, came: int, *, is_given: bool) -> None:
        """Note that the gradients of a bucket leave their parameters.

        Args:
            number: of the bucket.
            came: a bit for each parameter that has one.
            is_given: whether other ranks have it in their sums before the round is settled.

        Raises:
            StateError: the round is held, so that nothing may leave.
        """
        if self.state is State.HELD:
            raise StateError(
                f"bucket {number} is sent before all ranks know of gradients that were dropped"
            )
        self._forget_arrivals(number)
        self.present |= came
        self.has_given |= is_given and came != 0

    # ---- settle ---------------------------------------------------------------------------------

    def dormant(self) -> list[int]:
        """Return the buckets outside of cycles.

        They did not become complete on rank 0 in the last round. Nobody waits for them in the
        backward pass; what they have is reduced when the round is settled.
        """
        sent = set(self.order)
        return [number for number in range(len(self._members)) if number not in sent]

    def settle(self, agreed: int) -> None:
        """Note what came on any rank, now that all of it is with its owners.

        Raises:
            StateError: buckets of a cycle are missing, or some ranks do not know yet of gradients
                that were dropped.
        """
        self._check_between_cycles("settle")
        if self.state is State.HELD:
            raise StateError("a round with dropped gradients is restarted before it is settled")
        self.agreed = agreed
        self.has_given = False
        self.state = State.SETTLED

    def wants_order(self) -> bool:
        """Whether the order of the next cycles has to be learned; the same on all ranks.

        Only where other gradients came than last time, and the first time.
        """
        return self._sends_early and self.agreed not in (0, self._known_to_order)

    def observed_order(self) -> list[int]:
        """Return the buckets that became complete here, as they did."""
        came = self._that_came()
        return [number for number in self._completed if number in came]

    def set_order(self, order: Sequence[int]) -> None:
        """Send buckets in this order from now on, which is the one that rank 0 has observed."""
        self._check_between_cycles("change the order")
        self.order = list(order)
        # Where some did not become complete this may be better next time.
        self._known_to_order = self.agreed if len(order) == len(self._that_came()) else -1

    def _that_came(self) -> set[int]:
        """Buckets that got a gradient on any rank."""
        return {
            number
            for number, members in enumerate(self._members)
            if any(self.agreed >> place & 1 for place in members)
        }

    # ---- between rounds -------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the next round; on all ranks, after a step."""
        self.num_drops = 0
        if self.state is State.SETTLED:
            self.state = State.OPEN
        self._forget()

    def drop(self) -> list[int]:
        """Forget the gradients that came.

        Returns:
            The rest of the cycle, which the other ranks count on.
        """
        self.num_drops += self.agreed != 0
        rest = self.order[self.turn :] if self.turn else []
        self.turn = 0
        # Also what has come and was not given yet: others that drop the same pass may have given
        # theirs.
        if self.has_given or self._arrived:
            self.state = State.HELD
        elif self.state is State.SETTLED:
            self.state = State.OPEN
        self.has_given = False
        self._forget()
        for number in range(len(self._members)):
            self._forget_arrivals(number)
        return rest

    def restart(self) -> None:
        """Begin again after drops that all ranks know of; on all ranks."""
        self.state = State.OPEN
        self.has_given = False

    def abandon(self) -> None:
        """Forget everything that came, on all ranks alike; drops stay counted."""
        self.restart()
        self._forget()
        for number in range(len(self._members)):
            self._forget_arrivals(number)

    def _forget(self) -> None:
        self.present = self.agreed = 0
        self._completed.clear()

    def _forget_arrivals(self, number: int) -> None:
        self._arrived.difference_update(self._members[number])
        self._num_missing[number] = len(self._members[number])

    def _check_between_cycles(self, what: str) -> None:
        if self.turn:
            raise StateError(
                f"cannot {what} in the middle of a cycle: {self.turn} of {len(self.order)} buckets"
                " are sent"
            )

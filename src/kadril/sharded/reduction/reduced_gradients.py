"""Gradients that the trainer reduces itself: what comes, whose turn it is, and who carries it.

    hooks, compiled graphs --arrive--> Round (round.py): which bucket is next?
                                         |
                                         v
                                       Carrier (carrier.py): brings it to its owners

    backward()   a bucket whose last gradient came is sent at once, if its turn has come: bucket k
                 only after bucket k - 1, on every rank. Its gradients are given back then and there
    settle()     what is left is sent, with zeros for what never came; ranks agree on what came
                 anywhere

That is stage 2. In stage 1 gradients stay with their parameters, and are reduced in `settle`.

Several backward passes before a step make several cycles over the buckets, whose results add up.
Ranks need not make as many of them: before parameters are written they exchange what they intend
(intent.py). A rank may drop what it has (`zero_grad`) while others have some of it in their sums
already. What comes after that waits in `.grad`; in `settle` ranks learn of it, all forget their
sums, and what waits is reduced: no gradient of before is ever added to one of after.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from kadril.errors import MismatchError
from kadril.sharded.ownership.bucket import Bucket
from kadril.sharded.ownership.gradient_memory import Scale, check_layout, raw_grad
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.arrival_hooks import ArrivalHooks
from kadril.sharded.reduction.carrier import Carrier, Hold
from kadril.sharded.reduction.carrier_choice import choose_carrier
from kadril.sharded.reduction.communication_thread import CommunicationThread
from kadril.sharded.reduction.intent import Agreement, Intent, exchange_intents
from kadril.sharded.reduction.round import Round, State

__all__ = ["ReducedGradients"]


class ReducedGradients:
    """Reduces gradients bucket by bucket, in one order on all ranks; see `Gradients`.

    Args:
        shards: parameters and their buckets.
        scale: of gradients, before and after they are added up.
        thread: reduces in the background; None where that does not pay.
        stage: 1 or 2.
    """

    def __init__(
        self, shards: Shards, scale: Scale, thread: CommunicationThread | None, *, stage: int
    ) -> None:
        self._shards = shards
        self._transport = shards.transport
        self.stage = stage
        self._round = Round(sends_early=stage == 2)
        self._hooks = ArrivalHooks(self)
        self._choose_carrier: Callable[[], Carrier] = functools.partial(
            choose_carrier, shards, scale, thread, sends_early=stage == 2
        )
        self._carrier: Carrier

    @property
    def agreed(self) -> int:
        """A bit for each parameter that got a gradient on any rank; known after `settle`."""
        return self._round.agreed

    @property
    def has_news(self) -> bool:
        """Whether sums have changed since the pieces were given them."""
        return any(bucket.has_news for bucket in self._shards.buckets)

    @property
    def gives_away(self) -> bool:
        """Whether gradients go to their owners during the backward pass."""
        return self.stage == 2

    @property
    def has_given_away(self) -> bool:
        """Whether gradients of this round are with their owners, and not in `.grad`."""
        return self.gives_away and self._round.present != 0

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Take in the parameters of these buckets, between rounds; collective."""
        self._round.add(
            [bucket.places for bucket in buckets],
            in_order=[not bucket.plan.is_frozen for bucket in buckets],
        )
        self._carrier = self._choose_carrier()
        self._carrier.set_order(self._ordered())
        self._hooks.watch(
            (place, tensor) for bucket in buckets for place, _, tensor in bucket.members
        )

    def _ordered(self) -> list[Bucket]:
        """Buckets in the order of a cycle."""
        return [self._shards.buckets[number] for number in self._round.order]

    def detach(self) -> None:
        """Stop watching the parameters."""
        self._hooks.detach()

    # ---- backward -------------------------------------------------------------------------------

    def arrived(self, place: int, layout: torch.layout) -> None:
        """Take note of a gradient in `.grad`, which nothing else refers to.

        Raises:
            UnsupportedError: it is sparse.
        """
        if layout is not torch.strided:
            bucket = self._shards.bucket_of(place)
            check_layout(bucket.members[bucket.places.index(place)][1], layout)
        self._round.arrive(place)
        if self._round.is_ready:
            with torch.no_grad():
                self._send_ready()

    def arrived_in_graph(
        self, place: int, gradient: torch.Tensor, *, is_given: bool = False
    ) -> None:
        """Take a gradient out of a compiled graph.

        Args:
            place: of the parameter.
            gradient: of its shape; nobody writes to it.
            is_given: whether nobody reads it either.
        """
        bucket = self._shards.bucket_of(place)
        tensor = self._shards.parameters.tensors[place]
        before = raw_grad(tensor)
        with torch.no_grad():
            if before is None and self._round.is_next_alone(place):
                self._round.arrive(place)
                self._begin_cycle()
                self._round.take_turn()
                self._round.take(bucket.number, 1 << place, is_given=True)
                hold = Hold.GIVEN if is_given else Hold.LENT
                self._carrier.send(bucket, [gradient.detach()], hold)
            else:  # it waits where others do, for the rest of its bucket or for its turn
                if before is None:
                    tensor.grad = gradient.to(tensor.dtype, copy=not is_given)
                else:
                    before.add_(gradient)
                self._round.arrive(place)
            self._send_ready()

    def _send_ready(self) -> None:
        """Send buckets that are complete, as long as it is their turn."""
        while self._round.is_ready:
            self._take_turn()

    def _begin_cycle(self) -> None:
        if not self._round.is_in_cycle:
            self._carrier.begin_cycle()

    def _take_turn(self, *, is_called: bool = False) -> None:
        """Send the bucket whose turn it is.

        Args:
            is_called: whether another rank has begun the cycle, and called this one to it.

        Raises:
            UnsupportedError: a gradient is sparse. The bucket keeps its gradients and its turn.
        """
        bucket = self._shards.buckets[self._round.next_bucket]
        # Others may still reduce what they have not dropped yet; nothing of now is for them.
        taken = bucket.nothing if self._round.is_held else self._take(bucket, is_given=True)
        if not is_called:
            self._begin_cycle()
        self._round.take_turn()
        self._carrier.send(bucket, taken)

    def _finish_cycle(self, *, is_called: bool = True) -> None:
        """Send the rest of the buckets in the order, or all where no cycle is begun."""
        if self._round.order:
            self._take_turn(is_called=is_called)
        while self._round.is_in_cycle:
            self._take_turn(is_called=is_called)

    def _take(self, bucket: Bucket, *, is_given: bool) -> list[torch.Tensor | None]:
        """Take the gradients of a bucket; with stage 2 its parameters have none from now on."""
        taken = bucket.take(gives_back=self.gives_away)
        came = bucket.mask
        if any(gradient is None for gradient in taken):
            pairs = zip(bucket.places, taken, strict=True)
            came = sum(1 << place for place, gradient in pairs if gradient is not None)
        self._round.take(bucket.number, came, is_given=is_given)
        return taken

    # ---- settle ---------------------------------------------------------------------------------

    def settle(self, intent: Intent, digest: int = 0) -> None:
        """Reduce all that was not reduced, and agree on what came on any rank; collective."""
        self._hooks.watch_thawed()
        ask = functools.partial(self._exchange, intent, digest)
        with torch.no_grad():
            self._send_pending()
            agreement = self._carrier.drain(ask, self._finish_cycle)
            is_second = bool(agreement.droppers)
            if is_second:
                self._restart(agreement)
                self._send_pending()
                agreement = self._carrier.drain(ask, self._finish_cycle)
            self._reduce_dormant(agreement.pending)
            self._round.settle(agreement.present | agreement.pending)
            if not is_second:  # else nobody has seen in which order gradients came
                self._learn_order()

    def _send_pending(self) -> None:
        """Send what waits in buckets of the order, unless others may take it for dropped."""
        # Twice where a bucket got something after its turn: the rest of a cycle comes first.
        while not self._round.is_held and (self._round.is_in_cycle or self._has_pending()):
            self._finish_cycle(is_called=False)

    def _has_pending(self) -> bool:
        """Whether a bucket of the order has a gradient that was not sent."""
        return any(
            raw_grad(tensor) is not None
            for bucket in self._ordered()
            for _, _, tensor in bucket.members
        )

    def _exchange(
        self, intent: Intent, digest: int, *, num_posted: int = 0, has_more: bool = False
    ) -> Agreement:
        """Tell all ranks what this one intends and has; collective."""
        return exchange_intents(
            self._transport,
            intent,
            num_parameters=len(self._shards.parameters.tensors),
            present=self._round.present,
            pending=self._pending_dormant(),
            digest=digest,
            num_drops=self._round.num_drops,
            has_dropped=self._round.is_held,
            has_given=self._round.has_given,
            num_posted=num_posted,
            has_more=has_more,
        )

    def _dormant(self) -> list[Bucket]:
        return [self._shards.buckets[number] for number in self._round.dormant()]

    def _pending_dormant(self) -> int:
        """Bits of parameters of dormant buckets whose gradient waits.

        Raises:
            UnsupportedError: a gradient is sparse; before other ranks count on it.
        """
        if self.stage == 1 and self._round.state is State.SETTLED:
            return 0  # gradients stay, and were reduced
        return sum(
            1 << place
            for bucket in self._dormant()
            for place, gradient in zip(bucket.places, bucket.take(gives_back=False), strict=True)
            if gradient is not None
        )

    def _reduce_dormant(self, pending: int) -> None:
        """Reduce dormant buckets that have gradients on any rank; collective."""
        for bucket in self._dormant():
            if pending & bucket.mask:
                if self.stage == 1:
                    bucket.begin_round()  # what is in `.grad` has all of this round in it
                self._carrier.reduce(bucket, self._take(bucket, is_given=False))
        self._carrier.wait()

    def _restart(self, agreement: Agreement) -> None:
        """Forget sums that have dropped gradients in them; all ranks are here.

        Raises:
            MismatchError: a rank has given gradients and not dropped them: they cannot be told from
                those of ranks that have.
        """
        self._forget_sums()
        self._round.restart()
        self._carrier.restart()
        if not agreement.givers:
            return
        # So that all ranks begin alike after it.
        for bucket in self._shards.buckets:
            bucket.take(gives_back=True)
        self._round.abandon()
        ranks = self._transport.world_ranks
        dropper, giver = ranks[agreement.droppers[0]], ranks[agreement.givers[0]]
        raise MismatchError(
            f"rank {dropper} has dropped gradients of backward passes with zero_grad() since the"
            f" last step, and rank {giver} has not, or had none to drop: theirs are in one sum"
            " already. Call zero_grad() on every rank, after at least one backward pass on"
            " each. Nothing was stepped, and all gradients are dropped now"
        )

    def _learn_order(self) -> None:
        """Let the next cycles go in the order in which gradients came on rank 0; collective."""
        if not self._round.wants_order():
            return
        nothing = len(self._shards.buckets)
        observed = self._round.observed_order()
        numbers = [*observed, *[nothing] * (nothing - len(observed))]
        data = b"".join(number.to_bytes(4, "little") for number in numbers)
        first = self._transport.allgather_bytes(data, name="order")[0]
        order = [int.from_bytes(first[at : at + 4], "little") for at in range(0, len(first), 4)]
        self._round.set_order([number for number in order if number < nothing])
        self._carrier.set_order(self._ordered())

    # ---- between rounds -------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Give the pieces of this rank the gradients that were agreed on."""
        for bucket in self._shards.buckets:
            bucket.has_news = False
            for own in bucket.pieces:
                came = self.agreed >> own.piece.entry & 1
                own.tensor.grad = own.gradient if came else None

    def begin_round(self) -> None:
        """Forget what came; on all ranks, after `settle`."""
        self._round.begin()
        self._forget_sums()

    def drop_round(self) -> None:
        """Forget what came; where others may have it in their sums, all of them have to know."""
        rest = [self._shards.buckets[number] for number in self._round.drop()]
        self._carrier.drop(rest, self._forget_sums, is_held=self._round.is_held)

    def _forget_sums(self) -> None:
        for bucket in self._shards.buckets:
            bucket.begin_round()

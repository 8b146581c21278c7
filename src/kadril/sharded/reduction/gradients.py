"""Gradients on their way to their owners: reduced during the backward pass, in one fixed order.

    backward()   hooks count; a bucket whose last gradient came is reduced at once, if its turn has
                 come: bucket k only after bucket k - 1, on every rank. Its gradients are given back
                 then and there
    settle()     what is left is reduced, with zeros for what never came; ranks agree on what came
                 anywhere

One walk over the buckets is a *cycle*. Several backward passes before a step make several cycles,
whose results add up. Ranks need not make as many of them: before a cycle begins, and when a rank
has nothing more to give, they meet (meeting.py) and say what they want.

    cycle       I have a bucket: who has none takes part with zeros
    settle      I am done, and so is everyone who says so; or
    step        the same, and I am about to write parameters

A rank may drop what it has (`zero_grad`) while others have some of it in their sums already. What
comes after that waits in `.grad`. In `settle` ranks learn of it, all forget their sums, and what
waits is reduced: no gradient of before is ever added to one of after, however many passes each rank
has made.

So no rank ever waits for a reduction that a peer has no reason to make, and when all say "step"
none is in its backward pass any more: the parameters may be written.

That is stage 2 between hosts; on one host nobody waits in a backward pass (posted.py). In stage 1
gradients stay with their parameters, and are reduced in `settle`.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle

from kadril.errors import MismatchError
from kadril.sharded.ownership.bucket import Bucket, Scale, Scratch, check_layout
from kadril.sharded.ownership.memory_order import flat_order, shaped
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.reduction.courier import Courier
from kadril.sharded.reduction.grad_notice import layout_of_grad, raw_grad
from kadril.sharded.reduction.meeting import Agreement, Wish, meet

__all__ = ["Gradients", "ReducedGradients"]


class Gradients(Protocol):
    """How the pieces of this rank get their gradients.

    Attributes:
        agreed: a bit for each parameter that got a gradient anywhere; known after `settle`.
    """

    agreed: int

    @property
    def has_news(self) -> bool:
        """Whether `hand_over` would give the pieces something that they do not have."""
        ...

    @property
    def gives_away(self) -> bool:
        """Whether gradients go to their owners during the backward pass."""
        ...

    @property
    def has_given_away(self) -> bool:
        """Whether gradients of this round are with their owners, and not in `.grad`."""
        ...

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Take in the parameters of these buckets; between rounds."""
        ...

    def settle(self, wish: Wish, digest: int = 0) -> None:
        """Have all gradients where they belong, and agree on what came anywhere; collective.

        Args:
            wish: SETTLE, STEP, LOAD or ADD.
            digest: of what has to be the same on all ranks.

        Raises:
            MismatchError: ranks want different things, or have other digests.
        """
        ...

    def hand_over(self) -> None:
        """Give the pieces of this rank their gradients."""
        ...

    def begin_round(self) -> None:
        """Forget what came; gradients that the parameters have stay."""
        ...

    def drop_round(self) -> None:
        """As `begin_round`, in the middle of a round; peers get what they count on."""
        ...

    def detach(self) -> None:
        """Hear no more of the parameters."""
        ...


class ReducedGradients:
    """Reduces gradients bucket by bucket, in one order on all ranks; see `Gradients`.

    Args:
        shards: parameters and their buckets.
        scale: of gradients, before and after they are added up.
        courier: reduces beside the backward pass; None where that does not pay.
        stage: 1 or 2.
    """

    def __init__(
        self, shards: Shards, scale: Scale, courier: Courier | None, *, stage: int
    ) -> None:
        self.shards = shards
        self.transport = shards.transport
        self.scale = scale
        self.stage = stage
        self.agreed = 0
        self._present = 0  # a bit for each parameter that had a gradient in this round, here
        self.has_news = False
        self._is_settled = False  # nothing came since the last time
        self._has_given = False  # others may have gradients of this rank in their sums
        self._is_held = False  # it has dropped those: what comes waits until all know
        self._num_drops = 0  # of reduced gradients, since the last step
        self._has_reduced = False  # compiled graphs have reduced gradients in this round
        self._num_dropped = 0  # of their passes, how often some were dropped since the last step
        self._scratch = Scratch(self.transport)
        self._order: list[Bucket] = []  # of a cycle
        self._turn = 0  # place in the order of the next bucket to reduce
        self._completed: dict[int, None] = {}  # buckets, as they became complete in this round
        self._known = -1  # what was agreed when the order was made
        self._hooks: list[RemovableHandle] = []
        self._frozen: list[tuple[int, torch.Tensor]] = []  # parameters without a hook
        weakref.finalize(self, remove, self._hooks).atexit = False
        self._courier = courier

    @property
    def gives_away(self) -> bool:
        """Whether gradients go to their owners during the backward pass."""
        return self.stage == 2

    @property
    def has_given_away(self) -> bool:
        """Whether gradients of this round are with their owners, and not in `.grad`."""
        return self.gives_away and self._present != 0

    def watch(self, buckets: Sequence[Bucket]) -> None:
        """Hear of the gradients of these buckets."""
        self._has_given = self._is_held = False
        if self.stage == 2:
            self._order += [bucket for bucket in buckets if not bucket.plan.is_frozen]
        self._known = -1
        self._frozen += [(place, each) for bucket in buckets for place, _, each in bucket.members]
        self.watch_thawed()

    def watch_thawed(self) -> None:
        """Hear of the gradients of parameters that want any now, and did not before."""
        # A hook must hold nothing: what it holds its parameter keeps alive, unseen by the garbage
        # collector, long after the trainer.
        itself = weakref.ref(self)
        for place, tensor in self._frozen:
            if tensor.requires_grad:
                hook = functools.partial(arrived, itself, place)
                self._hooks.append(tensor.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._frozen = [each for each in self._frozen if not each[1].requires_grad]

    def detach(self) -> None:
        """Hear no more of the parameters."""
        remove(self._hooks)

    # ---- backward -------------------------------------------------------------------------------

    def arrived(self, place: int, layout: torch.layout) -> None:
        """A gradient of this layout is in `.grad`, and nothing else refers to it.

        Raises:
            UnsupportedError: it is sparse.
        """
        bucket = self.shards.bucket_of(place)
        if layout is not torch.strided:
            check_layout(bucket.members[bucket.places.index(place)][1], layout)
        self._is_settled = False
        if self.stage == 1 or self._is_held or place in bucket.arrived:
            return  # the last: it came again before its bucket was reduced, and was added up
        bucket.arrived.add(place)
        bucket.num_missing -= 1
        if bucket.num_missing:
            return
        self._completed.setdefault(bucket.number)
        with torch.no_grad():
            while self._order and self._order[self._turn].num_missing == 0:
                self.begin_cycle()
                self.take_turn()

    def begin_cycle(self) -> None:
        """Call the others to a cycle, unless one is on its way."""
        if self._turn == 0:
            self.do(self.call_to_cycle)

    def call_to_cycle(self) -> None:
        """Tell the others that this rank has a bucket; collective."""
        meet(self.transport, Wish.CYCLE, num_parameters=self.num_parameters)

    def do(self, task: Callable[[], None]) -> None:
        """Do something collective now, or have it done beside the backward pass."""
        if self._courier is None:
            task()
        else:
            self._courier.submit(task)

    def wait(self) -> None:
        """Wait for what is done beside the backward pass."""
        if self._courier is not None:
            self._courier.wait()

    def take_turn(self) -> None:
        """Send the bucket whose turn it is on its way."""
        bucket = self._order[self._turn]
        # Others may still reduce what they have not dropped yet; nothing of now is for them.
        taken = bucket.nothing if self._is_held else self.take(bucket)
        self._has_given |= any(each is not None for each in taken)
        self._turn = (self._turn + 1) % len(self._order)
        self.send(bucket, taken)

    def finish_cycle(self) -> None:
        """Reduce the rest of the buckets in the order."""
        if self._order:
            self.take_turn()
        while self._turn:
            self.take_turn()

    def send(self, bucket: Bucket, taken: list[torch.Tensor | None]) -> None:
        """Reduce the gradients of a bucket, or have that done; in the order of the cycle."""
        self.reduce(bucket, taken)

    def take(self, bucket: Bucket) -> list[torch.Tensor | None]:
        """The gradients of a bucket; with stage 2 its parameters have none from now on."""
        taken = bucket.take(gives_back=self.stage == 2)
        if all(gradient is not None for gradient in taken):
            self._present |= bucket.mask
            return taken
        for place, gradient in zip(bucket.places, taken, strict=True):
            if gradient is not None:
                self._present |= 1 << place
        return taken

    def reduce(self, bucket: Bucket, taken: list[torch.Tensor | None]) -> None:
        """Reduce the gradients of a bucket; collective."""
        self.do(functools.partial(self.reduce_taken, bucket, taken, keeps=not self._is_held))

    def reduce_taken(
        self, bucket: Bucket, taken: list[torch.Tensor | None], *, keeps: bool
    ) -> None:
        """Reduce the gradients of a bucket; collective."""
        with torch.no_grad():
            if self.stage == 1:
                bucket.begin_round()  # what is in `.grad` has all of this round in it
            bucket.reduce(taken, self.scale, self._scratch, keeps=keeps)
        self.has_news |= keeps

    def reduce_one(self, place: int, gradient: torch.Tensor, name: str) -> None:
        """Reduce the gradient of one parameter, which lies elsewhere than in `.grad`; collective.

        Args:
            place: of the parameter.
            gradient: in its shape.
            name: of the call, the same on all ranks.
        """
        self.wait()
        self._has_reduced = True
        self._has_given |= not self._is_held
        bucket = self.shards.bucket_of(place)
        index = bucket.places.index(place)
        entry = bucket.members[index][1]
        counts = [0] * self.transport.size
        for piece in self.shards.pieces_of(place):
            counts[piece.rank] = piece.end - piece.begin
        own = self.shards.own_piece(place)
        count = counts[self.transport.rank]
        memory = bucket.gradients
        adds = own is not None and bucket.is_filled[index]
        if own is None or adds:
            target = torch.empty(count, dtype=entry.dtype, device=entry.device)
        else:
            target = memory[own.piece.offset : own.piece.offset + count]
        self.transport.reduce_scatterv(
            flat_order(gradient.detach().to(entry.dtype), entry.dims),
            target,
            counts,
            prescale=self.scale.before,
            postscale=self.scale.after,
            # Ranks that have not dropped equally often are not in the same pass.
            name=f"{name} after zero_grad {self._num_dropped}" if self._num_dropped else name,
        )
        if own is not None and adds:
            in_shape = shaped(target, entry.shape, entry.dims) if bucket.keeps_shape else target
            bucket.add_piece(own, in_shape)
        bucket.is_filled[index] = True
        self._present |= 1 << place
        self._is_settled = False
        self.has_news = True

    # ---- settle ---------------------------------------------------------------------------------

    @property
    def num_parameters(self) -> int:
        """How many there are."""
        return len(self.shards.parameters.tensors)

    def settle(self, wish: Wish, digest: int = 0) -> None:
        """Reduce all that was not reduced, and agree on what came on any rank; collective."""
        self.watch_thawed()
        with torch.no_grad():
            self.reduce_pending()
            agreement = self.agree(wish, digest)
            is_second = bool(agreement.droppers)
            if is_second:
                self.start_over(agreement)
                self.reduce_pending()
                agreement = self.agree(wish, digest)
            self.agreed = agreement.present | agreement.pending
            for bucket in self.dormant():
                if any(agreement.pending >> place & 1 for place in bucket.places):
                    self.reduce(bucket, self.take(bucket))
            self.wait()
            if not is_second:  # else nobody has seen in which order gradients came
                self.learn_order()
        self._is_settled = True
        self._has_given = False

    def reduce_pending(self) -> None:
        """Reduce what waits in buckets of the order, unless others may take it for dropped."""
        # Twice where a bucket got something after its turn: the rest of a cycle comes first.
        while not self._is_held and (self._turn or self.has_pending()):
            self.begin_cycle()
            self.finish_cycle()

    def start_over(self, agreement: Agreement) -> None:
        """Forget sums that have dropped gradients in them; all ranks are here.

        Raises:
            MismatchError: a rank has given gradients and not dropped them: they cannot be told from
                those of ranks that have.
        """
        if not self._is_held:
            for bucket in self.shards.buckets:
                bucket.begin_round()
        self._is_held = self._has_given = False
        if agreement.givers:
            rank, giver = (
                self.transport.world_ranks[ranks[0]]
                for ranks in (agreement.droppers, agreement.givers)
            )
            # So that all ranks begin alike after it.
            for bucket in self.shards.buckets:
                bucket.take(gives_back=True)
            self.forget()
            self.forget_sums()
            raise MismatchError(
                f"rank {rank} has dropped gradients of backward passes with zero_grad() since the"
                f" last step, and rank {giver} has not, or had none to drop: theirs are in one sum"
                " already. Call zero_grad() on every rank, after at least one backward pass on"
                " each. Nothing was stepped, and all gradients are dropped now"
            )

    def agree(self, wish: Wish, digest: int) -> Agreement:
        """Wait until all ranks want the same, and all cycles are over; collective."""
        self.wait()
        while True:
            agreement = self.meet(wish, digest)
            if not agreement.wants_cycle:
                agreement.check()
                return agreement
            self.finish_cycle()
            self.wait()

    def meet(self, wish: Wish, digest: int, **progress: Any) -> Agreement:
        """Tell all ranks what this one wants and has; collective."""
        return meet(
            self.transport,
            wish,
            num_parameters=self.num_parameters,
            present=self._present,
            pending=self.pending_dormant(),
            digest=digest,
            num_drops=self._num_drops,
            has_dropped=self._is_held,
            has_given=self._has_given,
            **progress,
        )

    def has_pending(self) -> bool:
        """Whether a bucket of the order has a gradient that was not reduced."""
        return any(
            raw_grad(tensor) is not None
            for bucket in self._order
            for _, _, tensor in bucket.members
        )

    def dormant(self) -> list[Bucket]:
        """Buckets outside of cycles: those that did not become whole on rank 0 in the last round.

        Nobody waits for them in the backward pass. What they have is reduced in `settle`.
        """
        waiting = {bucket.number for bucket in self._order}
        return [bucket for bucket in self.shards.buckets if bucket.number not in waiting]

    def pending_dormant(self) -> int:
        """Bits of parameters of dormant buckets whose gradient waits."""
        if self.stage == 1 and self._is_settled:
            return 0  # gradients stay, and were reduced
        bits = 0
        for bucket in self.dormant():
            for place, _, tensor in bucket.members:
                if raw_grad(tensor) is not None:
                    bits |= 1 << place
        return bits

    def learn_order(self) -> None:
        """Let the next cycles go in the order in which gradients came on rank 0; collective.

        Only where other gradients came than last time, and the first time; ranks agree on that.
        """
        if self.stage == 1 or self.agreed == self._known or not self.agreed:
            return
        buckets = self.shards.buckets
        came = {
            bucket.number
            for bucket in buckets
            if any(self.agreed >> place & 1 for place in bucket.places)
        }
        flags = [number for number in self._completed if number in came]
        data = b"".join(
            number.to_bytes(4, "little") for number in [*flags, *[len(buckets)] * len(buckets)]
        )[: 4 * len(buckets)]
        first = self.transport.allgather_bytes(data, name="order")[0]
        numbers = [int.from_bytes(first[at : at + 4], "little") for at in range(0, len(first), 4)]
        self._order = [buckets[number] for number in numbers if number < len(buckets)]
        # Where some did not become whole this may be better next time.
        self._known = self.agreed if len(self._order) == len(came) else -1

    # ---- between rounds -------------------------------------------------------------------------

    def hand_over(self) -> None:
        """Give the pieces of this rank the gradients that were agreed on."""
        self.has_news = False
        for bucket in self.shards.buckets:
            for own in bucket.pieces:
                came = self.agreed >> own.piece.entry & 1
                own.tensor.grad = own.gradient if came else None

    def begin_round(self) -> None:
        """Forget what came; on all ranks, after `settle`."""
        self._num_drops = self._num_dropped = 0
        self.forget()
        self.forget_sums()

    def forget(self) -> None:
        """Forget what came."""
        self._present = self.agreed = 0
        self._has_reduced = False
        self._is_settled = False
        self._completed.clear()

    def forget_sums(self) -> None:
        """Forget what was added up."""
        self.has_news = False
        for bucket in self.shards.buckets:
            bucket.begin_round()

    def drop_round(self) -> None:
        """Forget what came; a cycle on its way is finished first, since peers count on it."""
        if self._turn:
            self.finish_cycle()
        self.hold()
        self.forget()
        # After what is on its way; nobody waits for others here.
        self.do(self.forget_sums)

    def hold(self) -> None:
        """Remember what is dropped: where others may have it, all of them have to know."""
        self._num_drops += self.agreed != 0
        self._num_dropped += self._has_reduced
        # Also what has come and was not given yet: others that drop the same pass may have given
        # theirs.
        has_come = any(bucket.arrived for bucket in self.shards.buckets)
        self._is_held |= self._has_given or has_come
        self._has_given = False
        for bucket in self.shards.buckets:
            bucket.forget_arrivals()


def arrived(
    itself: weakref.ReferenceType[ReducedGradients], place: int, tensor: torch.Tensor
) -> None:
    """Called by autograd when the gradient of a backward pass is in `.grad`."""
    gradients = itself()
    # Autograd calls also where a compiled graph has sent the gradient away, and there is none.
    layout = layout_of_grad(tensor)  # and no reference to the gradient, which may be written to
    if gradients is not None and layout is not None:
        gradients.arrived(place, layout)


def remove(hooks: list[RemovableHandle]) -> None:
    """Take hooks off their parameters."""
    for hook in hooks:
        hook.remove()
    hooks.clear()

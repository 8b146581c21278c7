"""A bucket at run time: the memory of its parameters, and this rank's part of their gradients.

    parameters   | p3 ......... | p2 .... | p1 .. |     `.data` of each is a view of it
                 | part of rank 0 | part of rank 1 |
                                    ^ pieces: what this rank's optimizer steps, in place
    gradients                     | part of rank 1 |    memory of this rank only

Where ranks of a host share the memory of the parameters, a piece is stepped once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kadril.errors import StateError
from kadril.sharded.ownership.gradient_memory import (
    Scale,
    Scratch,
    check_layout,
    copy_gradients,
    raw_grad,
)
from kadril.sharded.ownership.memory_order import flat_order, shaped, strides_in_memory
from kadril.sharded.ownership.ownership_plan import BucketPlan, Entry, Piece
from kadril.transport.base import Transport

__all__ = ["Bucket", "OwnPiece"]


class OwnPiece:
    """A piece that this rank owns, with its tensors.

    Attributes:
        piece: which elements of which parameter.
        tensor: the elements, which the optimizer steps; flat where parameters may be cut, otherwise
            in the shape of the parameter.
        gradient: their gradient, in the same shape.
    """

    def __init__(self, piece: Piece, tensor: torch.nn.Parameter) -> None:
        self.piece = piece
        self.tensor = tensor
        self.gradient: torch.Tensor | None = None


class Bucket:
    """Parameters that are reduced at once.

    Attributes:
        number: place among all buckets.
        plan: its parameters, and the part of each rank.
        places: places of its parameters among all parameters.
        members: place, description and tensor of each parameter.
        pieces: pieces that this rank owns.
        keeps_shape: whether pieces are whole parameters in their shape, rather than flat ranges.
        is_shared: whether all ranks use the same memory, so that nothing has to be gathered.
        is_shared_on_host: whether only the ranks of each host do: what is gathered from other hosts
            is gathered once for all of them.
        mask: a bit for each of its parameters, at its place among all.
        is_filled: whether the gradient memory holds sums of this round.
        has_news: whether these have changed since the pieces were given them.
    """

    def __init__(
        self,
        number: int,
        plan: BucketPlan,
        first: int,
        entries: Sequence[Entry],
        tensors: Sequence[torch.Tensor],
        transport: Transport,
    ) -> None:
        self.number = number
        self.plan = plan
        self.places = [first + place for place in plan.members]
        self.members = [(place, entries[place], tensors[place]) for place in self.places]
        self.dtype = self.members[0][1].dtype
        self.device = self.members[0][1].device
        self.transport = transport
        self.begin = sum(plan.counts[: transport.rank])
        self.count = plan.counts[transport.rank]
        self.pieces: list[OwnPiece] = []
        self.keeps_shape = False
        self.is_shared = False
        self.is_shared_on_host = False
        self.flat = torch.empty(0)
        self.is_filled = False
        self.has_news = False
        self._gradients: torch.Tensor | None = None
        self._views: tuple[int | None, list[torch.Tensor]] = (None, [])
        # Shape, strides and first element of each member in memory of the bucket's length.
        self._lies = [
            (entry.shape, strides_in_memory(entry.shape, entry.dims), begin)
            for (_, entry, _), begin in zip(self.members, plan.begins, strict=True)
        ]
        self.mask = sum(1 << place for place in self.places)
        self._addresses: list[int] = []

    # ---- parameters -----------------------------------------------------------------------------

    @property
    def num_bytes(self) -> int:
        """Bytes of the parameters, rounded up to whole cache lines."""
        return -(-self.plan.num_elements * self.dtype.itemsize // 64) * 64

    def fill(self, flat: torch.Tensor) -> None:
        """Copy the parameters into flat memory."""
        for (_, entry, tensor), begin in zip(self.members, self.plan.begins, strict=True):
            place = flat[begin : begin + entry.num_elements]
            shaped(place, entry.shape, entry.dims).copy_(tensor.detach())

    def bind(self, flat: torch.Tensor) -> None:
        """Make parameters, and pieces if there are any, views of flat memory."""
        self.flat = flat
        for (_, entry, tensor), begin in zip(self.members, self.plan.begins, strict=True):
            tensor.data = shaped(flat[begin : begin + entry.num_elements], entry.shape, entry.dims)
        self._addresses = [tensor.data_ptr() for _, _, tensor in self.members]
        for each in self.pieces:
            each.tensor.data = self.view_of(each.piece)

    def cut(self, pieces: Sequence[Piece], *, keeps_shape: bool) -> None:
        """Make the pieces that this rank owns."""
        self.keeps_shape = keeps_shape
        for piece in pieces:
            parameter = torch.nn.Parameter(self.view_of(piece))
            self.pieces.append(OwnPiece(piece, parameter))

    def view_of(self, piece: Piece, memory: torch.Tensor | None = None) -> torch.Tensor:
        """View a piece in its shape: in the parameters, or in other memory of this rank's part."""
        if memory is None:
            memory = self.flat[self.begin : self.begin + self.count]
        flat = memory[piece.offset : piece.offset + piece.num_elements]
        if not self.keeps_shape:
            return flat
        entry = self.entry_of(piece)
        return shaped(flat, entry.shape, entry.dims)

    def elements_of(self, piece: Piece) -> torch.Tensor:
        """View the elements of a piece of this rank flat, in the memory of the parameters."""
        begin = self.begin + piece.offset
        return self.flat[begin : begin + piece.num_elements]

    def entry_of(self, piece: Piece) -> Entry:
        """Return the description of the parameter of a piece."""
        return self.members[self.places.index(piece.entry)][1]

    def check_bound(self) -> None:
        """Raise `StateError` for a parameter that something else has given other memory."""
        for (_, entry, tensor), address in zip(self.members, self._addresses, strict=True):
            if tensor.data_ptr() != address:
                raise StateError(
                    f"parameter {entry.name!r} does not lie where the trainer steps it any more:"
                    " model.to(), an assignment to its .data, or the like has moved it. Do that"
                    " before the trainer is made"
                )

    def gather(self) -> None:
        """Give every rank the parameters that each has stepped; collective."""
        own = self.flat[self.begin : self.begin + self.count]
        self.transport.allgatherv(
            own, self.flat, self.plan.counts, name=f"parameters.{self.number}"
        )

    # ---- gradients ------------------------------------------------------------------------------

    @property
    def gradients(self) -> torch.Tensor:
        """This rank's part of the gradients; allocated when first used in a round."""
        if self._gradients is None:
            return self.put_gradients(torch.empty(self.count, dtype=self.dtype, device=self.device))
        return self._gradients

    @property
    def has_gradients(self) -> bool:
        """Whether memory for the gradients is allocated."""
        return self._gradients is not None

    def put_gradients(self, memory: torch.Tensor) -> torch.Tensor:
        """Use this memory for the gradients until the round ends."""
        self._gradients = memory
        for each in self.pieces:
            each.gradient = self.view_of(each.piece, memory)
        return memory

    @property
    def nothing(self) -> list[torch.Tensor | None]:
        """Return what `take` gives where there are no gradients."""
        return [None] * len(self.members)

    def take(self, *, gives_back: bool) -> list[torch.Tensor | None]:
        """Return what the parameters have as gradients.

        Args:
            gives_back: whether the parameters are to have none from now on.
        """
        taken = [raw_grad(tensor) for _, _, tensor in self.members]
        for gradient, (_, entry, _) in zip(taken, self.members, strict=True):
            if gradient is not None and gradient.layout is not torch.strided:
                check_layout(entry, gradient.layout)
        if gives_back:
            for _, _, tensor in self.members:
                tensor.grad = None
        return taken

    def reduce(
        self,
        taken: list[torch.Tensor | None],
        scale: Scale,
        scratch: Scratch,
        *,
        keeps: bool = True,
    ) -> None:
        """Add the gradients of all ranks to what each owns of them; collective.

        Args:
            taken: from `take`; is emptied, so that memory goes back as soon as it can.
            scale: of the gradients.
            scratch: to collect small ones in.
            keeps: False where this rank does not need the sum.
        """
        source = self.collect(taken, scratch)
        is_first = keeps and not self.is_filled
        target = self.gradients if is_first else torch.empty_like(self.gradients)
        self.transport.reduce_scatterv(
            source,
            target,
            self.plan.counts,
            prescale=scale.before,
            postscale=scale.after,
            name=f"gradients.{self.number}",
        )
        del source
        if not keeps:
            return
        if not is_first:
            self.gradients.add_(target)
        self.note_sum()

    def note_sum(self) -> None:
        """Note that the gradient memory holds a sum that the pieces have not been given."""
        self.is_filled = self.has_news = True

    def collect(self, taken: list[torch.Tensor | None], scratch: Scratch) -> torch.Tensor:
        """The gradients of all members, one after the other; in place where there is only one."""
        if len(self.members) == 1:
            gradient = taken.pop()
            if gradient is None:
                return torch.zeros(self.plan.num_elements, dtype=self.dtype, device=self.device)
            return flat_order(gradient.detach().to(self.dtype), self.members[0][1].dims)
        flat = scratch.get(self.plan.num_elements, self.dtype, self.device)
        if self._views[0] != flat.data_ptr():
            self._views = (flat.data_ptr(), self.views_in(flat))
        copy_gradients(self._views[1], taken)
        taken.clear()
        return flat

    def flatten(self, taken: list[torch.Tensor | None]) -> torch.Tensor | None:
        """Return the gradients as `collect` does, in memory of their own; None for no gradients."""
        if len(taken) == 1:
            gradient = taken[0]
            if gradient is None:
                return None
            return flat_order(gradient.detach().to(self.dtype), self.members[0][1].dims)
        if all(gradient is None for gradient in taken):
            return None
        flat = torch.empty(self.plan.num_elements, dtype=self.dtype, device=self.device)
        copy_gradients(self.views_in(flat), taken)
        return flat

    def views_in(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a view for each member, in its shape, of memory of the bucket's length."""
        first = flat.storage_offset()
        return [
            flat.as_strided(shape, strides, first + begin) for shape, strides, begin in self._lies
        ]

    def begin_round(self) -> None:
        """Free the memory of the gradients."""
        self.is_filled = self.has_news = False
        self._gradients = None
        for each in self.pieces:
            each.gradient = each.tensor.grad = None

"""Base of all losses: one number that every worker knows, made of parts of each.

    loss = (sum_r part_r) / n          part*_r = loss* / n          on each

The sum is a replicated value (`ops.total`): there is one loss, and each worker calls `backward()`
on its copy of it. Nothing is sent in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from kadril import ops
from kadril.nn.sharing import refuse_data
from kadril.ops.calling import anchor_for
from kadril.ops.structure import Structure, agree
from kadril.partition import Interval, Partition
from kadril.partition.pairing import text
from kadril.transport.agreement import raise_on_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LossLayer", "cut_like", "global_sizes", "wide"]


class LossLayer(torch.nn.Module):
    """Base of the partitioned losses.

    Args:
        P_x: one axis for each dim of the input.
        reduction: "mean", "sum" or "none".
        what: name of the layer in errors.

    Raises:
        ValueError: there is no such reduction.
    """

    reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    # Attributes of the torch layer that are arguments, in their order.
    settings: ClassVar[tuple[str, ...]] = ("reduction",)

    def __init__(self, P_x: Partition, reduction: str = "mean", *, what: str | None = None) -> None:
        super().__init__()
        self.P_x = P_x
        self.reduction = reduction
        self.what = what or type(self).__name__
        if reduction not in self.reductions:
            raise ValueError(
                f"{self.what}: reduction must be one of {', '.join(self.reductions)}, got"
                f" {reduction!r}"
            )

    @classmethod
    def of(cls, layer: torch.nn.Module, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a loss.

        Args:
            layer: the loss of torch that has the name of this class, without "Distributed".
            P_x: where inputs are: one axis for each dim.
            what: name of the layer in errors.
        """
        return cls(P_x, *(getattr(layer, name) for name in cls.settings), what=what)

    def extra_repr(self) -> str:
        """Show the settings, and where the layer is."""
        return f"reduction={self.reduction!r}, P_x={text(self.P_x.shape)}"

    def _nothing(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of a rank outside of the partition: 0, with a graph; or no elements."""
        refuse_data(x, self.what)
        if self.reduction == "none":
            return x.clone()
        return x.sum() + anchor_for(True).sum().to(x.dtype)

    def _agree_on_pair(self, x: torch.Tensor, target: torch.Tensor) -> Structure:
        """Return the structure of x, which the target must have too; collective.

        Raises:
            ValueError: it has another; on all workers.
        """
        structure = agree(self.P_x, x, f"input of {self.what}")
        structure.blocks(f"input of {self.what}")
        other = agree(self.P_x, target, f"target of {self.what}")
        self._refuse_other_shapes(other.shapes, structure.shapes)
        return structure

    def _refuse_other_shapes(
        self, found: Sequence[tuple[int, ...]], wanted: Sequence[tuple[int, ...]]
    ) -> None:
        for rank, (has, needs) in enumerate(zip(found, wanted, strict=True)):
            if has != needs:
                raise ValueError(
                    f"{self.what}: on rank {rank} of {text(self.P_x.shape)} the target has a block"
                    f" of shape {has}; with this input it must be {needs}"
                )

    def _totals(
        self, compute: Callable[[], Sequence[torch.Tensor]], num: int
    ) -> list[torch.Tensor]:
        """Return sums over all workers of numbers that each of them computes, in float64.

        The count of errors goes with the numbers: data that one worker refuses are refused on all,
        and it takes no further collective to find that there are none.

        Args:
            compute: gives the numbers.
            num: how many.
        """
        error: Exception | None = None
        try:
            parts = [part.double() for part in compute()]
        except (RuntimeError, IndexError, ValueError) as caught:
            error = caught
            parts = [torch.zeros((), dtype=torch.float64)] * num
        flag = torch.tensor(float(error is not None), dtype=torch.float64)
        sums = ops.total(torch.stack([*parts, flag]), self.P_x.group, what=self.what)
        if float(sums[-1].detach()) != 0:
            raise_on_all(self.P_x.transport, self.what, error, ValueError)
        return list(sums[:-1].unbind())


def wide(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype to sum in: float32 for 16-bit ones, which would overflow."""
    return x.float() if x.is_floating_point() and x.dtype.itemsize < 4 else x


def global_sizes(structure: Structure, what: str) -> list[int]:
    """Return the shape of the global tensor."""
    return [blocks[-1].stop for blocks in structure.blocks(what)]


def cut_like(
    weight: torch.Tensor | None, blocks: Sequence[Sequence[Interval]], P_x: Partition, what: str
) -> torch.Tensor | None:
    """Return this worker's block of a global tensor that is broadcast to the input's shape.

    Args:
        weight: aligned with the last dims of the input; its dims have the global size, or 1.
        blocks: of the input.
        P_x: where the input is.
        what: name of the layer in errors.

    Raises:
        ValueError: it cannot be broadcast to the input; on all workers.
    """
    if weight is None or P_x.index is None:
        return weight
    first = len(blocks) - weight.dim()
    slices = []
    for dim, size in enumerate(weight.shape, start=first):
        if first < 0 or size not in (1, blocks[dim][-1].stop):
            sizes = [block[-1].stop for block in blocks]
            raise ValueError(
                f"{what}: a weight of shape {tuple(weight.shape)} cannot be broadcast to a global"
                f" input of shape {tuple(sizes)}"
            )
        slices.append(slice(None) if size == 1 else slice(*blocks[dim][P_x.index[dim]]))
    return weight[tuple(slices)]

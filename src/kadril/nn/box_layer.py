"""Box layers: every output is made of a box of inputs, as in pooling and interpolation.

    input blocks     | . . . . . | . . . |            outputs are balanced, whatever the input is
    output blocks    | . . . | . . |
    boxes            [ . . . . . . ]                  what a worker's outputs are made of
                           [ . . . . . ]

A worker gets its box in one exchange (`kadril.ops.halo`), or cuts it out of its block where every
worker has its own already, and then does what one process would do with that box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from kadril.ops import HaloExchanger
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

__all__ = ["BoxLayer", "BoxPlan", "Reach", "per_dim", "refuse_data"]


class Reach(Protocol):
    """Which inputs outputs are made of, along one dim of the global tensor."""

    def output_size(self, size: int) -> int:
        """Outputs for so many inputs; less than 1 where there are too few."""

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """What some outputs are made of; may go beyond the edges, into padding."""


class Same:
    """The reach of a dim that a layer leaves alone: batch and channels."""

    def output_size(self, size: int) -> int:
        """As many."""
        return size

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Themselves."""
        return outputs


class BoxPlan(NamedTuple):
    """What becomes of blocks; all but the last four are the same on all workers.

    Attributes:
        sizes: of the global input.
        output_sizes: of the global output.
        blocks: for each dim, what each position along its axis has.
        outputs: the same, for its block of the output.
        needed: the same, for what that is made of.
        is_local: whether every worker has what it needs.
        exchanger: gets a worker what it needs.
        block: this worker's, for each dim.
        box: what it needs, for each dim.
        result: its block of the output, for each dim.
        derived: what else the layer has found out, for this worker.
    """

    sizes: list[int]
    output_sizes: list[int]
    blocks: list[list[Interval]]
    outputs: list[list[Interval]]
    needed: list[list[Interval]]
    is_local: bool
    exchanger: HaloExchanger
    block: list[Interval]
    box: list[Interval]
    result: list[Interval]
    derived: Any = None

    def gather(self, x: torch.Tensor, structure: Structure) -> torch.Tensor:
        """The box of this worker; collective over the partition. The adjoint adds up."""
        if not self.is_local:
            return self.exchanger.exchange(x, structure)
        if self.block == self.box:
            return x
        return x[
            tuple(
                slice(want.start - have.start, want.stop - have.start)
                for have, want in zip(self.block, self.box, strict=True)
            )
        ]


class BoxLayer(torch.nn.Module):
    """Base of the layers without parameters whose outputs are made of boxes of inputs.

    Attributes:
        P_x: where input and output are: an axis for each dim.
        what: the name of the layer in errors.
    """

    num_spatial: int
    torch_class: ClassVar[type[torch.nn.Module]]
    takes_unbatched: ClassVar[bool] = True

    def __init__(self, P_x: Partition, what: str | None = None) -> None:
        super().__init__()
        self.P_x = P_x
        self.what = what or type(self).__name__
        self._plans = PlanCache()
        wanted = [self.num_spatial + 2, *([self.num_spatial + 1] if self.takes_unbatched else [])]
        if P_x.dim not in wanted:
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs {self.num_spatial + 2}"
                f" axes: batch, channels and {self.num_spatial} spatial"
                + (", or one less for tensors without a batch" if self.takes_unbatched else "")
            )

    @classmethod
    def check_kind(cls, layer: torch.nn.Module) -> Any:
        """A torch layer of the kind that this one is the twin of.

        Raises:
            TypeError: it is of another kind.
        """
        if not isinstance(layer, cls.torch_class):
            raise TypeError(
                f"{cls.__name__}.of takes a torch.nn.{cls.torch_class.__name__}, got"
                f" {type(layer).__name__}"
            )
        return layer

    @property
    def first_spatial(self) -> int:
        """The first spatial dim."""
        return self.P_x.dim - self.num_spatial

    def reaches(self, sizes: Sequence[int], dtype: torch.dtype) -> Sequence[Reach]:
        """For each spatial dim; for a global input of these sizes, all dims included."""
        raise NotImplementedError

    def fill(self, dtype: torch.dtype) -> float:
        """What lies beyond the edges of the input."""
        return 0.0

    def replicates(self, dim: int, output_size: int) -> bool:
        """Whether all workers along an axis have the whole output along its dim."""
        return False

    def derive(self, plan: BoxPlan, dtype: torch.dtype) -> Any:
        """What a layer finds out once for a plan, and keeps with it."""
        return None

    def plan(self, structure: Structure) -> BoxPlan:
        """What becomes of blocks; pure arithmetic, the same on all workers.

        Raises:
            ValueError: the tensor does not fit to the partition or to the layer.
            MismatchError: the blocks do not make up a tensor.
        """
        return self._plans.get(structure, lambda: self._plan(structure))

    def _gather(self, x: torch.Tensor) -> tuple[torch.Tensor, BoxPlan]:
        structure = agree(self.P_x, x, self.what)
        plan = self.plan(structure)
        return plan.gather(x, structure), plan

    def _plan(self, structure: Structure) -> BoxPlan:
        blocks = structure.blocks(self.what)
        index = self.P_x.index
        if index is None:
            raise AssertionError("only workers of the partition come here")
        sizes = [have[-1].stop for have in blocks]
        spatial = self.reaches(sizes, structure.dtype)
        reaches = [*[Same()] * self.first_spatial, *spatial]
        output_sizes = [reach.output_size(n) for reach, n in zip(reaches, sizes, strict=True)]
        outputs, needed = [], []
        for dim, (size, reach) in enumerate(zip(sizes, reaches, strict=True)):
            results, inputs = self._along(dim, size, output_sizes[dim], reach)
            outputs.append(results)
            needed.append(inputs)
        is_local = all(
            have & want == want
            for haves, wants in zip(blocks, needed, strict=True)
            for have, want in zip(haves, wants, strict=True)
        )
        exchanger = HaloExchanger(
            self.P_x,
            [lambda _, wants=wants: wants for wants in needed],  # type: ignore[misc]
            fill=self.fill(structure.dtype),
            what=self.what,
        )
        mine = [at(each, index) for each in (blocks, needed, outputs)]
        plan = BoxPlan(sizes, output_sizes, blocks, outputs, needed, is_local, exchanger, *mine)
        return plan._replace(derived=self.derive(plan, structure.dtype))

    def _along(
        self, dim: int, size: int, output_size: int, reach: Reach
    ) -> tuple[list[Interval], list[Interval]]:
        """For each position along an axis, its outputs and what they are made of."""
        length = self.P_x.shape[dim]
        if self.replicates(dim, output_size) and length > 1:
            self._check_enough("input", dim, size, length)
            return [Interval(0, output_size)] * length, balanced_intervals(size, length)
        self._check_enough("output", dim, output_size, length)
        outputs = balanced_intervals(output_size, length)
        return outputs, [reach.inputs_of(each, size) for each in outputs]

    def _check_enough(self, side: str, dim: int, size: int, length: int) -> None:
        if size < length:
            raise ValueError(
                f"{self.what}: dim {dim} of the {side} has {size} elements, too few for the"
                f" {length} workers along axis {dim} of P_x = {text(self.P_x.shape)}"
            )


def at(intervals: Sequence[Sequence[Interval]], index: Sequence[int]) -> list[Interval]:
    """The box at a position."""
    return [along[position] for along, position in zip(intervals, index, strict=True)]


def per_dim(value: int | Sequence[int], num_dims: int, name: str, what: str) -> tuple[int, ...]:
    """A setting for each dim, where one number stands for all.

    Raises:
        ValueError: there are more or fewer.
    """
    values = (value,) * num_dims if isinstance(value, int) else tuple(int(each) for each in value)
    if len(values) == 1:
        values *= num_dims
    if len(values) != num_dims:
        raise ValueError(f"{what}: {name} must be a number or {num_dims} of them, got {value}")
    return values


def refuse_data(x: torch.Tensor, what: str) -> None:
    """Refuse a block of the input on a rank that has no part in it.

    Raises:
        ValueError: it has elements.
    """
    if x.numel():
        raise ValueError(
            f"{what}: this rank is not in the partition of the input, and holds a tensor of shape"
            f" {tuple(x.shape)}; give it a zero-volume tensor"
        )

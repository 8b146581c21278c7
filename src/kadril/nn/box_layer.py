"""Box layers: layers without parameters whose outputs are made of boxes of inputs.

Pools and interpolation. A worker gets the box that its block of the output is made of
(`kadril.ops.box_gather`), and then does with it what one process would do.

    y_r = f(box_r)          box_r = gather(x)_r            x* = gather*(f*(y*_r))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from kadril.nn.reach import Reach, plan_reaches
from kadril.nn.sharing import refuse_data
from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import BoxPlan, WorkerBoxes
from kadril.ops.calling import uncompiled
from kadril.ops.structure import Structure
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["BoxLayer", "per_dim"]


class BoxLayer(torch.nn.Module):
    """Base of the layers without parameters whose outputs are made of boxes of inputs.

    Attributes:
        P_x: where input and output are: an axis for each dim.
        what: the name of the layer in errors.
        gather: gives each worker the box that its outputs are made of.
    """

    num_spatial: int
    torch_class: ClassVar[type[torch.nn.Module]]
    takes_unbatched: ClassVar[bool] = True

    def __init__(self, P_x: Partition, what: str | None = None) -> None:
        super().__init__()
        self.P_x = P_x
        self.what = what or type(self).__name__
        self.gather = BoxGather(P_x, self._plan, self.what)
        wanted = [self.num_spatial + 2, *([self.num_spatial + 1] if self.takes_unbatched else [])]
        if P_x.dim not in wanted:
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs {self.num_spatial + 2}"
                f" axes: batch, channels and {self.num_spatial} spatial"
                + (", or one less for tensors without a batch" if self.takes_unbatched else "")
            )

    @classmethod
    def check_kind(cls, layer: torch.nn.Module) -> Any:
        """Return a torch layer of the kind that this one is the twin of.

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
        """Return the reach of each spatial dim, for a global input of these sizes, all dims."""
        raise NotImplementedError

    def fill(self, dtype: torch.dtype) -> float:
        """Return the value of what lies beyond the edges of the input."""
        return 0.0

    def replicates(self, dim: int, output_size: int) -> bool:
        """Whether all workers along an axis have the whole output along its dim."""
        return False

    def derive(self, mine: WorkerBoxes, dtype: torch.dtype) -> Any:
        """Find out what is kept with a plan; pure arithmetic."""
        return None

    def compute(
        self, box: torch.Tensor, mine: WorkerBoxes
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Make this worker's block of the output of its box."""
        raise NotImplementedError

    def nothing(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the result on a rank that has no part in the input."""
        return x.clone()

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Compute; collective over the partition.

        Args:
            x: this worker's block; a zero-volume tensor on other ranks.

        Returns:
            Its block of the output, and of the indices if asked for; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not match the partition or the layer; on every worker, before
                any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.P_x.active:
            refuse_data(x, self.what)
            return self.nothing(x)
        box, mine, _ = self.gather(x)
        y = self.compute(box, mine)
        return x.clone() if y is x else y

    def _plan(self, structure: Structure) -> BoxPlan:
        sizes = [along[-1].stop for along in structure.blocks(self.what)]
        plan = plan_reaches(
            structure,
            self.reaches(sizes, structure.dtype),
            self.what,
            fill=self.fill(structure.dtype),
            replicates=self.replicates,
        )
        if self.P_x.index is None:
            return plan
        derived = self.derive(plan.worker(self.P_x.index), structure.dtype)
        return dataclasses.replace(plan, derived=derived)


def per_dim(value: int | Sequence[int], num_dims: int, name: str, what: str) -> tuple[int, ...]:
    """Return a setting for each dim, where one number stands for all.

    Raises:
        ValueError: there are more or fewer.
    """
    values = (value,) * num_dims if isinstance(value, int) else tuple(int(each) for each in value)
    if len(values) == 1:
        values *= num_dims
    if len(values) != num_dims:
        raise ValueError(f"{what}: {name} must be a number or {num_dims} of them, got {value}")
    return values

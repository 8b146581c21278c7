"""Layer normalization of a tensor any of whose dims is cut among workers.

    P_x = 1 x 3        | x[n, 0..2] | x[n, 3..5] | x[n, 6..7] |      a row lies on three workers

    y[n, i] = weight[i] (x[n, i] - mean[n]) / sqrt(var[n] + eps) + bias[i]

The equations of both directions, and how far they are off, are in `norm/standardize.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from kadril.nn.norm.standardize import Rows, standardize, statistics_of
from kadril.nn.sharing import interval_here, refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedLayerNorm"]


class Plan(NamedTuple):
    """What follows from the structure of the input.

    Attributes:
        here: the part of the parameters that this worker uses.
        rows: which rows share statistics; None where they are whole here.
    """

    here: tuple[slice, ...]
    rows: Rows | None


class DistributedLayerNorm(torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` over the workers of a partition.

    Parameters are the sequential layer's, whole, on every worker; so is the `state_dict`.

    | | shape on each worker |
    |---|---|
    | x, y | block of (..., *normalized_shape) on `P_x`, cut along any dims |
    | weight, bias | normalized_shape |

    Args:
        P_x: one axis for each dim of the input.
        normalized_shape: global sizes of the last dims, over which to normalize.
        eps: added to the variance.
        elementwise_affine: whether there are weight and bias.
        bias: whether there is a bias, where there is a weight.
        device: of parameters.
        dtype: of parameters.
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: the last dims of the input are not `normalized_shape`, or it has not as many
            dims as `P_x` has axes.
        MismatchError: the blocks do not fit together.
        TypeError: the input is not of a floating-point dtype.
    """

    def __init__(
        self,
        P_x: Partition,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        what: str | None = None,
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, bias, device, dtype)
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({list(self.normalized_shape)})"
        self._plans = PlanCache()
        if P_x.dim < len(self.normalized_shape):
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs an axis for each dim of"
                " the input"
            )

    @classmethod
    def of(cls, layer: torch.nn.LayerNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """The partitioned twin of a layer, with its parameters themselves."""
        twin = cls(
            P_x,
            list(layer.normalized_shape),
            layer.eps,
            layer.elementwise_affine,
            layer.bias is not None,
            device="meta",
            what=what,
        )
        twin.weight, twin.bias = layer.weight, layer.bias
        return twin.train(layer.training)

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Normalize; collective over the partition. See the class."""
        if not self.P_x.active:
            refuse_data(input, self.what)
            return input.clone()
        structure = agree(self.P_x, input, self.what)
        plan = self._plans.get(structure, lambda: self._plan(structure))
        weight, bias = (
            None if each is None else each[plan.here]
            for each in spread_together(
                [self.weight, self.bias], self.P_x.group, what=f"{self.what} parameters"
            )
        )
        if plan.rows is None:
            return functional.layer_norm(input, list(self.normalized_shape), weight, bias, self.eps)
        num_lead = input.dim() - len(self.normalized_shape)
        matrix = input.reshape(math.prod(input.shape[:num_lead]), math.prod(input.shape[num_lead:]))
        y = standardize(
            matrix,
            None,
            None,
            statistics_of(matrix, plan.rows, self.what),
            plan.rows,
            eps=self.eps,
            requires_grad=structure.requires_grad,
            what=self.what,
        ).view(input.shape)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(input.dtype)

    def extra_repr(self) -> str:
        """The settings, as torch shows them, and where the layer is."""
        return f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"

    def _plan(self, structure: Structure) -> Plan:
        blocks = structure.blocks(self.what)
        if not structure.dtype.is_floating_point:
            raise TypeError(f"{self.what}: cannot normalize a tensor of {structure.dtype}")
        num_lead = self.P_x.dim - len(self.normalized_shape)
        for dim, size in enumerate(self.normalized_shape, start=num_lead):
            if blocks[dim][-1].stop != size:
                raise ValueError(
                    f"{self.what}: the input has {blocks[dim][-1].stop} elements in dim {dim},"
                    f" along axis {dim} of {text(self.P_x.shape)}; the layer has {size}"
                )
        axes = list(range(num_lead, self.P_x.dim))
        here = tuple(slice(*interval_here(self.P_x, blocks, axis)) for axis in axes)
        group = self.P_x.axis_group(axes)
        if group.transport.size == 1:
            return Plan(here, None)
        num_rows = math.prod(interval_here(self.P_x, blocks, dim).size for dim in range(num_lead))
        counts = torch.tensor(
            [
                math.prod(structure.shapes[self.P_x.ranks.index(rank)][num_lead:])
                for rank in group.ranks
            ],
            dtype=torch.float64,
        )
        return Plan(here, Rows(group, torch.arange(num_rows), counts[:, None].expand(-1, num_rows)))

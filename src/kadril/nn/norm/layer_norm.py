"""Layer normalization of a tensor any of whose dims is split among workers.

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

from kadril.nn.norm.partitioned_norm import LastDimsNorm
from kadril.nn.norm.standardize import Rows
from kadril.nn.sharing import interval_here
from kadril.ops.structure import Structure
from kadril.partition import Partition

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedLayerNorm"]


class LayerNormPlan(NamedTuple):
    """Plan for one structure of the input; computed once.

    Attributes:
        here: the part of the parameters that this worker uses.
        rows: which rows share statistics; None where they are whole here.
    """

    here: tuple[slice, ...]
    rows: Rows | None


class DistributedLayerNorm(LastDimsNorm, torch.nn.LayerNorm):
    """`torch.nn.LayerNorm` over the workers of a partition.

    Parameters are the sequential layer's, whole, on every worker; so is the `state_dict`.

    | | shape on each worker |
    |---|---|
    | x, y | block of (..., *normalized_shape) on `P_x`, split along any dims |
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
        ValueError: the last dims of the input are not `normalized_shape`, or it does not have
            one dim for each axis of `P_x`.
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
        self._lie_on(P_x, what, f"{list(self.normalized_shape)}")

    @classmethod
    def of(cls, layer: torch.nn.LayerNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a layer, which has the very same parameters."""
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

    def _normalize(
        self, x: torch.Tensor, plan: LayerNormPlan, structure: Structure
    ) -> torch.Tensor:
        weight, bias = self._share([self.weight, self.bias], plan.here)
        if plan.rows is None:
            return functional.layer_norm(x, list(self.normalized_shape), weight, bias, self.eps)
        lead, last = x.shape[: self.num_lead], x.shape[self.num_lead :]
        y = self._standardize(
            x.reshape(math.prod(lead), math.prod(last)),
            None,
            None,
            plan.rows,
            eps=self.eps,
            requires_grad=structure.requires_grad,
        ).view(x.shape)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias).to(x.dtype)

    def _plan(self, structure: Structure) -> LayerNormPlan:
        blocks = self._blocks_of_floats(structure)
        here = self._last_dims_here(blocks)
        group = self.P_x.axis_group(range(self.num_lead, self.P_x.dim))
        if group.transport.size == 1:
            return LayerNormPlan(here, None)
        lead = range(self.num_lead)
        num_rows = math.prod(interval_here(self.P_x, blocks, dim).size for dim in lead)
        shapes = [structure.shapes[self.P_x.ranks.index(rank)] for rank in group.ranks]
        counts = torch.tensor(
            [math.prod(shape[self.num_lead :]) for shape in shapes], dtype=torch.float64
        )
        return LayerNormPlan(
            here, Rows(group, torch.arange(num_rows), counts[:, None].expand(-1, num_rows))
        )

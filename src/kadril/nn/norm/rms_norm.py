"""Root-mean-square normalization of a tensor any of whose dims is split among workers.

    P_x = 1 x 3        | x[n, 0..2] | x[n, 3..5] | x[n, 6..7] |      a row lies on three workers

    y[n, i] = weight[i] x[n, i] / sqrt(mean_i x[n, i]^2 + eps)

The sum of squares of a row is added up over the workers that have parts of it; so are, in the
backward pass, the gradients of that sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from kadril import ops
from kadril.nn.loss.loss_layer import wide
from kadril.nn.norm.partitioned_norm import LastDimsNorm
from kadril.ops.calling import uncompiled
from kadril.ops.structure import Structure
from kadril.partition import Partition

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedRMSNorm"]


class DistributedRMSNorm(LastDimsNorm, torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` over the workers of a partition.

    The parameter is the sequential layer's, whole, on every worker; so is the `state_dict`.

    | | shape on each worker |
    |---|---|
    | x, y | block of (..., *normalized_shape) on `P_x`, split along any dims |
    | weight | normalized_shape |

    Args:
        P_x: one axis for each dim of the input.
        normalized_shape: global sizes of the last dims, over which to normalize.
        eps: added to the mean of squares; the smallest step from 1 of the dtype where None.
        elementwise_affine: whether there is a weight.
        device: of the parameter.
        dtype: of the parameter.
        what: name of the layer in errors.

    Raises (when called, on all workers):
        ValueError: the last dims of the input are not `normalized_shape`, or it does not have
            one dim for each axis of `P_x`.
        MismatchError: the blocks do not match each other.
    """

    def __init__(
        self,
        P_x: Partition,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        what: str | None = None,
    ) -> None:
        shape = normalized_shape if isinstance(normalized_shape, int) else list(normalized_shape)
        super().__init__(shape, eps, elementwise_affine, device, dtype)
        self._lie_on(P_x, what, f"{list(self.normalized_shape)}")

    @classmethod
    def of(cls, layer: torch.nn.RMSNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """Return the partitioned twin of a layer, which has the very same parameter."""
        settings = (list(layer.normalized_shape), layer.eps, layer.elementwise_affine)
        twin = cls(P_x, *settings, device="meta", what=what)
        twin.weight = layer.weight
        return twin.train(layer.training)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize this worker's block; collective over the partition. See the class."""
        return super().forward(x)

    def _plan(self, structure: Structure) -> tuple[slice, ...]:
        return self._last_dims_here(structure.blocks(self.what))

    def _normalize(
        self, x: torch.Tensor, plan: tuple[slice, ...], structure: Structure
    ) -> torch.Tensor:
        (weight,) = self._share([self.weight], plan)
        axes = list(range(self.num_lead, self.P_x.dim))
        group = self.P_x.axis_group(axes)
        sizes = self.normalized_shape
        if group.transport.size == 1:
            return functional.rms_norm(x, sizes, weight, self.eps)
        squares = wide(x).square().sum(axes, keepdim=True)
        squares = ops.spread(ops.total(squares, group, what=self.what), group, what=self.what)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        y = (wide(x) * torch.rsqrt(squares / math.prod(sizes) + eps)).to(x.dtype)
        return y if weight is None else y * weight

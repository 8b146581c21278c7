"""Root-mean-square normalization of a tensor any of whose dims is cut among workers.

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
from kadril.nn.loss.layer import wide
from kadril.nn.sharing import interval_here, refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Partition
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedRMSNorm"]


class DistributedRMSNorm(torch.nn.RMSNorm):
    """`torch.nn.RMSNorm` over the workers of a partition.

    The parameter is the sequential layer's, whole, on every worker; so is the `state_dict`.

    | | shape on each worker |
    |---|---|
    | x, y | block of (..., *normalized_shape) on `P_x`, cut along any dims |
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
        ValueError: the last dims of the input are not `normalized_shape`, or it has not as many
            dims as `P_x` has axes.
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
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({list(self.normalized_shape)})"
        if P_x.dim < len(self.normalized_shape):
            raise ValueError(
                f"{self.what}: P_x has shape {text(P_x.shape)}; it needs an axis for each dim of"
                " the input"
            )

    @classmethod
    def of(cls, layer: torch.nn.RMSNorm, P_x: Partition, *, what: str | None = None) -> Self:
        """The partitioned twin of a layer, with its parameter itself."""
        settings = (list(layer.normalized_shape), layer.eps, layer.elementwise_affine)
        twin = cls(P_x, *settings, device="meta", what=what)
        twin.weight = layer.weight
        return twin.train(layer.training)

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize; collective over the partition. See the class."""
        if not self.P_x.active:
            refuse_data(x, self.what)
            return x.clone()
        blocks = agree(self.P_x, x, self.what).blocks(self.what)
        num_lead = self.P_x.dim - len(self.normalized_shape)
        sizes = tuple(have[-1].stop for have in blocks[num_lead:])
        if sizes != tuple(self.normalized_shape):
            raise ValueError(
                f"{self.what}: the last dims of the input, on a partition of shape"
                f" {text(self.P_x.shape)}, are {sizes}; the layer has"
                f" {tuple(self.normalized_shape)}"
            )
        axes = list(range(num_lead, self.P_x.dim))
        here = tuple(slice(*interval_here(self.P_x, blocks, axis)) for axis in axes)
        (weight,) = spread_together([self.weight], self.P_x.group, what=f"weight of {self.what}")
        weight = None if weight is None else weight[here]
        group = self.P_x.axis_group(axes)
        if group.transport.size == 1:
            return functional.rms_norm(x, sizes, weight, self.eps)
        squares = wide(x).square().sum(axes, keepdim=True)
        squares = ops.spread(ops.total(squares, group, what=self.what), group, what=self.what)
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        y = (wide(x) * torch.rsqrt(squares / math.prod(sizes) + eps)).to(x.dtype)
        return y if weight is None else y * weight

    def extra_repr(self) -> str:
        """The settings, as torch shows them, and where the layer is."""
        return f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"

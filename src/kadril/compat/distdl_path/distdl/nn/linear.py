"""The linear layer, with weights in blocks.

P_x  1    x P_fi         x --broadcast--> sublinear on P_w --sum-reduce--> y
P_y  1    x P_fo
P_w  P_fo x P_fi         biases in column 0
"""

from __future__ import annotations

import torch

from kadril import nn

from ..backends.mpi.common_group import in_common_group
from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape
from .adapter import Stateless, as_zero_volume, stateless
from .module import Module

__all__ = ["DistributedLinear"]


class DistributedLinear(Module):
    """A linear layer of tensors with two dims.

    Args:
        P_x: of the input, 1 x P_fi.
        P_y: of the output, 1 x P_fo.
        P_w: of the weights, P_fo x P_fi.
        in_features: of the global input.
        out_features: of the global output.
        bias: whether there is one.

    Attributes:
        sublinear: the block of this worker, on `P_w`; it has a bias in column 0.

    Raises:
        ValueError: the partitions do not match each other; on all ranks.
    """

    def __init__(
        self,
        P_x: MPICartesianPartition,
        P_y: MPICartesianPartition,
        P_w: MPICartesianPartition,
        in_features: int,
        out_features: int,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.P_x, self.P_y, self.P_w = P_x, P_y, P_w
        self.in_features, self.out_features = int(in_features), int(out_features)
        self.bias = bool(bias)
        if len(P_w.shape) != 2:  # what else may be wrong, `kadril.nn` finds on all ranks
            raise ValueError(
                f"{type(self).__name__}: P_w must be P_fo x P_fi, with 2 axes; got"
                f" {[int(length) for length in P_w.shape]}"
            )
        if P_w.active:
            num_out, num_in = compute_subshape(
                P_w.shape, P_w.index, [self.out_features, self.in_features]
            ).tolist()
            has_bias = self.bias and bool(P_w.index[-1] == 0)
            self.sublinear = torch.nn.Linear(num_in, num_out, bias=has_bias)
        partitions = in_common_group(P_x, P_y, P_w)
        self._multiply: Stateless | None = None
        if partitions is not None:
            layer = torch.nn.Linear(in_features, out_features, self.bias, device="meta")
            twin = nn.DistributedLinear.of(layer, *partitions, what=type(self).__name__)
            self._multiply = stateless(twin)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the block of the output on `P_y`."""
        if self._multiply is None or not any(P.active for P in (self.P_x, self.P_y, self.P_w)):
            return input.clone()
        parameters = dict(self.sublinear.named_parameters()) if self.P_w.active else {}
        return self._multiply(parameters, input if self.P_x.active else as_zero_volume(input))

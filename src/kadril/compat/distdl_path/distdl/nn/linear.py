"""The linear layer, with weights in blocks.

P_x  1    x P_fi         x --broadcast--> sublinear on P_w --sum-reduce--> y
P_y  1    x P_fo
P_w  P_fo x P_fi         biases in column 0
"""

from __future__ import annotations

import torch

from ..backends.mpi.partition import MPICartesianPartition
from ..utilities.slicing import compute_subshape
from .broadcast import Broadcast
from .module import Module
from .sum_reduce import SumReduce

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
        ValueError: the partitions do not fit together.
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
        self.x_broadcast = Broadcast(P_x, P_w)
        self.y_sum_reduce = SumReduce(P_w, P_y, transpose_src=True)
        if P_w.active:
            num_out, num_in = compute_subshape(
                P_w.shape, P_w.index, [self.out_features, self.in_features]
            ).tolist()
            has_bias = self.bias and bool(P_w.index[-1] == 0)
            self.sublinear = torch.nn.Linear(num_in, num_out, bias=has_bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The block of the output on `P_y`."""
        if not (self.P_x.active or self.P_y.active or self.P_w.active):
            return input.clone()
        x = self.x_broadcast(input)
        if self.P_w.active:
            x = self.sublinear(x)
        y: torch.Tensor = self.y_sum_reduce(x)
        return y

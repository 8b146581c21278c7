"""Linear layers of a tensor whose last dim, and any other, may be split among workers.

| form | partitions | what each worker holds of the weight |
|---|---|---|
| copies | P_x = ... x f, of input and output | all of it |
| column parallel | P_x = ... x 1, P_w = ... x out x 1, P_y = ... x out | its rows |
| row parallel | P_x = ... x in, P_w = ... x 1 x in, P_y = ... x 1 | its columns |
| grid | P_x = ... x in, P_w = ... x out x in, P_y = ... x out | its block |

With copies, where features are split, every worker gets all input features of its rows and
computes its block of the output features:

    y[n, block] = W[block, :] x[n, :] + b[block]

    x*[n, i] = sum over workers of W[block, i]^T y*[n, block]        W* = sum over workers

For the other forms, see `linear_blocks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from kadril import ops
from kadril.nn.linear_blocks import LinearBlocks, first_along_last_axis
from kadril.nn.sharing import refuse_data, same_on_all, spread_together
from kadril.nn.split_state import SplitParameters
from kadril.ops.calling import uncompiled
from kadril.ops.structure import agree
from kadril.partition import Interval, Partition, balanced_intervals
from kadril.partition.pairing import text

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedLinear"]


class DistributedLinear(SplitParameters, torch.nn.Linear):
    """`torch.nn.Linear` over the workers of a partition; tensors of any number of dims.

    Parameters are initialized by torch, then copied from the first worker to all. Without `P_w`
    they are the sequential layer's, whole, on every worker. With it, `weight` and `bias` are this
    worker's blocks, None where it has none (the first column of workers has the bias); making,
    saving and loading such a layer is collective over the world, and its `state_dict` has whole
    parameters on each rank, so that it can be loaded on any partition.

    | | shape on each worker |
    |---|---|
    | x | block of (..., in_features) on `P_x`; blocks may be of any size |
    | y | balanced block of (..., out_features) on `P_x`, or on `P_y` |

    Args:
        P_x: one axis for each dim of the input.
        in_features: of the whole input.
        out_features: of the whole output.
        bias: whether there is one.
        device: of parameters.
        dtype: of parameters.
        P_y: where the output is, if the weight is split.
        P_w: where the weight is: output by input features, after the axes of other dims.
        what: name of the layer in errors.

    Raises:
        ValueError: the partitions do not match each other or the layer; or, when called, the
            input does not have `in_features` features, or one dim for each axis of `P_x`; on all
            workers.
        MismatchError (when called): the blocks do not fit together.
    """

    def __init__(
        self,
        P_x: Partition,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        what: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_up(P_x, P_y, P_w, what)
        same_on_all(P_x if P_w is None else P_w, [self.weight, self.bias], what=self.what)
        if self.blocks is not None:
            self._keep_blocks(self.blocks.split, self)

    @classmethod
    def of(
        cls,
        layer: torch.nn.Linear,
        P_x: Partition,
        P_y: Partition | None = None,
        P_w: Partition | None = None,
        *,
        what: str | None = None,
    ) -> Self:
        """Return the partitioned twin of a layer: with its own parameters, or with blocks of them.

        Args:
            layer: the torch layer; the same on all ranks.
            P_x: where the input is.
            P_y: where the output is, if the weight is to be split.
            P_w: where the weight is, if it is to be split.
            what: name of the layer in errors.
        """
        settings = (layer.in_features, layer.out_features, layer.bias is not None)
        twin = cls(P_x, *settings, device="meta", P_y=P_y, P_w=P_w, what=what)
        if twin.blocks is None:
            twin.weight, twin.bias = layer.weight, layer.bias
        else:
            twin._keep_blocks(twin.blocks.split, layer)
        return twin.train(layer.training)

    @classmethod
    def column_parallel(
        cls, P: Partition, in_features: int, out_features: int, bias: bool = True, **options: Any
    ) -> Self:
        """Return a layer with split output features: each worker has some rows of the weight.

        Args:
            P: ... x workers. The output lies on it; the input, whose features are whole, on the
                first of the workers along its last axis.
            in_features: see the class.
            out_features: see the class.
            bias: see the class.
            options: `device`, `dtype`, `what`.
        """
        P_x = first_along_last_axis(P)
        P_w = P.create_cartesian_topology_partition([*P.shape, 1])
        return cls(P_x, in_features, out_features, bias, P_y=P, P_w=P_w, **options)

    @classmethod
    def row_parallel(
        cls, P: Partition, in_features: int, out_features: int, bias: bool = True, **options: Any
    ) -> Self:
        """Return a layer with split input features: each worker has some columns of the weight.

        Args:
            P: ... x workers. The input lies on it; the output, whose features are whole, on the
                first of the workers along its last axis.
            in_features: see the class.
            out_features: see the class.
            bias: see the class.
            options: `device`, `dtype`, `what`.
        """
        P_y = first_along_last_axis(P)
        P_w = P.create_cartesian_topology_partition([*P.shape[:-1], 1, P.shape[-1]])
        return cls(P, in_features, out_features, bias, P_y=P_y, P_w=P_w, **options)

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Compute y = x W^T + b; collective over the workers. See the class."""
        if self.blocks is not None:
            return self.blocks(input, self.weight, self.bias)
        if not self.P_x.active:
            refuse_data(input, self.what)
            return input.clone()
        structure = agree(self.P_x, input, self.what)
        features = structure.blocks(self.what)[-1]
        if features[-1].stop != self.in_features:
            raise ValueError(
                f"{self.what}: the input has {features[-1].stop} features in its last dim, along"
                f" axis {self.P_x.dim - 1} of {text(self.P_x.shape)}; the layer has"
                f" {self.in_features}"
            )
        weight = ops.spread(self.weight, self.P_x.group, what=f"weight of {self.what}")
        (bias,) = spread_together([self.bias], self.P_x.group, what=f"bias of {self.what}")
        if self.outputs is not None and self.P_x.index is not None:
            input = self.gatherer.exchange(input, structure)  # noqa: A001
            here = slice(*self.outputs[self.P_x.index[-1]])
            weight, bias = weight[here], None if bias is None else bias[here]
        return functional.linear(input, weight, bias)

    def extra_repr(self) -> str:
        """Show the settings, as torch does, and where the layer lies."""
        shown = f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"
        if self.blocks is None:
            return shown
        workers = self.blocks.workers.shape
        return f"{shown}, P_y={text(self.blocks.P_y.shape)}, P_w={text(workers)}"

    # ---- details --------------------------------------------------------------------------------

    def _set_up(
        self, P_x: Partition, P_y: Partition | None, P_w: Partition | None, what: str | None
    ) -> None:
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({self.in_features}, {self.out_features})"
        self.blocks: LinearBlocks | None = None
        self.outputs: list[Interval] | None = None
        if (P_y is None) != (P_w is None):
            raise ValueError(f"{self.what}: give both P_y, of the output, and P_w, of the weight")
        if P_y is not None and P_w is not None:
            sizes = (self.in_features, self.out_features, self.bias is not None)
            self.blocks = LinearBlocks(P_x, P_y, P_w, *sizes, self.what)
        elif P_x.shape[-1] > 1:
            if self.out_features < P_x.shape[-1]:
                raise ValueError(
                    f"{self.what}: out_features={self.out_features} are too few for"
                    f" {P_x.shape[-1]} workers along axis {P_x.dim - 1} of {text(P_x.shape)}"
                )
            self.outputs = balanced_intervals(self.out_features, P_x.shape[-1])
            whole = Interval(0, self.in_features)
            needs = [*[None] * (P_x.dim - 1), lambda blocks: [whole] * len(blocks)]
            self.gatherer = ops.HaloExchanger(P_x, needs, what=f"input of {self.what}")

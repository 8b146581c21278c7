"""Embeddings of indices whose dims are split among workers; the table is whole, or split by rows.

    indices    P_x = ... x                    y[n, :] = W[x[n], :]
    vectors    P_x = ... x 1, one dim more    W*[v, :] = sum over all n with x[n] = v of y*[n, :]

With P_w = ... x v, each worker along the last axis has some rows of the table:

         x   --broadcast-->   rows that are here, else 0   --sum-reduce-->   y
                              (one worker has each)

The sum-reduce's adjoint is a broadcast: every worker gets y*, and takes what is for its rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from kadril import ops
from kadril.nn.linear_blocks import first_along_last_axis
from kadril.nn.sharing import refuse_data, same_on_all
from kadril.nn.split_state import SplitParameters, SplitWeight
from kadril.ops.calling import apply, uncompiled
from kadril.ops.structure import agree
from kadril.partition import Group, Interval, Partition, balanced_intervals
from kadril.partition.pairing import text
from kadril.transport.agreement import raise_on_all

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DistributedEmbedding"]


class DistributedEmbedding(SplitParameters, torch.nn.Embedding):
    """`torch.nn.Embedding` over the workers of a partition.

    The table is initialized by torch, then copied from the first worker to all. Without `P_w` it is
    the sequential layer's, whole, on every worker. With it, `weight` is this worker's block of
    rows, None where it has none; making, saving and loading such a layer is collective over the
    world, and its `state_dict` has the whole table on each rank.

    `max_norm` and `scale_grad_by_freq` consider the indices of all workers, as one process would.

    | | shape on each worker |
    |---|---|
    | x | block of the indices, int64 or int32, on `P_x` |
    | y | the same block, with embedding_dim as another dim; a zero-volume tensor on other ranks |

    Args:
        P_x: one axis for each dim of the indices.
        num_embeddings: rows of the whole table.
        embedding_dim: number of columns.
        padding_idx: index whose row gets no gradient.
        max_norm: rows that are looked up are scaled down to this norm, in place.
        norm_type: of that norm.
        scale_grad_by_freq: whether gradients are divided by how often an index is in the input.
        sparse: must be False: gradients of copies are summed, which is for dense ones.
        device: of the table.
        dtype: of the table.
        P_w: where rows are, if the table is split: the axes of `P_x`, and one for the rows.
        what: name of the layer in errors.

    Raises:
        ValueError: the partitions do not match each other or the layer; or, when called, the
            indices do not have one dim for each axis of `P_x`; on all workers.
        IndexError (when called): an index that does not exist; ValueError on other workers.
        TypeError (when called): indices of another dtype.
    """

    def __init__(
        self,
        P_x: Partition,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        P_w: Partition | None = None,
        what: str | None = None,
    ) -> None:
        super().__init__(
            num_embeddings,
            embedding_dim,
            padding_idx,
            max_norm,
            norm_type,
            scale_grad_by_freq,
            device=device,
            dtype=dtype,
        )
        self.P_x = P_x
        self.what = what or f"{type(self).__name__}({num_embeddings}, {embedding_dim})"
        if sparse:
            raise ValueError(f"{self.what}: sparse gradients are not supported; use sparse=False")
        self.rows: Rows | None = None
        if P_w is not None:
            self.rows = Rows(P_x, P_w, num_embeddings, embedding_dim, self.what)
        if self.weight.device.type != "meta":
            same_on_all(P_x if P_w is None else P_w, [self.weight], what=self.what)
        if self.rows is not None:
            self._keep_blocks(self.rows.split, self)

    @classmethod
    def of(
        cls,
        layer: torch.nn.Embedding,
        P_x: Partition,
        P_w: Partition | None = None,
        *,
        what: str | None = None,
    ) -> Self:
        """Return the partitioned twin of a layer: with its own table, or with rows of it.

        Raises:
            ValueError: the layer has sparse gradients.
        """
        twin = cls(
            P_x,
            layer.num_embeddings,
            layer.embedding_dim,
            layer.padding_idx,
            layer.max_norm,
            layer.norm_type,
            layer.scale_grad_by_freq,
            layer.sparse,
            device="meta",
            P_w=P_w,
            what=what,
        )
        if twin.rows is None:
            twin.weight = layer.weight
        else:
            twin._keep_blocks(twin.rows.split, layer)
        return twin.train(layer.training)

    @classmethod
    def vocabulary_parallel(
        cls, P: Partition, num_embeddings: int, embedding_dim: int, **options: Any
    ) -> Self:
        """Return a layer with split rows: each worker has some of them.

        Args:
            P: the axes of the indices, and one for the rows. Indices and vectors lie on the first
                of the workers along that one.
            num_embeddings: see the class.
            embedding_dim: see the class.
            options: others of the class.
        """
        first = first_along_last_axis(P)
        P_x = first.create_cartesian_topology_partition(P.shape[:-1])
        return cls(P_x, num_embeddings, embedding_dim, P_w=P, **options)

    @uncompiled
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Look up vectors; collective over the workers. See the class."""
        everyone = self.P_x if self.rows is None else self.rows.everyone
        if not everyone.active:
            refuse_data(input, self.what)
            return ops.zero_volume_tensor(
                dtype=self.weight_dtype, requires_grad=torch.is_grad_enabled()
            )
        structure = agree(everyone, input, self.what, owners=self.P_x)
        structure.blocks(self.what)
        if structure.dtype not in (torch.int64, torch.int32):
            raise TypeError(
                f"{self.what}: indices must be of torch.int64 or torch.int32, got {structure.dtype}"
            )
        raise_on_all(everyone.transport, self.what, self._find_wrong(input), ValueError)
        if self.rows is not None:
            return self._look_up_rows(input, self.rows)
        if self.P_x.size == 1:
            return super().forward(input)
        weight = self._prepared(self.weight, input, self.P_x.group)
        weight = ops.spread(weight, self.P_x.group, what=f"weight of {self.what}")
        return functional.embedding(input, weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Show the settings, as torch does, and where the layer lies."""
        shown = f"{super().extra_repr()}, P_x={text(self.P_x.shape)}"
        return shown if self.rows is None else f"{shown}, P_w={text(self.rows.P_w.shape)}"

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of vectors, also on ranks without rows."""
        return self.weight.dtype if self.rows is None else self.like.dtype

    # ---- details --------------------------------------------------------------------------------

    def _find_wrong(self, x: torch.Tensor) -> IndexError | None:
        if not x.numel():
            return None
        low, high = (int(each) for each in torch.aminmax(x))
        if low < 0 or high >= self.num_embeddings:
            wrong = low if low < 0 else high
            return IndexError(
                f"{self.what}: index {wrong} is out of range; indices are 0 to"
                f" {self.num_embeddings - 1}"
            )
        return None

    def _prepared(
        self, weight: torch.Tensor, x: torch.Tensor, group: Group, first: int = 0
    ) -> torch.Tensor:
        """Return the table, renormalized and with scaled gradients, by the indices of all workers.

        Args:
            weight: the table, or rows of it.
            x: indices into it, counted from `first`; others are not looked at.
            group: the workers with the same rows and other indices.
            first: row of the whole table.
        """
        if self.max_norm is None and not self.scale_grad_by_freq:
            return weight
        here = x[(x >= first) & (x < first + weight.shape[0])].reshape(-1).long() - first
        counts = torch.bincount(here, minlength=weight.shape[0])
        group.transport.allreduce(counts, name=f"counts of {self.what}")
        if self.max_norm is not None:
            with torch.no_grad():
                used = counts.nonzero().reshape(-1)
                torch.embedding_renorm_(weight.detach(), used, self.max_norm, self.norm_type)
        if self.scale_grad_by_freq:
            weight = apply(ScaledGradientFunction, weight, 1.0 / counts.clamp(min=1))
        return weight

    def _look_up_rows(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        x = rows.broadcaster(x)
        weight = self.weight
        if rows.copies is None or rows.interval is None:
            y = torch.empty(0, dtype=self.like.dtype, device=self.like.device)
            return rows.reducer(y)
        first = rows.interval.start
        used = self._prepared(weight, x, rows.copies, first)
        used = ops.spread(used, rows.copies, what=f"weight of {self.what}")
        is_here = (x >= first) & (x < rows.interval.stop)
        padding = self.padding_idx
        if padding is not None:
            padding = padding - first if first <= padding < rows.interval.stop else None
        local = (x - first).where(is_here, torch.zeros_like(x))
        y = functional.embedding(local, used, padding)
        return rows.reducer(y * is_here[..., None])


class Rows:
    """Distribution of a table's rows over workers. Making one is collective over the world.

    Attributes:
        everyone: the workers of both partitions.
        interval: the rows of this worker; None where it has none.
        copies: the workers that have the same rows.
    """

    def __init__(
        self, P_x: Partition, P_w: Partition, num_rows: int, num_columns: int, what: str
    ) -> None:
        if P_w.shape[:-1] != P_x.shape:
            raise ValueError(
                f"{what}: P_x = {text(P_x.shape)} needs a P_w with the same axes and one more, for"
                f" the rows of the table; got {text(P_w.shape)}"
            )
        if num_rows < P_w.shape[-1]:
            raise ValueError(
                f"{what}: num_embeddings={num_rows} are too few for {P_w.shape[-1]} workers along"
                " the last axis of P_w"
            )
        self.P_w = P_w
        num_lead = math.prod(P_x.shape)
        owners = P_x.create_cartesian_topology_partition([num_lead, 1])
        holders = P_w.create_cartesian_topology_partition([num_lead, P_w.shape[-1]])
        self.everyone = P_x.create_partition_union(P_w)
        self.broadcaster = ops.Broadcaster(owners, holders, what=f"input of {what}")
        self.reducer = ops.SumReducer(holders, owners, what=f"output of {what}")
        intervals = balanced_intervals(num_rows, P_w.shape[-1])
        workers = P_w.create_cartesian_topology_partition([num_lead, P_w.shape[-1], 1])
        self.split = SplitWeight(
            workers, intervals, [Interval(0, num_columns)], (num_rows, num_columns), False
        )
        self.interval = None if holders.index is None else intervals[holders.index[1]]
        self.copies = holders.axis_group([0]) if holders.active else None


class ScaledGradientFunction(torch.autograd.Function):
    """The identity, with scaled gradients of rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """y = x."""
        ctx.save_for_backward(scale)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x*[v, :] = scale[v] y*[v, :]."""
        (scale,) = ctx.saved_tensors
        return grads[0] * scale.to(grads[0].dtype)[:, None], None

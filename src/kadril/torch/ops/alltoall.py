"""All-to-all: rank s sends its r-th part to rank r.

    y_r = [part_r(x_0); part_r(x_1); ...]      parts are rows, `splits[r]` of them for rank r

Backward is the all-to-all with the received splits, which sends every row back to where it was; and
its own backward sends them again.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch

from kadril._native import Completion
from kadril.engine import ProcessSetConductor, Verb
from kadril.shared_engine.handles import Finish, keep, synchronize
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.torch.ops.staging import conductor_of, outputs_of, staged

__all__ = ["alltoall", "alltoall_async"]

Splits = torch.Tensor | Sequence[int] | None


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Begin an all-to-all; `synchronize` gives (tensor, received_splits).

    Args:
        tensor: with at least one dim; all dims but the first are alike on all ranks.
        splits: rows for each rank of the set, a list or an int32 tensor; they add up to the rows of
            the tensor. None sends all ranks as many.
        name: what ranks know the operation by.
        process_set: the ranks that take part.

    Raises:
        ValueError: splits that do not fit the tensor or the set, a tensor without dims, the name is
            in use, or this rank is not in the set.
    """
    conductor = conductor_of(process_set)
    source = staged(tensor)
    rows = check_splits(source, splits, conductor)
    completion = conductor.submit(Verb.ALLTOALL, source, name=name, splits=rows)
    splits_device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")

    def finish(done: Completion) -> tuple[torch.Tensor, torch.Tensor]:
        (output,) = outputs_of(done, [tensor.device])
        received = torch.tensor(done.received_splits, dtype=torch.int32, device=splits_device)
        return output, received

    return keep(conductor, completion, Finish(finish), source)


def check_splits(tensor: torch.Tensor, splits: Splits, conductor: ProcessSetConductor) -> list[int]:
    """Rows for each member.

    Raises:
        ValueError: they do not fit.
    """
    if tensor.dim() == 0:
        raise ValueError("alltoall sends rows, and a tensor without dims has none")
    num_rows, size = tensor.shape[0], conductor.size
    if splits is None:
        if num_rows % size:
            raise ValueError(
                f"alltoall without splits sends all {size} ranks as many rows, and {num_rows} do"
                " not divide evenly; give splits"
            )
        return [num_rows // size] * size
    if isinstance(splits, torch.Tensor):
        if splits.dtype != torch.int32 or splits.dim() != 1:
            raise ValueError(
                f"splits must be a list or an int32 tensor of one dim, got {splits.dtype} of"
                f" {splits.dim()} dims"
            )
        rows = cast("list[int]", splits.tolist())
    else:
        rows = [operator.index(each) for each in splits]
    if len(rows) != size:
        raise ValueError(f"splits has {len(rows)} entries, and the process set {size} ranks")
    if min(rows) < 0:
        raise ValueError(f"splits must not be negative: {rows}")
    if sum(rows) != num_rows:
        raise ValueError(
            f"splits add up to {sum(rows)} rows, and the tensor has {num_rows}: {rows}"
        )
    return rows


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """All-to-all, differentiable. See `alltoall_async`.

    Returns:
        The tensor, and with `splits` also the received splits.
    """
    output, received = AllToAll.apply(  # type: ignore[no-untyped-call]
        tensor, splits, name, process_set
    )
    return output if splits is None else (output, received)


class AllToAll(torch.autograd.Function):
    """The differentiable all-to-all."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Splits, name: str | None, process_set: ProcessSet
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Send, and remember how much came from where."""
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received = received
        ctx.process_set = process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        """The gradients of the arguments; only the tensor has one."""
        result, _ = AllToAll.apply(  # type: ignore[no-untyped-call]
            gradients[0], ctx.received, None, ctx.process_set
        )
        return result, None, None, None

"""The ways to add up many tensors."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from harness.setting import Setting

import kadril.torch as hvd

__all__ = ["WORKLOADS", "Workload", "check_results", "make_settings"]


class Workload(NamedTuple):
    """Tensors to reduce: so many, of so many floats each.

    Attributes:
        name: of the workload.
        num_tensors: that are added up by one call.
        size: floats in each.
        gloo_share: gloo gets one of so many tensors, and its time is multiplied by it.
        num_samples: per turn.
    """

    name: str
    num_tensors: int
    size: int
    gloo_share: int
    num_samples: int


WORKLOADS = (
    Workload("500 tensors of 1000 floats", 500, 1000, gloo_share=10, num_samples=10),
    Workload("10 000 tensors of 16 floats", 10_000, 16, gloo_share=100, num_samples=2),
    Workload("one float", 1, 1, gloo_share=1, num_samples=100),
)


def by_name(tensors: list[torch.Tensor], names: list[str], op: int = hvd.Average) -> None:
    """Submit each, then wait for each."""
    handles = [
        hvd.allreduce_async_(tensor, name=name, op=op)
        for tensor, name in zip(tensors, names, strict=True)
    ]
    for handle in handles:
        hvd.synchronize(handle)


def by_group(tensors: list[torch.Tensor], name: str, op: int = hvd.Average) -> None:
    """All of them as one group."""
    hvd.grouped_allreduce_(tensors, name=name, op=op)


def one_by_one(tensors: list[torch.Tensor]) -> None:
    """Reduce one tensor after the other."""
    for tensor in tensors:
        dist.all_reduce(tensor)


def all_at_once(tensors: list[torch.Tensor]) -> None:
    """Start all reductions, then wait for all of them."""
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        if work is not None:
            work.wait()


def make_settings(workload: Workload) -> list[Setting]:
    """All settings of a workload; a call changes nothing, since all tensors are zero."""
    tensors = [torch.zeros(workload.size) for _ in range(workload.num_tensors)]
    part = tensors[:: workload.gloo_share]
    prefix = workload.name.replace(" ", ".")
    names = [f"{prefix}.{i}" for i in range(workload.num_tensors)]
    timed = partial(Setting, num_samples=workload.num_samples, num_warm_ups=2)
    settings = [
        timed("kadril", partial(by_name, tensors, names)),
        timed("gloo, one by one", partial(one_by_one, part), scale=workload.gloo_share),
    ]
    if workload.num_tensors > 1:
        settings += [
            timed("kadril, grouped", partial(by_group, tensors, f"{prefix}.group")),
            timed("gloo, all at once", partial(all_at_once, part), scale=workload.gloo_share),
        ]
    return settings


def check_results(workload: Workload) -> None:
    """Add up numbers that tell every rank and tensor apart.

    Raises:
        AssertionError: a sum is wrong.
    """
    rank, size = hvd.rank(), hvd.size()
    total = sum(range(size))
    names = [f"check.{workload.num_tensors}.{i}" for i in range(workload.num_tensors)]
    for add in (
        partial(by_name, names=names, op=hvd.Sum),
        partial(by_group, name=f"check.{workload.num_tensors}", op=hvd.Sum),
    ):
        tensors = [torch.full((workload.size,), float(i + rank)) for i in range(len(names))]
        add(tensors)
        for i, tensor in enumerate(tensors):
            if not bool((tensor == size * i + total).all()):
                raise AssertionError(
                    f"{workload.name}: tensor {i} begins with {tensor[0]}, not {size * i + total}"
                )

"""Random programs of named ops, and a one-process model that says what each rank should get.

A program is a list of steps. Every rank submits those of the process sets it is in, all of them
asynchronously, in an order of its own; and waits for them in another.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import torch
from exact import as_dtype, same
from hvd_model import OPS, gathered, given, reduced, share, values_of

import kadril.torch as hvd
from kadril.world import World

__all__ = ["KINDS", "Program", "Step", "run_program"]

KINDS = (
    "allreduce",
    "allreduce_",
    "grouped_allreduce",
    "allgather",
    "broadcast",
    "broadcast_",
    "alltoall",
    "reducescatter",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One op; what it needs beyond its kind is derived from `seed`, alike on every rank."""

    kind: str
    dtype: str
    op: str
    shape: tuple[int, ...]
    members: int  # which process set
    seed: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Steps, the orders of the ranks, and how many turns the whole is taken for."""

    steps: tuple[Step, ...]
    order: int
    num_turns: int


def member_lists(size: int) -> list[list[int]]:
    """The process sets that programs use; the first is the global one."""
    lists = [list(range(size)), list(range(size - 1)), list(range(1, size))]
    return [ranks for i, ranks in enumerate(lists) if ranks and ranks not in lists[:i]]


def run_program(world: World, program: Program) -> None:
    """Run a program and compare all results with the model."""
    hvd.init(process_sets="dynamic")
    try:
        lists = member_lists(world.size)
        sets = [hvd.global_process_set, *(hvd.add_process_set(ranks) for ranks in lists[1:])]
        dice = random.Random(program.order * 100 + world.rank)
        for turn in range(program.num_turns):
            run_turn(world, program, turn, list(zip(lists, sets, strict=True)), dice)
        hvd.barrier()
    finally:
        hvd.shutdown()


def run_turn(
    world: World,
    program: Program,
    turn: int,
    groups: list[tuple[list[int], Any]],
    dice: random.Random,
) -> None:
    """Submit all steps in one order, and wait for them in another."""
    mine = [
        (place, step, *groups[step.members % len(groups)])
        for place, step in enumerate(program.steps)
        if world.rank in groups[step.members % len(groups)][0]
    ]
    dice.shuffle(mine)
    handles = {
        place: submit(step, f"step {place}", world.rank, ranks, chosen)
        for place, step, ranks, chosen in mine
    }
    dice.shuffle(mine)
    for place, step, ranks, _ in mine:
        results = hvd.synchronize(handles[place])
        results = results if isinstance(results, tuple) else (results,)
        wanted = model(step, world.rank, ranks)
        for result, expected in zip(results, wanted, strict=True):
            assert same(result, expected), f"turn {turn}, step {place}, members {ranks}: {step}"


def rows(step: Step, ranks: list[int]) -> list[int]:
    """Rows that each member gives to an allgather."""
    dice = random.Random(step.seed)
    return [dice.randrange(4) for _ in ranks]


def split_table(step: Step, ranks: list[int]) -> list[list[int]]:
    """Rows from each member to each member of an alltoall."""
    dice = random.Random(step.seed)
    return [[dice.randrange(3) for _ in ranks] for _ in ranks]


def submit(step: Step, name: str, rank: int, ranks: list[int], process_set: Any) -> int:
    """Start a step on a rank."""
    place = ranks.index(rank)
    common: dict[str, Any] = {"name": name, "process_set": process_set}
    shape, root = step.shape, ranks[step.seed % len(ranks)]
    trailing = shape[1:]
    tensor = given(step.dtype, step.op, rank, *shape)
    if step.kind in ("allreduce", "allreduce_"):
        start = hvd.allreduce_async if step.kind == "allreduce" else hvd.allreduce_async_
        return start(tensor, op=OPS[step.op], **common)
    if step.kind == "grouped_allreduce":
        other = given(step.dtype, step.op, rank, step.seed % 5)
        return hvd.grouped_allreduce_async([tensor, other], op=OPS[step.op], **common)
    if step.kind == "allgather":
        part = given(step.dtype, step.op, rank, rows(step, ranks)[place], *trailing)
        return hvd.allgather_async(part, **common)
    if step.kind == "alltoall":
        splits = split_table(step, ranks)[place]
        whole = given(step.dtype, step.op, rank, sum(splits), *trailing)
        return hvd.alltoall_async(whole, splits, **common)
    if step.kind == "reducescatter":
        scattered = given(step.dtype, "sum", rank, *(shape or (3,)))
        return hvd.reducescatter_async(scattered, op=hvd.Sum, **common)
    if step.kind == "broadcast":
        return hvd.broadcast_async(tensor, root, **common)
    return hvd.broadcast_async_(tensor, root, **common)


def model(step: Step, rank: int, ranks: list[int]) -> tuple[torch.Tensor, ...]:
    """Return what a rank should get."""
    name, op, place, shape = step.dtype, step.op, ranks.index(rank), step.shape
    trailing = shape[1:]
    if step.kind in ("allreduce", "allreduce_"):
        return (reduced(name, op, ranks, *shape),)
    if step.kind == "grouped_allreduce":
        return reduced(name, op, ranks, *shape), reduced(name, op, ranks, step.seed % 5)
    if step.kind == "allgather":
        return (gathered(name, ranks, rows(step, ranks), *trailing, op=op),)
    if step.kind == "alltoall":
        return model_alltoall(step, place, ranks)
    if step.kind == "reducescatter":
        whole = reduced(name, "sum", ranks, *(shape or (3,)))
        return (whole[share(len(whole), len(ranks), place)],)
    return (given(name, op, ranks[step.seed % len(ranks)], *shape),)


def model_alltoall(step: Step, place: int, ranks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of all members for one, and how many rows each has sent."""
    table, trailing = split_table(step, ranks), step.shape[1:]
    width = int(np.prod(trailing, dtype=np.int64))
    parts = []
    for sender, splits in zip(ranks, table, strict=True):
        whole = values_of(step.dtype, step.op, sender, sum(splits) * width)
        begin = sum(splits[:place])
        whole = whole.reshape(sum(splits), *trailing)
        parts.append(whole[begin : begin + splits[place]])
    received = torch.tensor([splits[place] for splits in table], dtype=torch.int32)
    return as_dtype(np.concatenate(parts), step.dtype), received

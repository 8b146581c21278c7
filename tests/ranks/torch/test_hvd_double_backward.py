"""Gradients of gradients: every differentiable operation against a model in one process.

Each rank has a loss z_r = sum u_r * y_r^3 of what the operation gives it, takes the gradient g_r of
that with a graph, and differentiates q_r = sum v_r * g_r^2, as a gradient penalty does. The model
does the same with the inputs of all ranks in one process and torch's own operations, in the
convention that `kadril.torch.ops` states: losses of shared tensors count by their mean over the
ranks and of dealt ones by their sum, and a gradient of shared tensors is n times the derivative.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hvd_model import share
from hvd_stage import grad_of, on_ranks, on_shm

import kadril.torch as hvd
from kadril.world import World

Tensors = list[torch.Tensor]

OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
PRESCALE, POSTSCALE = 2.0, 0.5
SCALES = {"prescale_factor": PRESCALE, "postscale_factor": POSTSCALE}

# All numbers are positive and at most 300 of them are multiplied and added up for one result, so
# its error is below 300 roundings. Adasum subtracts: its coefficients, 1 - dot / (2 |a|^2), are
# above 1/4 for the vectors here, so that each of six of them in a term costs at most 2 bits.
BOUND = 300 * 2.0**-53
ADASUM_BOUND = BOUND * 4**6


@dataclasses.dataclass(frozen=True)
class OpAndModel:
    """An operation and its model.

    Attributes:
        run: the operation, of this rank's inputs.
        model: the same in one process, of the inputs of all ranks.
        rows: of each rank's inputs, one number for each input.
        is_dealt: whether inputs are dealt, and whether results are.
        bound: relative error.
    """

    run: Callable[[Tensors], Any]
    model: Callable[[list[Tensors]], list[Tensors]]
    rows: Callable[[int, int], Sequence[int]]
    is_dealt: tuple[bool, bool]
    bound: float = BOUND


def adasum(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    dot = (left * right).sum()
    return left + right - dot / 2 * (left / left.square().sum() + right / right.square().sum())


def reduced(op: str, inputs: Tensors) -> torch.Tensor:
    """The reduction of what the ranks give; of three with Adasum, the third waits."""
    scaled = [PRESCALE * each for each in inputs]
    result = {
        "Average": lambda: sum(scaled) / len(scaled),
        "Sum": lambda: sum(scaled),
        "Adasum": lambda: functools.reduce(adasum, scaled),
        "Min": lambda: torch.stack(scaled).amin(0),
        "Max": lambda: torch.stack(scaled).amax(0),
        "Product": lambda: functools.reduce(torch.mul, scaled),
    }[op]()
    return POSTSCALE * result


def model_of(one: Callable[[Tensors], Tensors]) -> Callable[[list[Tensors]], list[Tensors]]:
    """A model for several inputs, each by itself; from and to what is sorted by rank."""

    def model(inputs: list[Tensors]) -> list[Tensors]:
        by_input = [one(list(each)) for each in zip(*inputs, strict=True)]
        return [list(each) for each in zip(*by_input, strict=True)]

    return model


def everywhere_alike(one: Callable[[Tensors], torch.Tensor]) -> Any:
    return model_of(lambda inputs: [one(inputs)] * len(inputs))


def dealt_out(op: str, inputs: Tensors) -> Tensors:
    whole, size = reduced(op, inputs), len(inputs)
    return [whole[share(len(whole), size, rank)] for rank in range(size)]


def exchanged(inputs: Tensors, table: Callable[[int, int], int]) -> Tensors:
    """The all-to-all in which rank s sends table(s, r) rows to rank r."""
    size = len(inputs)
    parts = [each.split([table(s, r) for r in range(size)]) for s, each in enumerate(inputs)]
    return [torch.cat([parts[s][r] for s in range(size)]) for r in range(size)]


def splits(sender: int, receiver: int) -> int:
    return (2 * sender + receiver) % 3


def normalized(inputs: Tensors) -> Tensors:
    whole = torch.nn.functional.batch_norm(torch.cat(inputs), None, None, training=True)
    return list(whole.split([len(each) for each in inputs]))


def normalize(inputs: Tensors) -> Tensors:
    layer = hvd.SyncBatchNorm(2, affine=False, track_running_stats=False)
    return [layer(each) for each in inputs]


def reduce_case(function: str, op: str, rows: Sequence[int], *, is_dealt_out: bool) -> OpAndModel:
    call = getattr(hvd, function)
    options: dict[str, Any] = {"op": getattr(hvd, op), **SCALES}
    one = functools.partial(dealt_out, op) if is_dealt_out else None
    return OpAndModel(
        run=lambda x: (
            call(x, **options) if function.startswith("grouped") else call(x[0], **options)
        ),
        model=model_of(one) if one else everywhere_alike(functools.partial(reduced, op)),
        rows=lambda rank, size: rows,
        is_dealt=(False, is_dealt_out),
        bound=ADASUM_BOUND if op == "Adasum" else BOUND,
    )


def uneven(rank: int, size: int) -> Sequence[int]:
    return [2 + rank]


CASES = {
    **{("allreduce", op): reduce_case("allreduce", op, [3], is_dealt_out=False) for op in OPS},
    **{
        ("grouped_allreduce", op): reduce_case("grouped_allreduce", op, [3, 1], is_dealt_out=False)
        for op in OPS
    },
    **{
        (function, op): reduce_case(function, op, rows, is_dealt_out=True)
        for function, rows in (("reducescatter", [4]), ("grouped_reducescatter", [4, 3]))
        for op in ("Average", "Sum")
    },
    ("allgather", ""): OpAndModel(
        lambda x: hvd.allgather(x[0]), everywhere_alike(torch.cat), uneven, (True, False)
    ),
    ("grouped_allgather", ""): OpAndModel(
        hvd.grouped_allgather,
        everywhere_alike(torch.cat),
        lambda rank, size: [2 + rank, 1],
        (True, False),
    ),
    ("broadcast", ""): OpAndModel(
        lambda x: hvd.broadcast(x[0], 1),
        everywhere_alike(lambda inputs: inputs[1]),
        lambda rank, size: [2],
        (True, False),
    ),
    ("alltoall", ""): OpAndModel(
        lambda x: hvd.alltoall(x[0]),
        model_of(lambda inputs: exchanged(inputs, lambda sender, receiver: 1)),
        lambda rank, size: [size],
        (True, True),
    ),
    ("alltoall", "splits"): OpAndModel(
        lambda x: hvd.alltoall(x[0], [splits(hvd.rank(), r) for r in range(hvd.size())])[0],
        model_of(lambda inputs: exchanged(inputs, splits)),
        lambda rank, size: [sum(splits(rank, receiver) for receiver in range(size))],
        (True, True),
    ),
    ("SyncBatchNorm", ""): OpAndModel(
        normalize,
        model_of(normalized),
        uneven,
        (True, True),
        # Normalized values are below 4, so sums of their cubes and of what cancels in a gradient,
        # below 4^8 in all, are wrong by 300 roundings of that at most.
        BOUND * 4**8,
    ),
}


def values(rank: int, size: int, rows: int, seed: int) -> torch.Tensor:
    """Quarters from 1 to 4; an element differs between any two ranks, so that none are tied."""
    place = torch.arange(rows * 2, dtype=torch.float64).reshape(rows, 2)
    return 1 + (rank + place + seed) % size + ((place + seed) % 3) / 4


def inputs_of(case: OpAndModel, rank: int, size: int) -> Tensors:
    return [
        values(rank, size, rows, index).requires_grad_()
        for index, rows in enumerate(case.rows(rank, size))
    ]


def leaves_like(tensors: Sequence[torch.Tensor], rank: int) -> Tensors:
    return [values(rank, 3, len(each), 7).requires_grad_() for each in tensors]


def loss_of(results: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum(
        ((u * y**3).sum() for y, u in zip(results, weights, strict=True)),
        torch.zeros((), dtype=torch.float64),
    )


def penalty_of(gradients: Sequence[torch.Tensor], rank: int) -> torch.Tensor:
    return sum(
        (((index + rank + 1) * g**2).sum() for index, g in enumerate(gradients)),
        torch.zeros((), dtype=torch.float64),
    )


def as_list(results: Any) -> Tensors:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def expected(case: OpAndModel, size: int) -> tuple[list[Tensors], list[Tensors]]:
    """First gradients, and second ones by inputs and by u, of all ranks."""
    inputs = [inputs_of(case, rank, size) for rank in range(size)]
    results = case.model(inputs)
    weights = [leaves_like(each, rank) for rank, each in enumerate(results)]
    w_in, w_out = (1.0 if is_dealt else 1.0 / size for is_dealt in case.is_dealt)
    everything = sum(w_out * loss_of(y, u) for y, u in zip(results, weights, strict=True))
    flat = [x for each in inputs for x in each]
    derivatives = iter(
        torch.autograd.grad(everything, flat, create_graph=True, materialize_grads=True)
    )
    first = [[next(derivatives) / w_in for _ in each] for each in inputs]
    penalty = sum(w_in * penalty_of(each, rank) for rank, each in enumerate(first))
    flat_u = [u for each in weights for u in each]
    derivatives = iter(torch.autograd.grad(penalty, [*flat, *flat_u], materialize_grads=True))
    by_input = [[next(derivatives) / w_in for _ in each] for each in inputs]
    by_weight = [[next(derivatives) / w_out for _ in each] for each in weights]
    return first, [x + u for x, u in zip(by_input, by_weight, strict=True)]


def measured(case: OpAndModel, rank: int, size: int) -> tuple[Tensors, Tensors, Tensors]:
    """This rank's results, first gradients and second ones."""
    inputs = inputs_of(case, rank, size)
    results = as_list(case.run(inputs))
    weights = leaves_like(results, rank)
    first = torch.autograd.grad(loss_of(results, weights), inputs, create_graph=True)
    second = torch.autograd.grad(penalty_of(first, rank), [*inputs, *weights])
    return results, list(first), list(second)


@on_ranks(2, 3, transports=("shm",))
def test_second_derivatives_are_those_of_one_process(world: World) -> None:
    """All but those of a linear all-reduce were zero: a gradient penalty changed nothing."""
    size, rank = world.size, world.rank
    for key, case in CASES.items():
        _, first, second = measured(case, rank, size)
        model_first, model_second = expected(case, size)
        for own, model in ((first, model_first[rank]), (second, model_second[rank])):
            for got, want in zip(own, model, strict=True):
                check_close(got, want, case.bound, key)


def check_close(got: torch.Tensor, want: torch.Tensor, bound: float, key: object) -> None:
    assert got.shape == want.shape, key
    if want.numel():
        got, want = got.detach(), want.detach()
        error, largest = float((got - want).abs().max()), float(want.abs().max())
        assert error <= bound * largest, (key, got, want)


def differentiable_functions() -> set[str]:
    """Public functions of one or several tensors that neither work in place nor give a handle."""
    found = set()
    for name in hvd.__all__:
        function = getattr(hvd, name)
        if inspect.isfunction(function) and not name.endswith(("_", "_async")):
            first = next(iter(inspect.signature(function).parameters), "")
            if first in ("tensor", "tensors"):
                found.add(name)
    return found


@on_ranks(1, transports=("shm",))
def test_every_differentiable_operation_has_a_case(world: World) -> None:
    """A new operation, or an op that is taken from now on, needs a case above."""
    functions = differentiable_functions()
    assert functions == {function for function, _ in CASES if function != "SyncBatchNorm"}
    for function in sorted(functions):
        call: Any = getattr(hvd, function)
        if "op" not in inspect.signature(call).parameters:
            continue
        for op in OPS:
            if (function, op) in CASES:
                continue
            x = torch.ones(2)
            with pytest.raises((ValueError, NotImplementedError), match="Average and Sum"):
                call([x] if function.startswith("grouped") else x, op=getattr(hvd, op))


def autograd_functions() -> set[type[torch.autograd.Function]]:
    """Every autograd function that is defined under kadril.torch."""
    found = set()
    for module in pkgutil.walk_packages(hvd.__path__, "kadril.torch."):
        for each in vars(importlib.import_module(module.name)).values():
            if isinstance(each, type) and issubclass(each, torch.autograd.Function):
                found.add(each)
    return {each for each in found if each.__module__.startswith("kadril.torch")}


def nodes_of(tensors: Sequence[torch.Tensor]) -> set[str]:
    """Names of all nodes in the graphs of tensors."""
    seen, waiting = set(), [each.grad_fn for each in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {type(node).__name__ for node in seen}


@on_ranks(2, transports=("shm",))
def test_every_autograd_function_was_differentiated_twice(world: World) -> None:
    """A function with a backward pass outside of the graph is noticed, or one without a case."""
    nodes: set[str] = set()
    for case in CASES.values():
        _, first, _ = measured(case, world.rank, world.size)
        assert all(each.requires_grad for each in first)
        nodes |= nodes_of(first)
    functions = autograd_functions()
    assert len(functions) >= 7
    assert {f"{each.__name__}Backward" for each in functions} <= nodes


@on_shm
def test_a_penalty_on_gathered_features(world: World) -> None:
    """Contrastive learning: a loss of all ranks' features, and a penalty on its gradient.

    Each rank has a loss of its own, of all features; the gradients are those of their mean L and of
    lambda |dL/dx|^2 over all features, as one process has them.
    """
    size, rank = world.size, world.rank
    features = [values(r, size, 2 + r, r) for r in range(size)]
    everyone = torch.cat(features).requires_grad_()
    loss = sum(((r + 1) * (everyone @ everyone.t())).square().sum() for r in range(size)) / size
    (slope,) = torch.autograd.grad(loss, everyone, create_graph=True)
    (loss + 0.125 * slope.square().sum()).backward()
    mine = features[rank].requires_grad_()
    gathered = hvd.allgather(mine)
    own_loss = ((rank + 1) * (gathered @ gathered.t())).square().sum()
    (own_slope,) = torch.autograd.grad(own_loss, mine, create_graph=True)
    (own_loss + 0.125 * own_slope.square().sum()).backward()
    begin = sum(len(each) for each in features[:rank])
    want = grad_of(everyone)[begin : begin + len(mine)]
    check_close(grad_of(mine), want, BOUND, "penalty")


@on_shm
def test_reducescatter_and_allgather_are_an_allreduce(world: World) -> None:
    """Second derivatives agree as well: their factors of n have to cancel."""
    size, rank = world.size, world.rank
    found = []
    for chained in (False, True):
        x = values(rank, size, 5, 0).requires_grad_()
        y = (
            hvd.allgather(hvd.reducescatter(x, op=hvd.Sum))
            if chained
            else hvd.allreduce(x, op=hvd.Sum)
        )
        (first,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((first, second))
    for plain, chain in zip(*found, strict=True):
        check_close(chain, plain, BOUND, "chain")


@on_shm
def test_a_third_derivative(world: World) -> None:
    """The sum y of x to the fourth: 4 y^3, 12 y^2 and 24 y, each time summed over n ranks."""
    size = world.size
    x = torch.full((2,), 1.0, dtype=torch.float64, requires_grad=True)
    y = hvd.allgather(hvd.reducescatter(x, op=hvd.Sum))
    result = (y**4).sum()
    for _ in range(3):
        (derivative,) = torch.autograd.grad(result, x, create_graph=True)
        result = derivative.sum()
    assert derivative.tolist() == [24.0 * size**3 * size] * 2


@on_ranks(3, transports=("shm",), process_sets="dynamic")
def test_second_derivatives_in_a_process_set(world: World) -> None:
    """The mean is over the members, the root a rank of the world: g = 3 x^2, and g^2' = 36 x^3."""
    members = hvd.add_process_set([0, 2])
    if world.rank != 1:
        for run, is_mine in (
            (lambda x: hvd.allgather(x, process_set=members), True),
            (lambda x: hvd.broadcast(x, 2, process_set=members), world.rank == 2),
            (lambda x: hvd.alltoall(x, process_set=members), True),
        ):
            x = torch.full((2,), world.rank + 1.0, dtype=torch.float64, requires_grad=True)
            (first,) = torch.autograd.grad((run(x) ** 3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            assert second.tolist() == [36.0 * (world.rank + 1) ** 3 if is_mine else 0.0] * 2
    hvd.remove_process_set(members)


@on_shm
def test_second_derivatives_through_compression(world: World) -> None:
    """Casts are differentiable; the numbers here are exact in 8 bits."""
    for compression in (hvd.Compression.fp16, hvd.Compression.bf16):
        x = torch.full((2,), 2.0, requires_grad=True)
        y = hvd.allreduce(x, op=hvd.Average, compression=compression)
        (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        assert second.dtype == torch.float32
        assert second.tolist() == [16.0, 16.0]  # d/dx (2 x)^2 = 8 x


@on_ranks(2, transports=("shm",))
def test_a_complex_product(world: World) -> None:
    """Torch's gradient of a product has the conjugate of the other factor."""
    given = [torch.tensor([1 + 2j, 3 - 1j]), torch.tensor([2 - 1j, 1j])]
    mine = given[world.rank].clone().requires_grad_()
    hvd.allreduce(mine, op=hvd.Product).backward(torch.full((2,), 1 + 1j))
    both = [each.clone().requires_grad_() for each in given]
    (both[0] * both[1]).backward(torch.full((2,), 2 + 2j))
    assert torch.equal(grad_of(mine), grad_of(both[world.rank]))

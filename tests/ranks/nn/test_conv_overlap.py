"""Convolutions of blocks as they lie, halos being exchanged meanwhile: torch's numbers."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conv_cases import CONVOLUTIONS, Layers, check_drawn, check_twin
from conv_kit import with_whole_numbers
from hypothesis import strategies as st
from partition_kit import TRANSPORTS, LayerCase, block, draw_cases, grid, grids_up_to

from kadril.nn.conv.layers import DistributedConv1d, DistributedConv2d
from kadril.nn.conv.overlap import run_beside
from kadril.ops.box_plan import BoxPlan
from kadril.partition import balanced_sizes
from kadril.testing import integer_valued, ranks
from kadril.world import World


def overlapping(made: list[Any]) -> Layers:
    """The layers, told to overlap; those that are made are kept."""

    def of(partitioned: Any, *arguments: Any) -> Any:
        made.append(partitioned.of(*arguments, overlap=True))
        return made[-1]

    return {
        dims: (ordinary, SimpleNamespace(of=partial(of, partitioned)))
        for dims, (ordinary, partitioned) in CONVOLUTIONS.items()
    }


def lies(layer: Any, x: torch.Tensor) -> bool:
    """Whether a layer convolves such a block as it lies; collective over its partition."""
    plan: BoxPlan = layer.gather(x).mine.plan
    return plan.leaves_blocks


def own_block(layer: Any, blocks: Sequence[Sequence[int]]) -> torch.Tensor:
    """Make a block of the size that this worker's has, given the sizes along each dim."""
    return torch.zeros([sizes[at] for sizes, at in zip(blocks, layer.P_x.index, strict=True)])


@st.composite
def lying_cases(draw: st.DrawFn, size: int) -> LayerCase:
    """There are as many outputs as inputs, or half; halos may reach over several workers."""
    num_spatial = draw(st.integers(1, 3))
    fitting = grids_up_to(size, num_spatial + 1)
    split = [shape for shape in fitting if math.prod(shape[1:]) > 1]
    partition = draw(st.sampled_from(split or fitting))
    partition = (partition[0], 1, *partition[1:])
    # One rank has something to exchange only with itself.
    mode = draw(st.sampled_from(["zeros", "zeros", "circular"] if size > 1 else ["circular"]))
    kernel, stride, dilation, padding, spatial = [], [], [], [], []
    for length in partition[2:]:
        kernel.append(draw(st.sampled_from([3, 3, 5, 1])))
        dilation.append(draw(st.integers(1, 2)))
        stride.append(draw(st.sampled_from([1, 1, 1, 2])))
        padding.append(dilation[-1] * (kernel[-1] // 2))
        least = max(length, padding[-1])
        each = draw(st.integers(least, least + 6))
        spatial.append(each if stride[-1] == 1 else 2 * length * each)
    groups = draw(st.integers(1, 2))
    in_channels = groups * draw(st.integers(1, 2))
    sizes = [draw(st.integers(partition[0], partition[0] + 2)), in_channels, *spatial]
    return LayerCase(
        partition,
        tuple(tuple(balanced_sizes(each, n)) for each, n in zip(sizes, partition, strict=True)),
        {
            "in_channels": in_channels,
            "out_channels": groups * draw(st.integers(1, 2)),
            "kernel_size": tuple(kernel),
            "stride": tuple(stride),
            "dilation": tuple(dilation),
            "padding": tuple(padding),
            "padding_mode": mode,
            "groups": groups,
            "bias": draw(st.booleans()),
        },
    )


@ranks(1, 2, 3, 4)
def test_drawn_cases(world: World) -> None:
    made: list[Any] = []
    cases = draw_cases(lying_cases(world.size), 24)
    check_drawn(cases, lambda case: check_twin(world, case, overlapping(made)))
    working = [
        lies(layer, own_block(layer, case.blocks))
        for layer, case in zip(made, cases, strict=True)
        if layer.P_x.active
    ]
    # Where nothing has to be moved, for kernels of size 1, there is nothing to overlap either.
    assert sum(working) > len(working) / 2


@ranks(4, transports=[*TRANSPORTS, "tiered"])
def test_corners_on_all_transports(world: World) -> None:
    for mode in ("zeros", "circular"):
        for partition in [(1, 1, 2, 2), (2, 1, 1, 2), (1, 1, 4, 1)]:
            made: list[Any] = []
            settings = {"kernel_size": (5, 3), "padding": (2, 1), "padding_mode": mode}
            blocks = tuple(
                tuple(balanced_sizes(size, length))
                for size, length in zip((2, 3, 6, 9), partition, strict=True)
            )
            case = LayerCase(
                partition, blocks, {"in_channels": 3, "out_channels": 2, **settings, "bias": True}
            )
            check_twin(world, case, overlapping(made))
            assert lies(made[0], own_block(made[0], blocks))


@ranks(2)
def test_same_bits_on_every_run_and_on_both_ways_in_time(world: World) -> None:
    """Values that do round; whether the exchange is beside or before changes no bit."""
    P_x = grid(world, (1, 1, 1, 2))
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(4, 4, 3, padding=1)
    whole = torch.randn(4, 4, 128, 256)  # blocks of 1 MiB
    found = []
    for overlap in (True, False, True):
        twin = DistributedConv2d.of(copy.deepcopy(layer), P_x, overlap=overlap)
        x = block(whole, P_x).requires_grad_()
        y = twin(x)
        y.backward(torch.ones_like(y))
        assert lies(twin, x)
        assert twin.weight is not None
        found.append([y.detach(), x.grad, twin.weight.grad])
    for first, *others in zip(*found, strict=True):
        assert all(torch.equal(first, other) for other in others)


@ranks(2, transports=["shm", "c10d"])
def test_where_it_pays(world: World) -> None:
    """Large blocks lie; the exchange is beside the convolution where it is mostly waiting."""
    logger = logging.getLogger("kadril")
    level, records = logger.level, Records()
    logger.addHandler(records)
    logger.setLevel(logging.DEBUG)
    try:
        check_choices(world, records.texts)
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)


class Records(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(f"{record.levelname}: {record.getMessage()}")


def check_choices(world: World, texts: list[str]) -> None:
    """The last line tells each time what was chosen."""
    P_x = grid(world, (1, 1, 2))
    twin = DistributedConv1d(P_x, 1, 1, 3, padding=1)
    is_beside = world.transport.kind != "shm"
    assert f"overlap={is_beside}" in repr(twin)
    small = torch.zeros(1, 1, 16)
    twin(small)
    assert not lies(twin, small)
    assert "blocks are small" in texts[-1]
    large = torch.zeros(1, 1, 1 << 17)
    twin(large)
    assert lies(twin, large)
    when = "while" if is_beside else "before"
    assert f"halos are exchanged {when} the block is convolved" in texts[-1]
    odd = DistributedConv1d(P_x, 1, 1, 2, overlap=True)
    x = torch.zeros(1, 1, 8)
    odd(x)
    assert not lies(odd, x)
    assert texts[-1].startswith("WARNING: DistributedFeatureConv1d")
    assert copy.deepcopy(twin)(torch.zeros(1, 1, 1 << 17)).shape == (1, 1, 1 << 17)


@ranks(2)
def test_gradients_that_only_some_want(world: World) -> None:
    """All ranks have to be there for the exchange of the backward pass, one with a constant too."""
    P_x = grid(world, (1, 1, 2))
    layer = with_whole_numbers(torch.nn.Conv1d(1, 1, 3, padding=1, bias=False))
    whole = integer_valued((1, 1, 8), seed=1)
    leaf = whole.clone().requires_grad_()
    layer(leaf).sum().backward()
    wanted, of_weight = leaf.grad, layer.weight.grad
    assert wanted is not None
    for needs_weight in (True, False):
        twin = DistributedConv1d.of(copy.deepcopy(layer), P_x, overlap=True)
        assert twin.weight is not None
        twin.weight.requires_grad_(needs_weight)
        twin.weight.grad = None
        x = block(whole, P_x).requires_grad_(world.rank == 1)
        twin(x).sum().backward()
        assert (x.grad is None) == (world.rank == 0)
        if x.grad is not None:
            assert torch.equal(x.grad, block(wanted, P_x))
        if needs_weight:
            assert twin.weight.grad is not None
            assert torch.equal(twin.weight.grad, of_weight)
        constant = block(whole, P_x)
        assert twin(constant).requires_grad == needs_weight
        with torch.no_grad():
            assert not twin(x).requires_grad


@ranks(2)
def test_half_precision_by_autocast(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    twin = DistributedConv1d.of(torch.nn.Conv1d(1, 1, 3, padding=1), P_x, overlap=True)
    x = torch.ones(1, 1, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(x)
    assert lies(twin, x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert twin.weight is not None
    assert twin.weight.grad is not None
    assert twin.weight.grad.view(-1).tolist() == [7.0, 8.0, 7.0]
    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    with pytest.raises(RuntimeError, match=r"(?i)type"):
        twin(x.double())


@ranks(2)
def test_second_derivative_under_autocast(world: World) -> None:
    """The derivative of sum y^2 is 2 A* A; numbers are small integers, so bfloat16 is exact."""
    layer = torch.nn.Conv1d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 1.0]).view(1, 1, 3))
    P_x = grid(world, (1, 1, 2))
    twin = DistributedConv1d.of(layer, P_x, overlap=True)
    x = torch.ones(1, 1, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = twin(x)
    assert lies(twin, x)
    (first,) = torch.autograd.grad(y.float().square().sum(), x, create_graph=True)
    assert first.dtype == torch.float32
    twin.zero_grad()
    first.sum().backward()
    ones = torch.ones(1, 1, 8)
    weight = layer.weight.detach().clone().requires_grad_()
    whole = ones.clone().requires_grad_()
    y = torch.nn.functional.conv1d(whole, weight, padding=1)
    (expected,) = torch.autograd.grad(y.square().sum(), whole, create_graph=True)
    expected.sum().backward()
    assert torch.equal(first, block(expected, P_x))
    assert whole.grad is not None
    assert torch.equal(x.grad, block(whole.grad, P_x))
    assert torch.equal(layer.weight.grad, weight.grad)


@ranks(2)
def test_only_the_feature_form_can_overlap(world: World) -> None:
    P_x, P_w = grid(world, (1, 2, 1)), grid(world, (1, 2, 1))
    P_y = grid(world, (1, 1, 1))
    with pytest.raises(ValueError, match="only the feature form"):
        DistributedConv1d(P_x, 2, 1, 1, P_y=P_y, P_w=P_w, overlap=True)


def test_both_sides_end_before_an_error_is_raised() -> None:
    done = []

    def lose() -> None:
        done.append("exchange")
        raise OSError("lost")

    def work() -> str:
        done.append("work")
        return "result"

    with pytest.raises(OSError, match="lost"):
        run_beside(lose, work)
    assert sorted(done) == ["exchange", "work"]

    def fail() -> None:
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        run_beside(lambda: done.append("again"), fail)
    assert done[-1] == "again"
    # Work that fails because a peer is lost must not hide who was.
    with pytest.raises(OSError, match="lost") as caught:
        run_beside(lose, fail)
    assert isinstance(caught.value.__context__, ValueError)
    assert run_beside(lambda: None, work) == "result"


@ranks(2)
def test_overlap_on_a_transport_for_one_thread(world: World) -> None:
    """An MPI for one thread only refused the exchange in the first call; now the layer warns."""
    P_x = grid(world, (1, 1, 2))
    logger, records = logging.getLogger("kadril"), Records()
    logger.addHandler(records)
    transport = P_x.transport
    transport.takes_any_thread = False
    try:
        layer = with_whole_numbers(torch.nn.Conv1d(1, 1, 3, padding=1))
        twin = DistributedConv1d.of(layer, P_x, overlap=True)
        assert "although overlap=True" in records.texts[-1]
        assert records.texts[-1].startswith("WARNING: DistributedFeatureConv1d")
        assert "overlap=False" in repr(twin)
        x = integer_valued((1, 1, 8), seed=1)
        assert torch.equal(twin(block(x, P_x)), block(layer(x), P_x))
        assert lies(twin, block(x, P_x))
    finally:
        transport.takes_any_thread = True
        logger.removeHandler(records)

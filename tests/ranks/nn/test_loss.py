"""Losses: torch's values and gradients on every worker, with classes, batch and space cut."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from partition_kit import TRANSPORTS, Blocks, block, grid, grid_shapes, random_sizes
from rounding_kit import U, error

from kadril.nn.linear import DistributedLinear
from kadril.nn.loss import classes as loss_class
from kadril.nn.loss import elementwise as loss
from kadril.partition import Partition
from kadril.testing import integer_valued, ranks
from kadril.world import World

# A loss, and where its inputs and targets come from.
LossCase = tuple[Any, torch.nn.Module, Callable[[torch.Tensor], torch.Tensor], Callable[..., Any]]


def probability(x: torch.Tensor) -> torch.Tensor:
    """Numbers from 1/17 to 16/17, of whole numbers from -8 to 8."""
    return ((x + 9) / 17).clamp(max=16 / 17)


def itself(x: torch.Tensor) -> torch.Tensor:
    return x


def elementwise_cases(reduction: str) -> list[LossCase]:
    weight = probability(integer_valued((3, 1, 6), seed=7))
    pos_weight = probability(integer_valued((5, 6), seed=8))
    nn = torch.nn
    return [
        (loss.DistributedL1Loss, nn.L1Loss(reduction=reduction), itself, itself),
        (loss.DistributedMSELoss, nn.MSELoss(reduction=reduction), itself, itself),
        (
            loss.DistributedSmoothL1Loss,
            nn.SmoothL1Loss(reduction=reduction, beta=3.0),
            itself,
            itself,
        ),
        (loss.DistributedHuberLoss, nn.HuberLoss(reduction=reduction, delta=2.0), itself, itself),
        (
            loss.DistributedPoissonNLLLoss,
            nn.PoissonNLLLoss(reduction=reduction, full=True),
            probability,
            torch.abs,
        ),
        (
            loss.DistributedPoissonNLLLoss,
            nn.PoissonNLLLoss(reduction=reduction, log_input=False, eps=1e-3),
            torch.abs,
            itself,
        ),
        (loss.DistributedBCELoss, nn.BCELoss(reduction=reduction), probability, probability),
        (
            loss.DistributedBCELoss,
            nn.BCELoss(weight, reduction=reduction),
            probability,
            probability,
        ),
        (
            loss.DistributedBCEWithLogitsLoss,
            nn.BCEWithLogitsLoss(weight, reduction=reduction, pos_weight=pos_weight),
            itself,
            probability,
        ),
        (loss.DistributedKLDivLoss, nn.KLDivLoss(reduction=reduction), itself, probability),
        (
            loss.DistributedKLDivLoss,
            nn.KLDivLoss(reduction=reduction, log_target=True),
            itself,
            lambda x: probability(x).log(),
        ),
    ]


def compare(
    P_x: Partition,
    twin: torch.nn.Module,
    sequential: torch.nn.Module,
    x: torch.Tensor,
    target: torch.Tensor,
    parts: tuple[torch.Tensor, Blocks, Partition],
) -> None:
    """Values and gradients of both.

    Values are sums of n terms of absolute values of at most 10^4 here: both are off by n u times
    their sum, and a mean or a gradient, where no sum is taken but that over classes, by less.
    """
    mine, sizes, P_t = parts
    x = x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="reduction: 'mean' divides")  # KLDivLoss
        expected = sequential(x, target)
    scale = 1 if expected.dim() == 0 else integer_valued(expected.shape, seed=4)
    (expected * scale).sum().backward()
    here = block(x.detach(), P_x, sizes).requires_grad_()
    got = twin(here, mine)
    bound = 4 * x.numel() * U * 1e4 * (x.numel() if expected.dim() == 0 else 1)
    if not P_x.active:
        assert got.numel() == 0 if expected.dim() else float(got.detach()) == 0.0
        if got.requires_grad:
            got.sum().backward()
        return
    if expected.dim():
        assert error(got.detach(), block(expected.detach(), P_t)) <= bound
    else:
        assert error(got.detach(), expected.detach()) <= bound
    (got * (1 if expected.dim() == 0 else block(scale, P_t))).sum().backward()  # type: ignore[arg-type]
    assert x.grad is not None
    assert error(here.grad, block(x.grad, P_x, sizes)) <= bound


@ranks(1, 2, 4)
def test_elementwise_losses_are_torchs(world: World) -> None:
    draw = random.Random(1)
    shapes = grid_shapes(3, [world.size])
    for reduction in ("mean", "sum", "none"):
        for kind, sequential, of_input, of_target in elementwise_cases(reduction):
            P_x = grid(world, draw.choice(shapes))
            x = of_input(integer_valued((3, 5, 6), seed=draw.randint(0, 99)))
            target = of_target(integer_valued((3, 5, 6), seed=draw.randint(0, 99)))
            sizes = random_sizes((3, 5, 6), P_x, draw) if reduction != "none" else None
            twin = kind.of(sequential, P_x)
            compare(P_x, twin, sequential, x, target, (block(target, P_x, sizes), sizes, P_x))  # type: ignore[arg-type]


@ranks(3, transports=TRANSPORTS)
def test_batchmean_and_gradients_of_targets(world: World) -> None:
    P_x = grid(world, (1, 2))
    twin = loss.DistributedKLDivLoss(P_x, "batchmean")
    sequential = torch.nn.KLDivLoss(reduction="batchmean")
    x, target = integer_valued((4, 5), seed=1), probability(integer_valued((4, 5), seed=2))
    sizes = [[4], [2, 3]]
    compare(P_x, twin, sequential, x, target, (block(target, P_x, sizes), sizes, P_x))
    whole = target.clone().requires_grad_()
    sequential(x, whole).backward()
    mine = block(target, P_x).requires_grad_()
    twin(block(x, P_x), mine).backward()
    if P_x.active:
        assert whole.grad is not None
        # Logarithms of 20 numbers, each rounded alike on both sides but for its last bits.
        assert error(mine.grad, block(whole.grad, P_x)) <= 16 * U * 10


def without_classes(world: World, P_x: Partition) -> Partition:
    """Return the partition of targets: this worker's place along the class axis does not matter."""
    shape = [length for axis, length in enumerate(P_x.shape) if axis != 1]
    P_t = grid(world, shape)
    assert P_x.index is not None
    P_t.index = tuple(place for axis, place in enumerate(P_x.index) if axis != 1)
    return P_t


@ranks(1, 2, 3, 4)
def test_cross_entropy_with_anything_cut(world: World) -> None:
    draw = random.Random(2)
    nn = torch.nn
    for num_dims in (2, 3, 4):
        for shape, reduction in itertools.product(
            grid_shapes(num_dims, [world.size]), ("mean", "sum", "none")
        ):
            P_x = grid(world, shape)
            size = [4, 6, *[4] * (num_dims - 2)]
            weight = draw.choice([None, probability(integer_valued((6,), seed=3))])
            options: dict[str, Any] = {"weight": weight, "reduction": reduction}
            x = integer_valued(size, seed=draw.randint(0, 99)) / 4
            target = torch.randint(
                0, 6, [4, *size[2:]], generator=torch.Generator().manual_seed(draw.randint(0, 99))
            )
            sizes = random_sizes(size, P_x, draw) if reduction != "none" else None
            P_t = without_classes(world, P_x)
            kept = None if sizes is None else [sizes[0], *sizes[2:]]
            smoothing = draw.choice([0.0, 0.3])
            for sequential, kind, t, P, cuts in [
                (
                    nn.CrossEntropyLoss(**options, ignore_index=2, label_smoothing=smoothing),
                    loss_class.DistributedCrossEntropyLoss,
                    target,
                    P_t,
                    kept,
                ),
                (nn.NLLLoss(**options), loss_class.DistributedNLLLoss, target, P_t, kept),
                (
                    nn.CrossEntropyLoss(**options, label_smoothing=smoothing),
                    loss_class.DistributedCrossEntropyLoss,
                    probability(integer_valued(size, seed=8)),
                    P_x,
                    sizes,
                ),
            ]:
                twin = kind.of(sequential, P_x)  # type: ignore[attr-defined]
                compare(P_x, twin, sequential, x, t, (block(t, P, cuts), sizes, P_t))  # type: ignore[arg-type]


@ranks(2)
def test_large_logits_and_ignored_batches(world: World) -> None:
    P_x = grid(world, (1, 2))
    x = torch.tensor([[1e4, -1e4, 0.0, 1e4], [-torch.inf, 1.0, 2.0, -torch.inf]]).double()
    target = torch.tensor([3, 2])
    twin = loss_class.DistributedCrossEntropyLoss(P_x)
    expected = torch.nn.functional.cross_entropy(x, target)
    # One rounding each of exp, log, sum and quotient.
    assert error(twin(block(x, P_x), target), expected) <= 8 * U
    ignored = torch.full((2,), -100)
    assert torch.isnan(twin(block(x, P_x), ignored))
    total = loss_class.DistributedCrossEntropyLoss(P_x, reduction="sum")
    assert float(total(block(x, P_x).half(), ignored)) == 0.0


@ranks(4)
def test_a_classifier_with_split_classes(world: World) -> None:
    """Column-parallel logits, whose classes are never on one worker."""
    P = grid(world, (2, 2))
    torch.manual_seed(1)
    layer = torch.nn.Linear(5, 7).double()
    head = DistributedLinear.of(layer, P)
    x = integer_valued((6, 5), seed=1) / 8
    target = torch.tensor([0, 6, 3, 3, 1, 5])
    expected = torch.nn.functional.cross_entropy(layer(x), target)
    expected.backward()
    grads = [parameter.grad.clone() for parameter in layer.parameters()]  # type: ignore[union-attr]
    layer.zero_grad()
    assert P.index is not None
    mine = target[3 * P.index[0] : 3 * P.index[0] + 3]
    got = loss_class.DistributedCrossEntropyLoss(P)(head(block(x, P)), mine)
    got.backward()
    assert error(got.detach(), expected.detach()) <= 64 * U
    for parameter, grad in zip(head.parameters(), grads, strict=True):
        assert error(parameter.grad, grad) <= 64 * U


@ranks(3)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (3, 1))
    mse = loss.DistributedMSELoss(P_x)
    with pytest.raises(ValueError, match=r"rank 1 of 3 x 1.*\(2, 5\).*must be \(2, 4\)"):
        mse(torch.zeros(2, 4), torch.zeros(2, 4 + (world.rank == 1)))
    with pytest.raises(ValueError, match="one axis for each dim"):
        mse(torch.zeros(2), torch.zeros(2))
    with pytest.raises(ValueError, match="mean, sum, none"):
        loss.DistributedMSELoss(P_x, "batchmean")
    for reduction in ("mean", "none"):
        bce = loss.DistributedBCELoss(P_x, reduction=reduction)
        with pytest.raises(RuntimeError if world.rank == 2 else ValueError) as caught:
            bce(torch.full((2, 4), 0.5 + (world.rank == 2)), torch.zeros(2, 4))
        assert "between 0 and 1" in str(caught.value)
        assert ("rank 2 failed" in str(caught.value)) == (world.rank != 2)
    with pytest.raises(ValueError, match="cannot be broadcast"):
        loss.DistributedBCELoss(P_x, torch.ones(5))(torch.zeros(2, 4), torch.zeros(2, 4))
    entropy = loss_class.DistributedCrossEntropyLoss(P_x)
    with pytest.raises(IndexError if world.rank == 0 else ValueError) as caught:
        entropy(torch.zeros(2, 4), torch.full((2,), 4 if world.rank == 0 else 1))
    assert ("class 4 is out of range" if world.rank == 0 else "rank 0 failed") in str(caught.value)
    with pytest.raises(TypeError, match="int32"):
        entropy(torch.zeros(2, 4), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"must be \(2,\)"):
        entropy(torch.zeros(2, 4), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ValueError, match="4 classes in dim 1"):
        loss_class.DistributedNLLLoss(P_x, torch.ones(5))(
            torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64)
        )
    with pytest.raises(ValueError, match="label_smoothing"):
        loss_class.DistributedCrossEntropyLoss(P_x, label_smoothing=2.0)
    with pytest.raises(ValueError, match="classes at least"):
        loss_class.DistributedNLLLoss(grid(world, (3,)))
    assert float(mse(torch.ones(2, 4), torch.zeros(2, 4))) == 1.0

"""Synchronized batch norm: the layer of one process over the batches of all ranks."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from gradient_kit import assert_same

import kadril.torch as hvd
from kadril.testing import ranks
from kadril.world import World

# Rows of each rank: even, uneven, and a rank without any.
COUNTS = ((3, 3, 3, 3), (2, 4, 1, 5), (2, 0, 3, 1))

# A mean, a variance and a normalized value are sums of fewer than 512 terms of magnitude below 16;
# each rounds by 2^-53 of what it adds up, and the division by a standard deviation above 1/4
# magnifies by four, twice in backward.
BOUND = 512 * 16 * 16 * 2.0**-53


def rows_of(count: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((count, *shape), generator=generator, dtype=torch.float64) * 2 + 1


def close(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    assert left is not None
    assert right is not None
    return torch.allclose(left, right, rtol=0, atol=BOUND)


def check_steps(
    world: World, counts: tuple[int, ...], shape: tuple[int, ...], **options: object
) -> None:
    channels = shape[0]
    layer = hvd.SyncBatchNorm(channels, **options).double()
    whole = torch.nn.modules.batchnorm.BatchNorm1d(channels, **options).double()
    whole._check_input_dim = lambda _: None  # any number of dims
    if layer.affine:
        with torch.no_grad():
            for each in (layer, whole):
                each.weight.copy_(torch.arange(channels) + 0.5)
                each.bias.copy_(torch.arange(channels) - 1.0)
    counts = counts[: world.size]
    begin = sum(counts[: world.rank])
    mine = slice(begin, begin + counts[world.rank])
    for step in range(2):
        everyone = rows_of(sum(counts), shape, step)
        pull = rows_of(sum(counts), shape, step + 10)
        x, x_whole = everyone[mine].requires_grad_(), everyone.clone().requires_grad_()
        layer.zero_grad()
        whole.zero_grad()
        y, y_whole = layer(x), whole(x_whole)
        assert close(y, y_whole[mine])
        (y * pull[mine]).sum().backward()
        (y_whole * pull).sum().backward()
        assert x_whole.grad is not None
        assert close(x.grad, x_whole.grad[mine])
        for own, other in zip(layer.parameters(), whole.parameters(), strict=True):
            assert close(hvd.allreduce(own.grad, op=hvd.Sum), other.grad)
    for name, buffer in whole.named_buffers():
        assert close(getattr(layer, name).double(), buffer.double()), name
    layer.eval()
    whole.eval()
    some = rows_of(2 + world.rank, shape, 99)  # no communication: ranks may differ in everything
    if layer.track_running_stats:
        assert close(layer(some), whole(some))


@ranks(1, 2, 3, 4)
def test_it_is_batch_norm_over_all_ranks(world: World) -> None:
    hvd.init()
    for counts in COUNTS:
        for shape in ((4,), (3, 5), (2, 3, 4), (2, 2, 3, 2)):
            check_steps(world, counts, shape)
    check_steps(world, COUNTS[1], (3, 4), momentum=None)
    check_steps(world, COUNTS[1], (3, 4), affine=False)
    check_steps(world, COUNTS[1], (3, 4), track_running_stats=False)
    check_steps(world, COUNTS[1], (3, 4), eps=0.5, momentum=0.25)


@ranks(2, transports=("c10d", "mpi:openmpi"))
def test_it_is_batch_norm_on_other_transports(world: World) -> None:
    hvd.init()
    check_steps(world, COUNTS[1], (3, 5))


@ranks(2, 3)
def test_a_gradient_penalty_is_that_of_one_process(world: World) -> None:
    """The backward pass could not be differentiated. Batches are uneven, and one is empty."""
    hvd.init()
    layer = hvd.SyncBatchNorm(2).double()
    whole = torch.nn.BatchNorm1d(2).double()
    with torch.no_grad():
        for each in (layer, whole):
            each.weight.copy_(torch.tensor([0.5, 2.0]))
    counts = (2, 4, 0)[: world.size]
    begin = sum(counts[: world.rank])
    mine = slice(begin, begin + counts[world.rank])
    everyone = rows_of(sum(counts), (2, 3), 3)
    found = []
    for module, rows in ((layer, everyone[mine]), (whole, everyone)):
        x = rows.clone().requires_grad_()
        first = torch.autograd.grad(
            module(x).pow(3).sum(), [x, module.weight, module.bias], create_graph=True
        )
        penalty = first[0].square().sum() + 2 * first[1].sum() + 3 * first[2].sum()
        found.append(torch.autograd.grad(penalty, [x, module.weight, module.bias]))
    ours, theirs = found
    # As BOUND, of terms that are at most as large as the largest result.
    allowed = BOUND * max(float(each.abs().max()) for each in theirs)
    assert torch.allclose(ours[0], theirs[0][mine], rtol=0, atol=allowed)
    for own, other in zip(ours[1:], theirs[1:], strict=True):
        total = hvd.allreduce(own, op=hvd.Sum)
        assert torch.allclose(total, other, rtol=0, atol=allowed)


@ranks(2)
def test_narrow_floats_are_normalized_in_float32(world: World) -> None:
    """128 and 132: their squares differ by less than the sum of squares rounds in 8 bits."""
    hvd.init()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        layer = hvd.SyncBatchNorm(1, affine=False)
        x = torch.tensor([[0.0], [4.0]])
        y = layer((x + 128).to(dtype))
        assert y.dtype == dtype
        # mean 130, variance 4: (0 - 2) / sqrt(4 + eps) rounds to -1 in 8 bits, 11 bits, and
        # within 2 ulp of 1 in 24 bits, since sqrt(4 + 1e-5) is 2 to 2^-20.
        assert torch.allclose(y.float(), torch.tensor([[-1.0], [1.0]]), rtol=0, atol=2.0**-18)


@ranks(2, 3)
def test_too_few_values_fail_on_all_ranks(world: World) -> None:
    hvd.init()
    layer = hvd.SyncBatchNorm(2)
    with pytest.raises(ValueError, match="all ranks together have 1"):
        layer(torch.zeros(1 if world.rank == 0 else 0, 2))
    layer(torch.zeros(1, 2))  # one on each rank is enough
    with pytest.raises(ValueError, match="at least 2 dims"):
        layer(torch.zeros(2))
    with pytest.raises(ValueError, match="expected 2 channels in dim 1, got 3"):
        layer(torch.zeros(2, 3))


@ranks(3)
def test_a_process_set_normalizes_by_itself(world: World) -> None:
    hvd.init()
    process_set = hvd.add_process_set([0, 2])
    layer = hvd.SyncBatchNorm(1, affine=False, process_set=process_set).double()
    x = torch.full((2, 1), float(world.rank), dtype=torch.float64)
    y = layer(x)
    if world.rank == 1:
        assert not y.any()  # alone: both values are the mean
    else:
        assert torch.allclose(y, (x - 1) / (1 + layer.eps) ** 0.5, rtol=0, atol=BOUND)
    twin = copy.deepcopy(layer)
    assert twin.process_set is process_set
    assert pickle.loads(pickle.dumps(layer)).process_set is process_set  # noqa: S301
    hvd.remove_process_set(process_set)


@ranks(2)
def test_a_model_is_converted(world: World) -> None:
    hvd.init()
    model = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 1),
        torch.nn.BatchNorm2d(3, eps=0.25, momentum=0.5),
        torch.nn.Sequential(torch.nn.BatchNorm1d(4, affine=False, track_running_stats=False)),
        torch.nn.InstanceNorm1d(3),
    )
    model[1].running_mean.fill_(7)
    model[1].eval()
    weight = model[1].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    keys = list(model.state_dict())
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert isinstance(model[1], hvd.SyncBatchNorm)
    assert isinstance(model[2][0], hvd.SyncBatchNorm)
    assert not isinstance(model[3], hvd.SyncBatchNorm)
    assert model[1].weight is weight
    assert any(weight is each for each in optimizer.param_groups[0]["params"])
    assert (model[1].eps, model[1].momentum, model[1].training) == (0.25, 0.5, False)
    assert_same([model[1].running_mean], [torch.full((3,), 7.0)])
    assert list(model.state_dict()) == keys
    alone = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(4))
    assert isinstance(alone, hvd.SyncBatchNorm)


@ranks(2)
def test_it_trains_under_the_optimizer(world: World) -> None:
    """Two uneven batches; the gradients of all ranks are summed by the optimizer."""
    hvd.init()
    counts, shape = (3, 5), (4,)
    everyone, begin = rows_of(8, shape, 0), 3 * world.rank
    models = []
    for kind in (hvd.SyncBatchNorm, torch.nn.BatchNorm1d):
        torch.manual_seed(1)
        models.append(
            torch.nn.Sequential(torch.nn.Linear(4, 4), kind(4), torch.nn.Linear(4, 2)).double()
        )
    ours, whole = models
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, ours.named_parameters(), op=hvd.Sum)
    plain = torch.optim.SGD(whole.parameters(), lr=0.01)
    for _ in range(3):
        for model, step, rows in (
            (ours, optimizer, everyone[begin : begin + counts[world.rank]]),
            (whole, plain, everyone),
        ):
            step.zero_grad()
            model(rows).square().sum().backward()
            step.step()
    for left, right in zip(ours.parameters(), whole.parameters(), strict=True):
        assert close(left, right)

"""`distribute`: calls besides the usual layers, and models that are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from distribute_models import LeNet, UNet, check_same, make_exact
from partition_kit import grid
from torch import nn
from torch.nn import functional

from kadril.errors import MismatchError
from kadril.nn.distribution.distribute import DistributeError, block_of, distribute, whole_of
from kadril.nn.distribution.replicas import Cutter, WholeGatherer
from kadril.nn.distribution.rules.functions.reshape import group_dims
from kadril.partition import Partition
from kadril.testing import integer_valued, ranks
from kadril.world import World

# Sums of fewer than 2**12 products in fewer than 2**4 layers, and factors of up to 2**6 from norms
# over few elements.
BOUND = 2.0 ** (12 + 4 + 6 - 53)


class Of(nn.Module):
    """A convolution, and then a function of its result and of the input."""

    def __init__(
        self, function: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.weight = nn.Parameter(torch.ones(4, 1, 1))
        self.table = nn.Parameter(torch.arange(4.0 * 9 * 8).view(4, 9, 8))
        self.prelu = nn.PReLU(4)
        self.shared = nn.AvgPool2d(3, 1, 1)
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x, self.conv(x))


FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "broadcast": lambda m, x, y: y * m.weight + m.table - y.mean((2, 3), keepdim=True),
    "sums": lambda m, x, y: y.sum((2, 3)) + torch.sum(y, dim=3).mean(2) + y.sum(),
    "extremes": lambda m, x, y: y.amax((2, 3), keepdim=True) - torch.amin(y, 1, keepdim=True),
    "softmax": lambda m, x, y: functional.softmax(y, dim=1) + torch.log_softmax(y, dim=2),
    "cat": lambda m, x, y: torch.cat([y, x, y], 1),
    "cat of rows": lambda m, x, y: torch.cat([y, y + 1], dim=2),
    "stack": lambda m, x, y: torch.stack([y, y.relu()], dim=1).flatten(1, 2),
    "chunk": lambda m, x, y: torch.sigmoid(y.chunk(2, dim=1)[0]) * y.chunk(2, dim=1)[1],
    "split": lambda m, x, y: torch.split(y, [3, 1], dim=1)[0] + y[:, 3:],
    "crop": lambda m, x, y: y[:, :, 1:-1, 2:7] + x[:, :1, 2:, :5],
    "index": lambda m, x, y: y[:, 0] + y[:, :, 2, None][..., 0, :].mean(1)[:, None],
    "step": lambda m, x, y: y[:, :, ::2],
    "permute": lambda m, x, y: (y.permute(0, 2, 3, 1) + 1).transpose(1, 3) * 2,
    "channel shuffle": lambda m, x, y: y.view(-1, 2, 2, 9, 8).transpose(1, 2).reshape(y.shape),
    "pad": lambda m, x, y: functional.pad(y, (1, 2, 0, 3), value=2.0),
    "pad by reflection": lambda m, x, y: functional.pad(y, (1, 2, 2, 3), mode="reflect"),
    "pad by replication": lambda m, x, y: functional.pad(y, (1, 2, 2, 3), mode="replicate"),
    "pad around": lambda m, x, y: functional.pad(y, (1, 2, 2, 3), mode="circular"),
    "interpolate": lambda m, x, y: functional.interpolate(y, scale_factor=2, mode="bilinear"),
    "interpolate to a size": lambda m, x, y: (
        functional.interpolate(m.shared(y[:, :, ::2]), size=x.shape[2:]) + y
    ),
    "pools": lambda m, x, y: functional.adaptive_max_pool2d(functional.avg_pool2d(y, 2), (3, 2)),
    "too small to split": lambda m, x, y: (
        m.conv(functional.interpolate(functional.max_pool2d(y, 8, 8), size=x.shape[-2:])[:, :2]) + y
    ),
    "one module, two layouts": lambda m, x, y: m.shared(y) + m.shared(y.mean(2, keepdim=True)),
    "instance norm": lambda m, x, y: m.norm(y) * m.prelu(y),
    "matmul": lambda m, x, y: (y @ y.transpose(2, 3)).flatten(2),
    "attention": lambda m, x, y: functional.scaled_dot_product_attention(
        y.flatten(2).mT, y.relu().flatten(2).transpose(1, 2), y.flatten(2).mT
    ),
    "bmm": lambda m, x, y: torch.bmm(y.flatten(2).mT, y.flatten(2)),
    "where": lambda m, x, y: torch.where(y > 0, y, 0.1 * y).clamp(max=3).masked_fill(y < -1, 0.0),
    "in place": lambda m, x, y: y.add_(m.weight).relu_().mul(2),
    "glu": lambda m, x, y: functional.glu(y, dim=1),
    "shapes": lambda m, x, y: y.flatten(2).sum(2) / (x.size(2) * x.shape[-1]),
}


@ranks(4)
def test_calls(world: World) -> None:
    """Rows are split on one partition and whole on the other: one for rows adds nothing."""
    torch.manual_seed(0)
    x = torch.randn(3, 2, 9, 8, dtype=torch.float64)
    for name, function in FUNCTIONS.items():
        for shape in [(1, 1, 2, 2), (2, 1, 1, 2)]:
            try:
                check_same_but_unused(Of(function), grid(world, shape), x)
            except Exception as error:
                raise AssertionError(f"{name} on {shape}") from error


def check_same_but_unused(model: nn.Module, P: Partition, x: torch.Tensor) -> None:
    """Check a model of which not all parameters are used; see `check_same`."""
    probe = copy.deepcopy(model.double())
    probe(x).sum().backward()
    for name, parameter in probe.named_parameters():
        if parameter.grad is None:
            model.get_parameter(name).requires_grad_(False)
    for name, parameter in [*model.named_parameters()]:
        if not parameter.requires_grad:
            owner, _, last = name.rpartition(".")
            module = model.get_submodule(owner)
            delattr(module, last)
            module.register_buffer(last, parameter.detach())
    check_same(model, P, x, BOUND)


class Volume(nn.Module):
    """Norms, trilinear interpolation to odd sizes, and transposed convolutions in 3-D."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv3d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.InstanceNorm3d(4, affine=True)
        self.bottom = nn.Sequential(nn.Conv3d(4, 4, 3, 2, 1), nn.BatchNorm3d(4), nn.SiLU())
        self.up = nn.ConvTranspose3d(4, 4, 3, stride=2, padding=1)
        self.out = nn.Conv3d(12, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.norm(self.down(x)))
        y = self.bottom(x)
        wide = functional.interpolate(y, size=x.shape[2:], mode="trilinear")
        result: torch.Tensor = self.out(torch.cat([x, wide, self.up(y)], dim=1))
        return result


@ranks(1, 4)
def test_volumes(world: World) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 9, 7, 5, dtype=torch.float64)
    shape = (1, 1, 2, 2, 1) if world.size == 4 else (1, 1, 1, 1, 1)
    check_same(Volume().double(), grid(world, shape), x, BOUND)


class Dropping(nn.Module):
    """Dropout as a module and as a function, before and after a gather."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Dropout(0.3)
        self.linear = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.dropout(self.before(x), 0.5, self.training)
        y: torch.Tensor = functional.dropout(self.linear(x.flatten(1)), 0.5, self.training)
        return y


@ranks(4)
def test_dropout_is_the_same_on_replicas(world: World) -> None:
    """Replicas that drop different elements are no replicas, and training would fall apart."""
    x = integer_valued((4, 1, 6, 4), seed=3)
    torch.manual_seed(0)
    model = Dropping().double()
    found = []
    for shape in ((1, 1, 2, 2), (2, 1, 1, 2), (1, 1, 1, 1)):
        torch.manual_seed(0 if world.rank == 0 else 100 + world.rank)
        twin = distribute(copy.deepcopy(model), grid(world, shape), x)
        twin.load_state_dict(model.state_dict())
        twin = twin.train()
        y = twin(twin.block_of(x))
        if twin.P_x.active:
            found.append(whole_of(y, twin.P_y))
        whole = twin.eval()(twin.block_of(x))
        if twin.P_x.active:
            assert torch.allclose(whole_of(whole, twin.P_y), model.eval()(x), rtol=1e-12)
        model.train()
    torch.manual_seed(0)
    sums = torch.stack([y.detach() for y in found[:2]])
    low, high = sums.clone(), sums.clone()
    world.transport.allreduce(low, "min")
    world.transport.allreduce(high, "max")
    assert torch.equal(low, high), "every rank has the same"


@ranks(2)
def test_gathering_and_cutting_are_adjoint(world: World) -> None:
    """Replicated vectors count once: each of two workers has half of their product."""
    P = grid(world, (1, 2))
    whole = integer_valued((3, 4), seed=2)
    for sizes in ((3, 1), (4, 0), (2, 2)):
        blocks = [integer_valued((3, size), seed=1, rank=rank) for rank, size in enumerate(sizes)]
        block = blocks[world.rank].requires_grad_()
        gathered = WholeGatherer(P)(block).detach()
        assert torch.equal(gathered, torch.cat(blocks, dim=1))
        (WholeGatherer(P)(block) * whole).sum().backward()
        assert block.grad is not None
        product = torch.stack([(gathered * whole).sum() / 2, (block * block.grad).sum()]).detach()
        world.transport.allreduce(product)
        assert product[0] == product[1]

    x = whole.clone().requires_grad_()
    cut = Cutter(P)(x)
    assert torch.equal(cut, block_of(whole, P))
    (cut * block.detach()).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, gathered)


@ranks(2)
def test_a_model_of_one_layer(world: World) -> None:
    x = integer_valued((2, 1, 7, 6), seed=2)
    check_same(make_exact(nn.Conv2d(1, 2, 3)), grid(world, (1, 1, 2, 1)), x)
    check_same(nn.BatchNorm2d(1).double(), grid(world, (2, 1, 1, 1)), x, BOUND)


@ranks(2)
def test_what_cannot_be_distributed_is_named(world: World) -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Unfold(2))
            self.odd = nn.Bilinear(2, 2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cdist(x, x).mean() + torch.fft.fft2(x).real.mean()
            return y + self.body(x)

    model = Mixed()
    before = copy.deepcopy(model.state_dict())
    P = grid(world, (1, 1, 2, 1))
    with pytest.raises(DistributeError, match=r"body\.1 \(Unfold\)") as caught:
        distribute(model, P, torch.empty(1, 1, 8, 8))
    names = [(name, kind.rpartition(".")[2]) for name, kind, _ in caught.value.refusals]
    assert ("body.1", "Unfold") in names
    assert ("cdist", "cdist") in names
    assert "fft_fft2" in str(names)
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())

    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(DistributeError, match="cannot be traced"):
        distribute(Branching(), P, torch.empty(1, 1, 8, 8))
    with pytest.raises(DistributeError, match=r"at linear1: it fails on the example"):
        distribute(LeNet(), P, torch.empty(1, 1, 28, 28))
    with pytest.raises(DistributeError, match="one axis for each dim"):
        distribute(UNet(), P, torch.empty(1, 8, 8))
    with pytest.raises(DistributeError, match="1 elements along dim 2, too few for 2 workers"):
        distribute(nn.ReLU(), P, torch.empty(1, 1, 1, 8))
    hooked = nn.Sequential(nn.ReLU())
    hooked[0].register_forward_hook(lambda *_: None)
    with pytest.raises(DistributeError, match="hooks"):
        distribute(hooked, P, torch.empty(1, 1, 8, 8))


@ranks(2)
def test_different_models_are_found_out(world: World) -> None:
    P = grid(world, (1, 1, 2, 1))
    with pytest.raises(MismatchError, match="rank 1 does not have what rank 0 has"):
        distribute(nn.Conv2d(1, 2 + world.rank, 3), P, torch.empty(1, 1, 8, 8))
    odd = nn.Unfold(2) if world.rank else nn.ReLU()
    with pytest.raises((MismatchError, DistributeError), match="distribute"):
        distribute(odd, P, torch.empty(1, 1, 8, 8))
    twin = distribute(make_exact(UNet()), P, integer_valued(UNet.shape, seed=1))
    with pytest.raises(MismatchError, match="dims"):
        twin(torch.zeros((1, 1, 6, 13) if world.rank else (1, 1, 6), dtype=torch.float64))
    with pytest.raises(ValueError, match="too few"):
        twin(torch.zeros((1, 1, 1 - world.rank, 13), dtype=torch.float64))


def test_dims_that_become_others() -> None:
    cases = {
        ((8, 16, 5, 5), (8, 400)): [((0,), (0,)), ((1, 2, 3), (1,))],
        ((1, 1, 28, 28), (1, 784)): [((0,), (0,)), ((1,), ()), ((2, 3), (1,))],
        ((4, 6, 1, 1), (4, 6)): [((0,), (0,)), ((1,), (1,)), ((2,), ()), ((3,), ())],
        ((4, 6), (4, 1, 6)): [((0,), (0,)), ((), (1,)), ((1,), (2,))],
        ((4, 6, 5), (4, 2, 3, 5)): [((0,), (0,)), ((1,), (1, 2)), ((2,), (3,))],
        ((4, 3, 5), (12, 5)): [((0, 1), (0,)), ((2,), (1,))],
    }
    for (before, after), groups in cases.items():
        assert [tuple(each) for each in group_dims(before, after)] == groups, (before, after)

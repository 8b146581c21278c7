"""`distribute`: what `forward` may do in Python, with tuples of tensors, shapes and new tensors.

All numbers are whole, so results and gradients are compared for equality.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from distribute_models import check_same, make_exact
from partition_kit import grid
from torch import nn
from torch.nn import functional

from kadril.nn.distribution.distribute import DistributeError, distribute
from kadril.partition import Partition
from kadril.testing import integer_valued, ranks
from kadril.world import World

Function = Callable[[Any, torch.Tensor, torch.Tensor], Any]

# Batch, rows and columns are split on four ranks; channels on two.
SHAPES = {2: [(1, 2, 1, 1)], 4: [(1, 1, 2, 2), (2, 1, 1, 2)]}


class Of(nn.Module):
    """A function of the input and of a convolution of it, with a convolution after it."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.after = nn.Conv2d(4, 1, 3, padding=1)
        self.gate = nn.Parameter(torch.ones(4, 1, 1))
        self.relu = nn.ReLU(inplace=True)
        self.register_buffer("mean", torch.zeros(4))
        self.plain = torch.tensor([1.0, -2.0, 3.0, 2.0], dtype=torch.float64).view(4, 1, 1)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        # A wrong block shows at the cut, where the convolution looks at both sides.
        return self.after(self.function(self, x, self.conv(x)) + 0 * self.gate)


def with_coordinates(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    num, _, rows, columns = x.shape
    row = torch.arange(rows, device=x.device, dtype=x.dtype)
    column = torch.linspace(0, columns - 1, columns, dtype=x.dtype)
    grid = torch.stack(torch.meshgrid(row, column, indexing="ij"))
    grid = grid.unsqueeze(0).expand(num, -1, -1, -1)
    return torch.cat([x, grid], 1) * y


def with_branches(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    assert f"{y.shape[2:]}" == "torch.Size([9, 8])", "sizes are the global ones"
    if x.size(-1) % 2 or len(x) != 2:
        y = -y
    for place in range(y.shape[1] // 2):
        y = y + place * x.shape[2]
    return y if y.shape == (*x.shape[:1], 4, *x.shape[2:]) else x


def with_constants(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    weights = torch.tensor([1.0, 2.0], dtype=x.dtype)
    table = torch.eye(4, dtype=x.dtype)
    if weights.sum() > 2 and int(table[1, 1]) == 1:  # values of what is made here are known
        y = y * weights[1] + table[2].view(4, 1, 1)
    return (
        y + m.plain + y.new_full((4, 1, 1), 3) + torch.full_like(y, 2) - torch.zeros_like(x[:, :1])
    )


def with_mask(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(x.shape[2:], dtype=torch.bool)
    mask[2:6, 1:] = True
    return torch.where(mask, y, torch.zeros(y.shape, dtype=y.dtype)).masked_fill(~mask, 2)


def with_iteration(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    first, second = y.split(2, dim=1)
    (a, b), rows = torch.unbind(x, 1), torch.stack([*y.unbind(1)], 1)
    total = torch.stack([a, b, b, a], 1)
    for image in first.transpose(0, 1):
        total = total + image.unsqueeze(1)
    return torch.cat([second, first], 1) + total * rows


FUNCTIONS: dict[str, Function] = {
    "cat of chunks": lambda m, x, y: torch.cat(y.chunk(2, 1)[::-1], 1),
    "cat of a split": lambda m, x, y: torch.cat(y.split([1, 3], 1)[::-1], dim=1),
    "stack of unbound": lambda m, x, y: torch.stack(y.unbind(1)[::-1], 1),
    "stack of chunks of rows": lambda m, x, y: torch.stack(y.chunk(3, 2), 1).flatten(1, 2)[:, :4],
    "expand_as": lambda m, x, y: y * m.gate.expand_as(y),
    "squeeze and excite": lambda m, x, y: y * y.sum((2, 3), keepdim=True).relu().expand_as(y),
    "expand": lambda m, x, y: y + y.sum(3, keepdim=True).expand(-1, 4, 9, 8),
    "views as others": lambda m, x, y: y.flatten(2).view_as(y).type_as(x).reshape_as(y),
    "coordinates": with_coordinates,
    "branches": with_branches,
    "constants": with_constants,
    "mask": with_mask,
    "iteration": with_iteration,
    "extremes over channels": lambda m, x, y: y - y.amax(1, keepdim=True),
    "operators": lambda m, x, y: (2 - y) * (1 + y) - (y**2) % 5 - 7 // (y.detach().square() + 1),
    "no gradients": lambda m, x, y: y * frozen(y),
    "new states": lambda m, x, y: y.new_zeros(y.shape) + torch.ones(9, 8, dtype=y.dtype) * y,
    "affine grid": lambda m, x, y: (
        y
        + functional.affine_grid(2 * torch.eye(2, 3)[None], (1, 1, 3, 2), align_corners=True).sum()
    ),
}


def frozen(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return y * 2


WRITES: dict[str, Function] = {
    "relu": lambda m, x, y: functional.relu(y * 1, inplace=True) + m.relu(y),
    "sum": lambda m, x, y: y.add_(m.gate).mul_(2),
    "sum of what is broadcast": lambda m, x, y: torch.zeros(2, 4, 9, 8, dtype=y.dtype).add_(y),
    "one channel": lambda m, x, y: written(y, (slice(None), 0), 3),
    "rows": lambda m, x, y: written(y, (..., slice(2, 7), slice(None)), y[:, :1, 2:7] * 2),
    "a row": lambda m, x, y: written(y, (slice(None), slice(None), 4), x.sum(2)[:, :1]),
    "the last row": lambda m, x, y: written(y, (slice(None), slice(None), -1), y.sum((0, 2))),
    "every other row": lambda m, x, y: written(y, (..., slice(0, None, 2), slice(None)), 1),
    "corner": lambda m, x, y: written(y, (..., slice(None, 3), slice(5, None)), x[:, :1, :3, :3]),
    "where": lambda m, x, y: written(y, y > 1, 0),
    "part in place": lambda m, x, y: added(y, 2),
    "a view of a copy": lambda m, x, y: y + viewed(y.clone()),
}


def written(y: torch.Tensor, index: Any, value: Any) -> torch.Tensor:
    y = y * 1
    y[index] = value
    return y


def added(y: torch.Tensor, number: int) -> torch.Tensor:
    y = y + 0
    y[:, :, 3:8] += number
    y[:, 1:] *= 3
    return y


def viewed(y: torch.Tensor) -> torch.Tensor:
    part = y[:, :1]
    part += 1
    return part


@pytest.mark.parametrize("kind", ["calls", "writes"])
@ranks(2, 4)
def test_python_in_forward(world: World, kind: str) -> None:
    x = integer_valued((2, 2, 9, 8), seed=4)
    failures = []
    for name, function in (FUNCTIONS if kind == "calls" else WRITES).items():
        for shape in SHAPES[world.size]:
            try:
                check_same(make_exact(Of(function)), grid(world, shape), x)
            except (AssertionError, ValueError, RuntimeError, TypeError) as error:
                failures.append(f"{name} on {shape}: {error!r}")
    assert not failures, "\n".join(failures)


class Pair(NamedTuple):
    """A result with names."""

    low: torch.Tensor
    high: torch.Tensor


class Several(nn.Module):
    """Results in a dict, a named tuple and a list, and inputs in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)

    def forward(self, given: list[torch.Tensor], *, factor: int = 1) -> dict[str, Any]:
        x, other = given
        y = self.conv(x) * factor
        if self.training:
            return {"y": y, "pair": Pair(y.relu(), y[:, :, :1] + other), "rest": [x, 3, None]}
        return {"y": y}


@ranks(2)
def test_nested_inputs_and_results(world: World) -> None:
    """A dict of tensors was returned as it is; a list of inputs could not be given."""
    P = grid(world, (1, 1, 2, 1))
    x, other = integer_valued((2, 2, 9, 8), seed=4), integer_valued((2, 1, 9, 8), seed=5)
    model = make_exact(Several())
    twin = distribute(copy.deepcopy(model), P, ([x, other],))
    blocks = [twin.block_of(x), twin.block_of(other)]
    for factor in (1, 3):
        found = twin.train()(blocks, factor=factor)
        expected = model.train()([x, other], factor=factor)
        whole = twin.whole_of(found)
        assert isinstance(whole["pair"], Pair)
        assert torch.equal(whole["pair"].low, expected["pair"].low)
        assert torch.equal(whole["pair"].high, expected["pair"].high)
        assert torch.equal(whole["rest"][0], x)
        assert whole["rest"][1:] == [3, None]
    assert set(twin.eval()(blocks)) == {"y"}
    assert torch.equal(twin.whole_of(twin(blocks))["y"], model([x, other])["y"])


class BySize(nn.Module):
    """Takes another way through for large images, and other weights for their rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 1, 3, padding=1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        while x.shape[2] > 12:
            x = self.pool(x)
        rows = torch.arange(x.shape[2], dtype=x.dtype).view(-1, 1)
        return self.conv(x * rows).flatten(2).sum(2) + x.shape[3]


@ranks(2, 4)
def test_programs_belong_to_sizes(world: World) -> None:
    """Sizes of the example were written into the program where Python had looked at them."""
    P = grid(world, (1, 1, 2, world.size // 2))
    model = make_exact(BySize())
    twin = distribute(
        copy.deepcopy(model), P, torch.empty(1, 1, 9, 8, dtype=torch.float64, device="meta")
    )
    for seed, shape in enumerate([(1, 1, 9, 8), (3, 1, 26, 12), (2, 1, 11, 9), (1, 1, 9, 8)]):
        x = integer_valued(shape, seed=seed)
        model.zero_grad()
        twin.zero_grad()
        expected = model(x)
        expected.sum().backward()
        found = twin.whole_of(twin(twin.block_of(x)))
        found.sum().backward()
        assert torch.equal(found, expected)
        for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
            assert mine.grad is not None
            assert theirs.grad is not None
            assert torch.equal(mine.grad, theirs.grad)


class Counting(nn.Module):
    """Keeps a mean of what it has seen in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x)
        if self.training:
            with torch.no_grad():
                self.seen.mul_(2).add_(y.sum((0, 2, 3)))
        return y - self.seen.view(4, 1, 1)


@ranks(2)
def test_buffers_that_forward_writes_into(world: World) -> None:
    """A write into a buffer stays, and is done once for each call; `no_grad` holds."""
    x = integer_valued((2, 2, 9, 8), seed=4)
    model = make_exact(Counting())
    for shape in ((1, 1, 2, 1), (2, 1, 1, 1)):
        twin = check_same(model, grid(world, shape), x)
        ordinary = copy.deepcopy(model)
        ordinary(x), ordinary(x)
        twin(twin.block_of(x))
        assert torch.equal(twin.get_buffer("seen"), ordinary.seen)
        twin.eval()(twin.block_of(x))
        assert torch.equal(twin.get_buffer("seen"), ordinary.seen)


@ranks(2)
def test_parts_of_a_model_in_other_modes(world: World) -> None:
    """A part that was set to evaluation (a frozen one) ran as if it were in training."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Sequential(nn.Conv2d(1, 1, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if self.head.training else x * 3

    x = integer_valued((1, 1, 4, 4), seed=1)
    twin = distribute(Frozen().double(), grid(world, (1, 1, 2, 1)), x)
    twin.train().get_submodule("head").eval()
    assert torch.equal(twin(twin.block_of(x)), twin.block_of(x) * 3)
    twin.train()
    assert torch.equal(twin(twin.block_of(x)), twin.block_of(x) * 2)


@ranks(2)
def test_numbers_in_attributes(world: World) -> None:
    """A factor that is changed between steps was written into the program; a size may be kept."""

    class Annealed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = 2.0
            self.num_rows = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.num_rows = x.shape[2]
            return x * self.factor + self.num_rows

    x = integer_valued((1, 1, 4, 4), seed=1)
    model = Annealed()
    twin = distribute(model, grid(world, (1, 1, 2, 1)), x)
    for factor in (2.0, 3.0, 2.0):
        model.factor = factor
        assert torch.equal(twin(twin.block_of(x)), twin.block_of(x) * factor + 4)


class Residual(nn.Module):
    """Uses what it drops from once more."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5, inplace=inplace)
        self.same = nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = self.same(y)
        dropped: torch.Tensor = self.dropout(z)
        return torch.cat([y, dropped], 1)


@ranks(2)
def test_what_was_dropped_from_is_still_there(world: World) -> None:
    """Dropout gives its input itself in evaluation, and something else in training."""
    x = torch.ones(2, 1, 16, 16)
    for inplace in (False, True):
        twin = distribute(Residual(inplace), grid(world, (1, 1, 2, 1)), x).train()
        y, dropped = twin(twin.block_of(x)).chunk(2, 1)
        assert (dropped == 0).any()
        assert torch.equal(y, dropped if inplace else 2 * torch.ones_like(y))


class Doubling(torch.autograd.Function):
    """Has a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * 5


def counted(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.calls = getattr(m, "calls", 0) + 1
    return y * m.calls


def noted(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    table = torch.zeros(2, dtype=y.dtype)
    table[0] = y.sum()
    return y if table[0] > 0 else -y


def overlapping(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    part = y[:, 0]
    part += 1
    return y


def written_before(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.plain.add_(1)
    return y + m.plain


def assigned(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.mean = m.mean + y.sum((0, 2, 3))
    return y


def kept(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m.last = y
    return y


def drawn(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    import random

    return y * round(random.random())


def lowered(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ y.mT


def outside(m: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y + torch.ones(1, requires_grad=True) if STRANGER is None else y * STRANGER


STRANGER = torch.ones(1, dtype=torch.float64, requires_grad=True)

REFUSED: dict[str, tuple[Function, str]] = {
    "a value": (lambda m, x, y: y if y.sum() > 0 else -y, "value of a tensor"),
    "an item": (lambda m, x, y: y * y.max().item(), "item: .*value of a tensor"),
    "a parameter's value": (lambda m, x, y: y * float(m.gate[0]), "value of a tensor"),
    "a value that was noted": (noted, "value of a tensor"),
    "random": (lambda m, x, y: y + torch.rand(9, 8), "rand.*draws random numbers"),
    "random like": (lambda m, x, y: y + torch.randn_like(y), "randn_like.*draws random numbers"),
    "attention with dropout": (
        lambda m, x, y: functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5),
        "draws random numbers",
    ),
    "random of Python": (drawn, "numpy.random"),
    "unknown with a tuple": (
        lambda m, x, y: torch.broadcast_tensors(y, m.gate)[0],
        "broadcast_tensors.*no partitioned form",
    ),
    "a shared view": (overlapping, "shares its memory"),
    "what was there before": (written_before, "was there before"),
    "a new buffer": (assigned, "mean: `forward` assigns"),
    "an attribute": (kept, "last: `forward` assigns"),
    "a counter": (counted, "calls: `forward` counts"),
    "a backward pass": (lambda m, x, y: Doubling.apply(y) + 1, "Doubling, an autograd.Function"),
    "autocast": (lowered, "autocast"),
    "a stranger": (outside, "no parameter of the model"),
    "an indexing tensor": (lambda m, x, y: y[:, :, torch.tensor([1, 0, 2])], "chooses by number"),
    "out": (lambda m, x, y: torch.add(y, 1, out=torch.empty_like(y)), "out="),
}


@ranks(2)
def test_what_is_not_proven_is_refused(world: World) -> None:
    """Each of these ran, with a wrong result or an error from deep inside; now it is named."""
    P: Partition = grid(world, (1, 1, 2, 1))
    x = torch.empty(2, 2, 9, 8, dtype=torch.float64)
    failures = []
    for name, (function, message) in REFUSED.items():
        model = make_exact(Of(function))
        before = {key: id(each) for key, each in vars(model).items()}
        state = {key: (id(each), each.clone()) for key, each in model.named_buffers()}
        try:
            with pytest.raises(DistributeError, match=message):
                distribute(model, P, x)
        except (AssertionError, ValueError, RuntimeError, TypeError) as error:
            failures.append(f"{name}: {error!r}")
        assert {key: id(each) for key, each in vars(model).items()} == before, name
        for key, each in model.named_buffers():
            assert id(each) == state[key][0], name
            assert torch.equal(each, state[key][1]), name
    assert not failures, "\n".join(failures)

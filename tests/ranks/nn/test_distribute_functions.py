"""`distribute`: layers as functions, computed weights, and calls without a partitioned form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distribute_models import arranged, close
from function_kit import SHAPE, check_functions, check_refusals, partitions
from torch import nn
from torch.nn import functional

from kadril.nn.distribution.distribute import distribute, join, split
from kadril.testing import integer_valued, ranks
from kadril.world import World

# Sums of fewer than 2**12 products in fewer than 2**4 steps, and factors of up to 2**6 from norms
# over few elements.
BOUND = 2.0 ** (12 + 4 + 6 - 53)


def learned(*shape: int) -> nn.Parameter:
    torch.manual_seed(len(shape))
    return nn.Parameter(torch.randn(shape))


# Sums of products of small whole numbers: results are compared with ==.
EXACT: dict[str, tuple[Any, ...]] = {
    "conv2d": (
        lambda m, x, y: functional.conv2d(y, m.w, m.b, stride=2, padding=1),
        {"w": learned(3, 4, 3, 3), "b": learned(3)},
    ),
    "conv2d with a computed weight": (
        lambda m, x, y: functional.conv2d(y, m.w * m.mask, padding="same", groups=2),
        {"w": learned(4, 2, 3, 3), "mask": torch.ones(3, 3).tril()},
    ),
    "conv2d with a weight from the input": (
        lambda m, x, y: torch.conv2d(y, y.sum((0, 2, 3)).view(1, 4, 1, 1)),
    ),
    "conv1d": (
        lambda m, x, y: functional.conv1d(y[:, :, :, 0], m.w, None, 1, 2, 2),
        {"w": learned(2, 4, 3)},
    ),
    "conv3d": (
        lambda m, x, y: functional.conv3d(y[:, :, None], m.w, padding=(0, 1, 1)),
        {"w": learned(2, 4, 1, 3, 3)},
    ),
    "conv_transpose2d": (
        lambda m, x, y: functional.conv_transpose2d(y, m.w, m.b, 2, 1, 1, groups=2),
        {"w": learned(4, 3, 3, 3), "b": learned(6)},
    ),
    "conv_transpose1d": (
        lambda m, x, y: functional.conv_transpose1d(y.sum(2), m.w, stride=2),
        {"w": learned(4, 3, 2)},
    ),
    "linear": (
        lambda m, x, y: functional.linear(y.permute(0, 2, 3, 1), m.w, m.b),
        {"w": learned(5, 4), "b": learned(5)},
    ),
    "linear over columns": (
        lambda m, x, y: functional.linear(y, m.w),
        {"w": learned(5, 6)},
    ),
    "the weight of another layer": (
        lambda m, x, y: functional.conv2d(
            functional.conv2d(y, m.conv.weight.mT.transpose(0, 1)), m.conv.weight
        ),
    ),
    "prelu": (lambda m, x, y: functional.prelu(y, m.w), {"w": learned(4)}),
    "embedding": (
        lambda m, x, y: functional.embedding((x[:, 0] > 0).long(), m.w) * y.mean(1)[..., None],
        {"w": learned(2, 4)},
    ),
}

ROUNDED: dict[str, tuple[Any, ...]] = {
    "layer_norm of channels": (
        lambda m, x, y: functional.layer_norm(y.permute(0, 2, 3, 1), (4,), m.w, m.b, 1e-3),
        {"w": learned(4), "b": learned(4)},
    ),
    "layer_norm of space": (lambda m, x, y: functional.layer_norm(y, (4, 8, 6)),),
    "rms_norm": (
        lambda m, x, y: functional.rms_norm(y, (8, 6), m.w, 1e-3) + m.norm(y),
        {"w": learned(8, 6), "norm": nn.RMSNorm((4, 8, 6))},
    ),
    "rms_norm of channels": (lambda m, x, y: functional.rms_norm(y.permute(0, 2, 3, 1), (4,)),),
    "group_norm": (
        lambda m, x, y: functional.group_norm(y, 2, m.w, m.b),
        {"w": learned(4), "b": learned(4)},
    ),
    "instance_norm": (
        lambda m, x, y: functional.instance_norm(y, weight=m.w, bias=m.b, eps=1e-4),
        {"w": learned(4), "b": learned(4)},
    ),
    "batch_norm": (
        lambda m, x, y: functional.batch_norm(y, m.mean, m.var, m.w, m.b, m.training, 0.2),
        {"w": learned(4), "b": learned(4), "mean": torch.zeros(4), "var": torch.ones(4)},
    ),
    "batch_norm of what is known": (
        lambda m, x, y: functional.batch_norm(y, m.mean, m.var),
        {"mean": torch.ones(4), "var": torch.ones(4) * 2},
    ),
}

# The rows are not a multiple of the workers after these, so blocks are balanced anew.
MOVED: dict[str, tuple[Any, ...]] = {
    "flip": (lambda m, x, y: torch.flip(y[:, :, 1:], (2, 3)) + y[:, :, 1:].flip(-1),),
    "flip of channels": (lambda m, x, y: y.flip(1) + torch.fliplr(y) + y.flip([1]),),
    "roll": (lambda m, x, y: torch.roll(y, (3, -2, 1), (2, 3, 1)) + y.roll(9, 2),),
    "roll of what is not split": (lambda m, x, y: y.roll(1, dims=1),),
    "repeat": (lambda m, x, y: y.repeat(1, 2, 1, 1)[:, 2:6] + y,),
    "repeat of rows": (lambda m, x, y: y.repeat(1, 1, 2, 1).relu() + 1,),
    "repeat to more dims": (lambda m, x, y: y.repeat(3, 1, 1, 1, 1).sum(0) + torch.tile(y, (1,)),),
    "tile of columns": (lambda m, x, y: torch.tile(y, (2, 3)),),
    "repeat_interleave": (lambda m, x, y: y[:, :, 1:].repeat_interleave(3, dim=2) * 2,),
    "repeat_interleave of channels": (lambda m, x, y: torch.repeat_interleave(y, 2, 1),),
    "pixel_shuffle": (lambda m, x, y: functional.pixel_shuffle(y[:, :, 1:, 1:], 2),),
    "PixelShuffle": (lambda m, x, y: m.up(y[:, :, 3:]).relu(), {"up": nn.PixelShuffle(2)}),
    "pixel_unshuffle": (lambda m, x, y: functional.pixel_unshuffle(y[:, :, 2:], 2),),
    "PixelUnshuffle": (lambda m, x, y: m.down(y) - 1, {"down": nn.PixelUnshuffle(2)}),
    "ChannelShuffle": (lambda m, x, y: m.shuffle(y), {"shuffle": nn.ChannelShuffle(2)}),
    "channel_shuffle": (lambda m, x, y: functional.channel_shuffle(y, 2),),
    "ZeroPad2d": (lambda m, x, y: m.pad(y), {"pad": nn.ZeroPad2d((1, 2, 3, 0))}),
    "ConstantPad2d": (lambda m, x, y: m.pad(y), {"pad": nn.ConstantPad2d((1, -2, 3, 0), 2.0)}),
    "ReflectionPad2d": (lambda m, x, y: m.pad(y) * 2, {"pad": nn.ReflectionPad2d(3)}),
    "ReplicationPad2d": (lambda m, x, y: m.pad(y), {"pad": nn.ReplicationPad2d((0, 4, 1, 2))}),
    "CircularPad2d": (lambda m, x, y: m.pad(y), {"pad": nn.CircularPad2d(2)}),
    "CircularPad1d": (lambda m, x, y: m.pad(y.sum(3)), {"pad": nn.CircularPad1d(2)}),
    "ConstantPad3d": (lambda m, x, y: m.pad(y), {"pad": nn.ConstantPad3d(1, 3.0)}),
}


@ranks(2, 4)
def test_elements_that_move(world: World) -> None:
    check_functions(world, MOVED)


@ranks(1, 2, 4)
def test_layers_as_functions(world: World) -> None:
    check_functions(world, EXACT)
    check_functions(world, ROUNDED, BOUND)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return 2 * weight

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight / 2


class Reparametrized(nn.Module):
    """Layers whose weight is computed in each forward pass."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Conv2d(2, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 2), nn.Linear(6, 3)]
        for layer in layers:
            layer.double()
            if kind == "weight_norm":
                nn.utils.parametrizations.weight_norm(layer)
            elif kind == "spectral_norm":
                nn.utils.parametrizations.spectral_norm(layer)
            elif kind == "doubled":
                nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
                nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
            elif kind == "weight_norm by a hook":
                nn.utils.weight_norm(layer)
            else:
                nn.utils.spectral_norm(layer)
        self.first, self.second, self.last = layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(self.first(x) + self.first(x.flip(1)))
        result: torch.Tensor = self.last(y[:, :, :, 1:])
        return result


@ranks(2, 4)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_computed_weights(world: World) -> None:
    """The learned parameters keep their names, and get the gradient of the ordinary layer."""
    kinds = ["weight_norm", "spectral_norm", "doubled"]
    kinds += ["weight_norm by a hook", "spectral_norm by a hook"]
    x = integer_valued(SHAPE, seed=7)
    for kind in kinds:
        for shape in partitions(world):
            P = arranged(world, shape)
            ordinary, model = Reparametrized(kind), Reparametrized(kind)
            twin = distribute(model, P, x)
            assert list(twin.state_dict()) == list(ordinary.state_dict())
            for _ in range(2):  # spectral norms change their buffers
                for each in (ordinary, twin):
                    each.zero_grad()
                expected = ordinary(x)
                weight = integer_valued(expected.shape, seed=9)
                (expected * weight).sum().backward()
                y = join(twin(split(x, P)), twin.P_y)
                (y * weight).sum().backward()
                close(y, expected, BOUND, kind)
            for name, parameter in ordinary.named_parameters():
                found = twin.get_parameter(name)
                assert found is model.get_parameter(name)
                assert found.grad is not None, name
                assert parameter.grad is not None, name
                close(found.grad, parameter.grad, BOUND, f"{kind}: {name}")
            for name, buffer in ordinary.named_buffers():
                close(twin.get_buffer(name), buffer, BOUND, f"{kind}: {name}")
            close(ordinary.eval()(x), join(twin.eval()(split(x, P)), twin.P_y), BOUND, kind)


REPLICATED: dict[str, tuple[Any, ...]] = {
    "a function": (lambda m, x, y: torch.cdist(y.mean((2, 3)), y.amax((2, 3)) + 1),),
    "a layer": (
        lambda m, x, y: m.bilinear(y.mean((2, 3)), y.sum((2, 3))),
        {"bilinear": nn.Bilinear(4, 4, 3)},
    ),
    "a recurrent layer": (
        lambda m, x, y: m.rnn(y.mean(3).permute(0, 2, 1).flatten(1)[:, None])[0],
        {"rnn": nn.GRU(32, 3)},
    ),
    "an unknown layer": (
        lambda m, x, y: m.unfold(y.mean((2, 3), keepdim=True)),
        {"unfold": nn.Unfold(1)},
    ),
}

GATHERED: dict[str, tuple[Any, ...]] = {
    "fft": (lambda m, x, y: torch.fft.rfft2(y).real,),
    "unfold": (lambda m, x, y: m.unfold(y), {"unfold": nn.Unfold(2)}),
    "a list of results": (lambda m, x, y: torch.tensor_split(y, 2, 2)[1],),
}


@ranks(2, 4)
def test_calls_on_replicas(world: World) -> None:
    """Workers that hold the same may do anything, alike; gathering for it has to be allowed."""
    if world.size == 2:  # where the batch is not split
        check_functions(world, REPLICATED, BOUND)
    check_functions(world, GATHERED, BOUND, gather=True)


REFUSED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "no partitioned form": (
        r"rfft2.*gather=True.*every worker then holds 3 KiB",
        lambda m, x, y: torch.fft.rfft2(y).real,
        {},
    ),
    "random numbers": (
        r"bernoulli.*replicas would draw different",
        lambda m, x, y: y * torch.bernoulli(y.mean((2, 3), keepdim=True).sigmoid()),
        {},
    ),
    "a layer that draws": (
        r"rnn \(LSTM\): it draws random numbers",
        lambda m, x, y: m.rnn(y.mean(3).flatten(1)[:, None])[0],
        {"rnn": nn.LSTM(32, 3, num_layers=2, dropout=0.5)},
    ),
    "running statistics": (
        r"instance_norm.*running statistics",
        lambda m, x, y: functional.instance_norm(y, m.mean, m.var),
        {"mean": torch.zeros(4), "var": torch.ones(4)},
    ),
}


@ranks(2)
def test_refusals(world: World) -> None:
    check_refusals(world, REFUSED)

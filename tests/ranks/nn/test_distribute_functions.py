"""`distribute`: layers as functions, computed weights, and calls without a partitioned form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from distribute_models import close
from function_kit import SHAPE, check_functions, check_refusals, partitions
from partition_kit import grid
from torch import nn
from torch.nn import functional

from kadril.nn.distribution.distribute import block_of, distribute, whole_of
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

REDUCED: dict[str, tuple[Any, ...]] = {
    "max along rows": (lambda m, x, y: y.max(2)[0] + y.max(dim=2).indices,),
    "min along columns": (lambda m, x, y: torch.min(y, 3, keepdim=True).values * y,),
    "max of all": (lambda m, x, y: torch.max(y) - y.min() + y,),
    "max of two": (lambda m, x, y: torch.max(y, m.w), {"w": learned(4, 1, 1)}),
    "max of channels": (lambda m, x, y: y.max(1).values,),
    "argmax": (lambda m, x, y: y * (y.argmax(3, keepdim=True) + y.argmin(2, True)),),
    "pools of many": (
        lambda m, x, y: m.pool(y.clamp(-1, 1)) + functional.adaptive_max_pool2d(y.sign(), 1),
        {"pool": nn.AdaptiveMaxPool2d(1)},
    ),
    "any and all": (
        lambda m, x, y: torch.where(y.gt(5).any(2, True) | (y > -8).all(dim=3, keepdim=True), y, 0),
    ),
    "any of all": (lambda m, x, y: y * y.gt(5).any(),),
    "prod": (lambda m, x, y: y.sign().prod(2) + x.prod(1, keepdim=True)[:, :, 0],),
    "cumsum": (lambda m, x, y: y.cumsum(2) + torch.cumsum(y, dim=3) + y.cumsum(1),),
    "topk of channels": (lambda m, x, y: y.topk(2, 1)[0] + y.topk(2, dim=1).values,),
    "sort of channels": (lambda m, x, y: torch.sort(y, 1, descending=True)[0],),
    "median of channels": (lambda m, x, y: y.median(1, keepdim=True).values + y,),
}

REDUCED_ROUNDED: dict[str, tuple[Any, ...]] = {
    "extremes that are many": (lambda m, x, y: y.clamp(-1, 1).amax((2, 3)) + y.sign().max(),),
    "norm of the largest": (lambda m, x, y: y.clamp(-1, 1).norm(torch.inf, (2, 3)),),
    "norm": (lambda m, x, y: y.norm() + y.norm(dim=1) + torch.norm(y, 3, (2, 3))[0, 0],),
    "linalg.norm": (
        lambda m, x, y: (
            torch.linalg.norm(y, dim=(2, 3)) + torch.linalg.vector_norm(y, 1, dim=(2, 3))
        ),
    ),
    "norm of nothing": (lambda m, x, y: (y * 0).norm(dim=2) + (y * 0).norm(dim=1).sum(),),
    "var and std": (
        lambda m, x, y: y.var((2, 3), keepdim=True) + y.std(2, unbiased=False)[:, :, None],
    ),
    "var with a correction": (lambda m, x, y: torch.var(y, dim=3, correction=0) + y.std(),),
    "std of what does not vary": (lambda m, x, y: (y * 0).std((2, 3)) + y.var(1).mean(),),
    "softmax": (lambda m, x, y: y.softmax(2) * torch.log_softmax(y, 3) + functional.softmin(y, 2),),
    "interpolation by areas": (
        lambda m, x, y: (
            functional.interpolate(y, (3, 9), mode="area")
            + functional.interpolate(m.down(y), size=(3, 9))
        ),
        {"down": nn.Upsample(scale_factor=0.5, mode="area")},
    ),
    "softmax layers": (
        lambda m, x, y: m.rows(y) + m.channels(y) - m.logarithm(y).softmax(1),
        {"rows": nn.Softmax(2), "channels": nn.Softmax2d(), "logarithm": nn.LogSoftmax(-1)},
    ),
    "logsumexp": (lambda m, x, y: y.logsumexp((2, 3)) + torch.logsumexp(y, 1).mean(),),
    "normalize": (lambda m, x, y: functional.normalize(y, dim=2) + functional.normalize(y),),
    "LocalResponseNorm": (lambda m, x, y: m.norm(y), {"norm": nn.LocalResponseNorm(3)}),
}

# Products of small whole numbers; the last ones are far below 2**53.
CONTRACTED: dict[str, tuple[Any, ...]] = {
    "einsum over channels": (
        lambda m, x, y: torch.einsum("bchw,oc->bohw", y, m.w),
        {"w": learned(3, 4)},
    ),
    "einsum over rows": (lambda m, x, y: torch.einsum("bchw, bdhw -> bcdw", y, y + 1),),
    "einsum over all of space": (lambda m, x, y: torch.einsum("bchw,bdhw->bcd", y, y),),
    "einsum of other labels": (lambda m, x, y: torch.einsum("bchw,bcvw->bchv", y, y),),
    "einsum without result": (
        lambda m, x, y: torch.einsum("bchw,cd", [y, m.w]),
        {"w": learned(4, 3)},
    ),
    "einsum with an ellipsis": (
        lambda m, x, y: torch.einsum("...hw,w->...h", y, m.w),
        {"w": learned(6)},
    ),
    "einsum of three": (
        lambda m, x, y: torch.einsum("bchw,bdhw,cd->bhw", y, x, m.w),
        {"w": learned(4, 2)},
    ),
    "matmul": (lambda m, x, y: y @ y.transpose(2, 3) + torch.matmul(y, m.w), {"w": learned(6, 8)}),
    "matmul by a vector": (lambda m, x, y: y @ m.w, {"w": learned(6)}),
    "matmul of a weight": (lambda m, x, y: m.w @ y, {"w": learned(5, 8)}),
    "bmm": (lambda m, x, y: torch.bmm(y[:, 0], y[:, 1].mT) + y[:, 0].bmm(y[:, 2].mT),),
    "mm": (lambda m, x, y: torch.mm(y[0, 0].mT, y[0, 1]),),
    "baddbmm": (lambda m, x, y: torch.baddbmm(y[:, 0], y[:, 1] @ y[:, 2].mT, y[:, 3]),),
    "tensordot": (
        lambda m, x, y: torch.tensordot(y, m.w, dims=([1, 3], [0, 1])),
        {"w": learned(4, 6, 2)},
    ),
    "outer": (lambda m, x, y: torch.outer(y[0, 0, :, 0], y[0, 0, 0]),),
}

ATTENTION: dict[str, tuple[Any, ...]] = {
    "attention over rows": (
        lambda m, x, y: functional.scaled_dot_product_attention(y, y + 1, y * 2),
    ),
    "attention with a mask": (
        lambda m, x, y: functional.scaled_dot_product_attention(y, y + 1, y * 2, m.mask),
        {"mask": torch.ones(8, 8).tril().bool()},
    ),
    "causal attention": (
        lambda m, x, y: functional.scaled_dot_product_attention(y, y, y.relu(), is_causal=True),
    ),
    "a layer over tokens that are whole": (
        lambda m, x, y: m.layer(*[y.flatten(2).mT] * 3, need_weights=False)[0],
        {"layer": nn.MultiheadAttention(4, 2, batch_first=True)},
    ),
    "a layer over columns": (
        lambda m, x, y: m.layer(*[y.mean(1).transpose(0, 1)] * 3)[0],
        {"layer": nn.MultiheadAttention(6, 2)},
    ),
    "its weights": (
        lambda m, x, y: m.layer(*[y.sum(1)] * 3)[0].mean() + m.layer(*[y.sum(1)] * 3)[1],
        {"layer": nn.MultiheadAttention(6, 3, batch_first=True, bias=False)},
    ),
    "other keys, with masks": (
        lambda m, x, y: m.layer(
            y.sum(1),
            x[:, 0, :5, :3],
            x[:, 1, :5, :4],
            key_padding_mask=m.padding,
            attn_mask=m.mask,
            average_attn_weights=False,
        )[0],
        {
            "layer": nn.MultiheadAttention(6, 2, kdim=3, vdim=4, batch_first=True),
            "mask": torch.ones(8, 5).triu(3).bool(),
            "padding": torch.tensor([[False] * 4 + [True], [False] * 5]),
        },
    ),
}


@ranks(2, 4)
def test_contractions(world: World) -> None:
    check_functions(world, CONTRACTED)


@ranks(2, 4)
def test_attention(world: World) -> None:
    check_functions(world, ATTENTION, BOUND, gather=True)


@ranks(4)
def test_attention_drops_the_same_on_all_partitions(world: World) -> None:
    """Dropped elements depend on their places in the whole, so replicas stay replicas."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True).double()

    class SelfAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.layer(x, x, x, need_weights=False)[0]
            return y

    x = integer_valued((4, 8, 6), seed=1)
    results = []
    for shape in ((2, 2, 1), (1, 4, 1), (4, 1, 1)):
        torch.manual_seed(5)
        P = grid(world, shape)
        twin = distribute(SelfAttention(), P, x, gather=True)
        results.append(whole_of(twin(block_of(x, P)), twin.P_y))
        close(
            whole_of(twin.eval()(block_of(x, P)), twin.P_y),
            model.eval()(x, x, x)[0],
            BOUND,
            "eval",
        )
        model.train()
    for found in results[1:]:
        close(found, results[0], BOUND, "the same elements are dropped")


LOSSES: dict[str, tuple[Any, ...]] = {
    "mse_loss": (lambda m, x, y: functional.mse_loss(y, x.repeat(1, 2, 1, 1)),),
    "l1_loss": (lambda m, x, y: functional.l1_loss(y, y.flip(1), reduction="sum"),),
    "smooth_l1_loss": (lambda m, x, y: functional.smooth_l1_loss(y, y.flip(1), beta=0.5),),
    "huber_loss": (lambda m, x, y: functional.huber_loss(y, y.flip(1), "none", 2.0),),
    "binary_cross_entropy": (
        lambda m, x, y: functional.binary_cross_entropy(y.sigmoid(), y.flip(1).sigmoid(), m.w),
        {"w": torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)},
    ),
    "binary_cross_entropy_with_logits": (
        lambda m, x, y: functional.binary_cross_entropy_with_logits(
            y, y.flip(1).sigmoid(), pos_weight=m.w
        ),
        {"w": torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)},
    ),
    "kl_div": (lambda m, x, y: functional.kl_div(y, y.flip(1).softmax(1), reduction="batchmean"),),
    "soft_margin_loss": (lambda m, x, y: functional.soft_margin_loss(y, (y > 0) * 2.0 - 1),),
    "margin_ranking_loss": (
        lambda m, x, y: functional.margin_ranking_loss(
            y[:, 0], y[:, 1], (y[:, 2] > 0) * 2.0 - 1, 0.5
        ),
    ),
    "cross_entropy": (
        lambda m, x, y: functional.cross_entropy(y, x[:, 0].gt(0).long(), m.w, ignore_index=0),
        {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])},
    ),
    "cross_entropy of probabilities": (
        lambda m, x, y: functional.cross_entropy(y, y.flip(1).softmax(1), label_smoothing=0.1),
    ),
    "nll_loss": (
        lambda m, x, y: functional.nll_loss(
            y.log_softmax(1), x[:, 0].gt(0).long(), reduction="none"
        ),
    ),
    "modules": (
        lambda m, x, y: (
            m.mse(y, y.flip(1))
            + m.bce(y, y.flip(1).sigmoid())
            + m.entropy(y, x[:, 0].gt(0).long())
            + m.hinge(y, (y > 0) * 2.0 - 1)
        ),
        {
            "mse": nn.MSELoss(reduction="sum"),
            "bce": nn.BCEWithLogitsLoss(pos_weight=torch.ones(4, 1, 1) * 2),
            "entropy": nn.CrossEntropyLoss(label_smoothing=0.2),
            "hinge": nn.HingeEmbeddingLoss(0.5),
        },
    ),
}


@ranks(2, 4)
def test_losses(world: World) -> None:
    check_functions(world, LOSSES, BOUND)


@ranks(2, 4)
def test_reductions(world: World) -> None:
    check_functions(world, REDUCED)
    check_functions(world, REDUCED_ROUNDED, BOUND)


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
            P = grid(world, shape)
            ordinary, model = Reparametrized(kind), Reparametrized(kind)
            twin = distribute(model, P, x)
            assert list(twin.state_dict()) == list(ordinary.state_dict())
            for _ in range(2):  # spectral norms change their buffers
                for each in (ordinary, twin):
                    each.zero_grad()
                expected = ordinary(x)
                weight = integer_valued(expected.shape, seed=9)
                (expected * weight).sum().backward()
                y = whole_of(twin(block_of(x, P)), twin.P_y)
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
            close(
                ordinary.eval()(x),
                whole_of(twin.eval()(block_of(x, P)), twin.P_y),
                BOUND,
                kind,
            )


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
    "topk": (lambda m, x, y: y.topk(2, 2)[0] + y.sort(dim=3)[0][:, :, :2],),
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
        r"bernoulli.* draws random numbers",
        lambda m, x, y: y * torch.bernoulli(y.mean((2, 3), keepdim=True).sigmoid()),
        {},
    ),
    "a layer that draws": (
        r"rnn \(LSTM\).* draws random numbers",
        lambda m, x, y: m.rnn(y.mean(3).flatten(1)[:, None])[0],
        {"rnn": nn.LSTM(32, 3, num_layers=2, dropout=0.5)},
    ),
    "a dim that is split": (
        r"topk.*whole of a dim that is split; .*gather=True.*holds 3 KiB",
        lambda m, x, y: y.topk(2, 2)[0],
        {},
    ),
    "attention over split tokens": (
        r"layer \(MultiheadAttention\): its keys and values.*gather=True.*holds 1\.5 KiB",
        lambda m, x, y: m.layer(y.sum(1), y.sum(1), y.sum(1))[0],
        {"layer": nn.MultiheadAttention(6, 2, batch_first=True)},
    ),
    "attention that drops": (
        r"dropout_p",
        lambda m, x, y: functional.scaled_dot_product_attention(y, y, y, dropout_p=0.5),
        {},
    ),
    "running statistics": (
        r"instance_norm",
        lambda m, x, y: functional.instance_norm(y, m.mean, m.var),
        {"mean": torch.zeros(4), "var": torch.ones(4)},
    ),
}


@ranks(2)
def test_refusals(world: World) -> None:
    check_refusals(world, REFUSED)


@ranks(3)
def test_ranks_outside_of_the_partition(world: World) -> None:
    """A rank that has no block takes part in building, and gives back what it got."""
    check_functions(world, {name: MOVED[name] for name in ("flip", "roll", "PixelUnshuffle")})
    names = ("max along rows", "prod", "cumsum", "pools of many")
    check_functions(world, {name: REDUCED[name] for name in names})
    check_functions(world, {name: EXACT[name] for name in ("conv2d", "linear")})
    check_functions(world, {"einsum over rows": CONTRACTED["einsum over rows"]})
    names = ("var and std", "softmax", "logsumexp", "normalize")
    check_functions(world, {name: REDUCED_ROUNDED[name] for name in names}, BOUND)
    names = ("mse_loss", "cross_entropy", "modules")
    check_functions(world, {name: LOSSES[name] for name in names}, BOUND)
    check_functions(world, {"its weights": ATTENTION["its weights"]}, BOUND, gather=True)

"""Some two hundred small models: every piece alone, and before a convolution.

A piece is a function of a `Pieces` module, which holds the parameters, and of a map of shape (N, 4,
H, W). A convolution before it gives it blocks; one behind it shows whether its result lies where
the plan says: if not, there are zeros, or rows taken twice, at the cut.

    alone         y = piece(conv(x))
    before        y = conv(piece(conv(x)))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations

import kadril.nn as knn

__all__ = ["REFUSED", "SmallModel", "small_models"]

Piece = Callable[["Pieces", torch.Tensor], Any]


class Pieces(nn.Module):
    """Layers and parameters that pieces are made of; most pieces use few of them."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 1.5]))
        self.shift = nn.Parameter(torch.tensor([0.1, 0.2, -0.3, 0.4]))
        self.kernel = nn.Parameter(torch.linspace(-1, 1, 4 * 4 * 9).view(4, 4, 3, 3))
        self.kernel1 = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))
        self.table = nn.Parameter(torch.linspace(-1, 1, 4 * 10 * 9).view(4, 10, 9))
        self.linear = nn.Linear(4, 4)
        self.squeeze = nn.Linear(4, 4)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.conv_open = nn.Conv2d(4, 4, 3)
        self.conv_wide = nn.Conv2d(8, 4, 1)
        self.conv_deep = nn.Conv2d(4, 16, 1)
        self.conv_coordinates = nn.Conv2d(6, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, 2)
        self.weight_norm = parametrizations.weight_norm(nn.Conv2d(4, 4, 3, padding=1))
        self.rms = nn.RMSNorm(4)
        self.layer_norm = nn.LayerNorm(4)
        self.layer_norm_all = nn.LayerNorm([4, 10, 9])
        self.group_norm = nn.GroupNorm(2, 4)
        self.batch_norm = nn.BatchNorm2d(4)
        self.instance_norm = nn.InstanceNorm2d(4, affine=True)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.prelu = nn.PReLU(4)
        self.contrast = knn.LocalContrastNorm2d(None, (3, 5))
        self.unshared = knn.LocallyConnected2d(None, 4, 4, 3, (10, 9), padding=1)
        self.index: torch.Tensor
        self.register_buffer("index", torch.tensor([2, 0, 3, 1]))


def coordinates(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of a map, from -1 to 1."""
    rows = torch.linspace(-1, 1, x.shape[2], dtype=x.dtype)
    columns = torch.linspace(-1, 1, x.shape[3], dtype=x.dtype)
    grid_rows, grid_columns = torch.meshgrid(rows, columns, indexing="ij")
    return grid_rows, grid_columns


def squeeze_excite(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    gate = torch.sigmoid(m.squeeze(x.mean((2, 3))))
    return x * gate.view(x.size(0), x.size(1), 1, 1).expand_as(x)


def coord_conv(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    rows, columns = coordinates(x)
    both = torch.stack([rows, columns]).unsqueeze(0).expand(x.shape[0], -1, -1, -1)
    return m.conv_coordinates(torch.cat([x, both], dim=1))


def sinusoids(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(x.shape[2], dtype=x.dtype).unsqueeze(1)
    rates = torch.exp(torch.arange(0, 4, 2, dtype=x.dtype) * (-math.log(100.0) / 4))
    waves = torch.cat([torch.sin(positions * rates), torch.cos(positions * rates)], dim=1)
    return x + waves.t().view(1, 4, -1, 1)


def unpacked(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=1)
    a, b, c = second.split([1, 1, 0], dim=1)
    return torch.cat((a, first, b, c), dim=1)


def by_shape(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    if x.shape[2] > 4 and x.size(-1) % 2 == 1:
        return x * 2
    return x - 1


def channel_shuffle(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def standardized_kernel(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    kernel = m.kernel - m.kernel.mean(dim=(1, 2, 3), keepdim=True)
    kernel = kernel / (kernel.std(dim=(1, 2, 3), keepdim=True) + 1e-5)
    return functional.conv2d(x, kernel, m.shift, padding=1)


def global_context(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    weights = functional.softmax(x[:, :1].flatten(2), dim=2)
    context = torch.matmul(x.flatten(2), weights.transpose(1, 2))
    return x + context.unsqueeze(3)


def nonlocal_block(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    weights = torch.softmax(tokens @ tokens.transpose(1, 2) / 2, dim=-1)
    return x + (weights @ tokens).transpose(1, 2).reshape(x.shape)


def multihead(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    tokens = x.flatten(2).transpose(1, 2)
    attended, _ = m.attention(tokens, tokens, tokens, need_weights=False)
    return attended.transpose(1, 2).reshape(x.shape)


def border_mask(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(x.shape[2], x.shape[3], dtype=x.dtype)
    mask[1:-1, 1:-1] = 1
    return x * mask


def triangle(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    tokens = x.flatten(2)
    hidden = torch.ones(tokens.shape[2], tokens.shape[2], dtype=torch.bool).tril()
    weights = (tokens.transpose(1, 2) @ tokens).masked_fill(~hidden, float("-inf"))
    return (weights.softmax(-1) @ tokens.transpose(1, 2)).transpose(1, 2).reshape(x.shape)


def zeroed_channel(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 0] = 0
    return y


def zeroed_row(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, :, 0] = 0
    return y


def written_view(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    y[:, :2].mul_(2)
    return y


def space_to_depth(m: Pieces, x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    x = x[:, :, : h // 2 * 2, : w // 2 * 2]
    x = (
        x.reshape(n, c, h // 2, 2, w // 2, 2)
        .permute(0, 1, 3, 5, 2, 4)
        .reshape(n, 4 * c, h // 2, w // 2)
    )
    return x[:, ::4] + x[:, 1::4] - x[:, 3::4]


# From (N, 4, H, W) to (N, 4, H', W'): alone, and before a convolution.
MAPS: dict[str, Piece] = {
    "chunks of channels, turned": lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "chunks of rows, turned": lambda m, x: torch.cat(x.chunk(2, 2)[::-1], 2),
    "split and unpacked": unpacked,
    "unbound and stacked": lambda m, x: torch.stack(x.unbind(1)[::-1], 1),
    "channel shuffle": channel_shuffle,
    "squeeze and excite": squeeze_excite,
    "expanded parameter": lambda m, x: x * m.scale.view(1, -1, 1, 1).expand_as(x),
    "expanded scalar": lambda m, x: x + x.mean((1, 2, 3), keepdim=True).expand(-1, 4, 10, 9),
    "coordinates as channels": coord_conv,
    "sinusoids": sinusoids,
    "a row of numbers": lambda m, x: x * torch.arange(4, dtype=x.dtype).view(1, 4, 1, 1),
    "a tensor of constants": lambda m, x: (
        x * torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=x.dtype)[:, None, None]
    ),
    "radius": lambda m, x: x * coordinates(x)[0].square().add(coordinates(x)[1] ** 2).sqrt(),
    "border mask": border_mask,
    "zeros and ones like it": lambda m, x: x + torch.zeros_like(x) - 2 * torch.ones_like(x),
    "full like it": lambda m, x: torch.full_like(x, 0.5) * x,
    "new zeros": lambda m, x: m.conv_wide(torch.cat([x, x.new_zeros(x.shape)], dim=1)),
    "zeros beside": lambda m, x: m.conv_wide(torch.cat([torch.zeros_like(x), x], dim=1)),
    "functional convolution": lambda m, x: functional.conv2d(x, m.kernel, m.shift, padding=1),
    "standardized kernel": standardized_kernel,
    "functional transposed convolution": lambda m, x: functional.conv_transpose2d(
        x, m.kernel, stride=2, padding=1
    ),
    "functional linear": lambda m, x: functional.linear(
        x.permute(0, 2, 3, 1), m.kernel1, m.shift
    ).permute(0, 3, 1, 2),
    "linear over channels": lambda m, x: m.linear(x.movedim(1, -1)).movedim(-1, 1),
    "functional layer norm": lambda m, x: functional.layer_norm(
        x.permute(0, 2, 3, 1), (4,), m.scale, m.shift
    ).permute(0, 3, 1, 2),
    "functional batch norm": lambda m, x: functional.batch_norm(
        x, None, None, m.scale, m.shift, training=True
    ),
    "functional group norm": lambda m, x: functional.group_norm(x, 2, m.scale, m.shift),
    "functional instance norm": lambda m, x: functional.instance_norm(
        x, weight=m.scale, bias=m.shift
    ),
    "normalized channels": lambda m, x: functional.normalize(x, dim=1),
    "norm over channels": lambda m, x: x / (x.norm(dim=1, keepdim=True) + 1),
    "vector norm": lambda m, x: x / (torch.linalg.vector_norm(x, dim=1, keepdim=True) + 1),
    "standardized by hand": lambda m, x: (
        (x - x.mean((2, 3), keepdim=True))
        / (x.var((2, 3), keepdim=True, unbiased=False) + 1e-5).sqrt()
    ),
    "reflection pad": lambda m, x: m.conv_open(nn.ReflectionPad2d(1)(x)),
    "replication pad": lambda m, x: m.conv_open(nn.ReplicationPad2d((1, 2, 1, 0))(x)),
    "zero pad": lambda m, x: m.conv_open(nn.ZeroPad2d(2)(x)),
    "circular pad": lambda m, x: m.conv_open(functional.pad(x, (1, 1, 1, 1), mode="circular")),
    "constant pad": lambda m, x: functional.pad(x, (1, 0, 0, 2), value=0.5),
    "pixel shuffle": lambda m, x: functional.pixel_shuffle(m.conv_deep(x), 2),
    "repeated channels": lambda m, x: m.conv_wide(x.repeat(1, 2, 1, 1)),
    "repeated rows": lambda m, x: x.repeat_interleave(2, dim=2),
    "flipped channels": lambda m, x: x.flip(1),
    "flipped rows": lambda m, x: torch.flip(x, dims=[2]),
    "rolled channels": lambda m, x: x.roll(1, dims=1),
    "rolled rows": lambda m, x: torch.roll(x, shifts=(2, -1), dims=(2, 3)),
    "largest of channels": lambda m, x: x - x.max(dim=1, keepdim=True)[0],
    "smallest of channels": lambda m, x: x * x.min(1, keepdim=True).values,
    "where any": lambda m, x: x * (x > 0.5).any(dim=1, keepdim=True).to(x.dtype),
    "top two channels": lambda m, x: torch.cat([x[:, :2], x.topk(2, dim=1).values], 1),
    "sorted channels": lambda m, x: x.sort(dim=1)[0],
    "mixed channels": lambda m, x: torch.einsum("nchw,dc->ndhw", x, m.kernel1),
    "channel attention": lambda m, x: torch.einsum(
        "ncd,ndhw->nchw", torch.einsum("nchw,ndhw->ncd", x, x).softmax(-1), x
    ),
    "viewed as another": lambda m, x: (x * 2).flatten(2).view_as(x),
    "weight norm": lambda m, x: m.weight_norm(x),
    "rms norm": lambda m, x: m.rms(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "layer norm": lambda m, x: m.layer_norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2),
    "layer norm over all": lambda m, x: m.layer_norm_all(x),
    "group norm": lambda m, x: m.group_norm(x),
    "batch norm": lambda m, x: m.batch_norm(x),
    "instance norm": lambda m, x: m.instance_norm(x),
    "multihead attention": multihead,
    "global context": global_context,
    "nonlocal block": nonlocal_block,
    "lower triangle": triangle,
    "area interpolation": lambda m, x: functional.interpolate(x, size=(5, 4), mode="area"),
    "bicubic": lambda m, x: functional.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "up and down": lambda m, x: functional.avg_pool2d(m.up(x), 2),
    "way by shape": by_shape,
    "softmax of channels": lambda m, x: x.softmax(1) + functional.log_softmax(x, dim=1),
    "softmax over space": lambda m, x: x.flatten(2).softmax(2).view(x.shape),
    "running sum of channels": lambda m, x: x.cumsum(1),
    "running sum of rows": lambda m, x: x.cumsum(2),
    "spread over space": lambda m, x: x / (1 + x.std((2, 3), keepdim=True)),
    "amax over space": lambda m, x: x - x.amax((2, 3), keepdim=True),
    "chosen channels": lambda m, x: x[:, [2, 0, 1, 3]],
    "indexed channels": lambda m, x: x.index_select(1, m.index) + x[:, m.index],
    "zeroed channel": zeroed_channel,
    "zeroed row": zeroed_row,
    "gated": lambda m, x: functional.glu(torch.cat([x, m.conv(x)], 1), dim=1),
    "prelu": lambda m, x: m.prelu(x),
    "a learned map": lambda m, x: x + m.table,
    "a step": lambda m, x: x[:, :, ::2, 1:],
    "space to depth": space_to_depth,
    "tiled": lambda m, x: m.conv_wide(torch.tile(x, (1, 2, 1, 1))),
    "half and back": lambda m, x: x.float().double().clamp(-2, 2),
    "stop gradient": lambda m, x: x * x.detach().sigmoid(),
    "local contrast": lambda m, x: m.contrast(x),
    "unshared filters": lambda m, x: m.unshared(x),
    "local response norm": lambda m, x: functional.local_response_norm(x, 2),
}

# To anything else: alone.
HEADS: dict[str, Piece] = {
    "a dictionary": lambda m, x: {"map": x * 2, "mean": x.mean((2, 3)), "both": [x, (x + 1,)]},
    "a tuple": lambda m, x: (x.amax((2, 3)), m.conv(x)),
    "squared error": lambda m, x: functional.mse_loss(x, torch.zeros_like(x)),
    "absolute error": lambda m, x: functional.l1_loss(x, x.roll(1, 1), reduction="sum"),
    "smooth error": lambda m, x: functional.smooth_l1_loss(x, x.square()),
    "cross entropy": lambda m, x: functional.cross_entropy(x, x.detach().argmax(1)),
    "cross entropy with logits": lambda m, x: functional.binary_cross_entropy_with_logits(
        x, (x.detach() > 0).to(x.dtype)
    ),
    "likelihood": lambda m, x: functional.nll_loss(x.log_softmax(1), x.detach().argmin(1)),
    "divergence": lambda m, x: functional.kl_div(
        x.log_softmax(1), x.detach().softmax(1), reduction="batchmean"
    ),
    "bilinear pooling": lambda m, x: torch.einsum("nchw,ndhw->ncd", x, x) / (x.size(2) * x.size(3)),
    "gram matrix": lambda m, x: torch.bmm(x.flatten(2), x.flatten(2).transpose(1, 2)),
    "pixel unshuffle": lambda m, x: functional.pixel_unshuffle(x[:, :, :, :8], 2),
    "total variation": lambda m, x: (
        (x[:, :, 1:] - x[:, :, :-1]).abs().mean() + (x[..., 1:] - x[..., :-1]).abs().mean()
    ),
    "norm of all": lambda m, x: x.norm() + torch.linalg.vector_norm(x),
    "rows by columns": lambda m, x: x.flatten(1) @ m.table.flatten().unsqueeze(1),
    "adaptive pools": lambda m, x: (
        functional.adaptive_max_pool2d(x, (3, 2)) - functional.adaptive_avg_pool2d(x, (3, 2))
    ),
    "pyramid": lambda m, x: torch.cat(
        [functional.adaptive_avg_pool2d(x, bins).flatten(1) for bins in (1, 2, 3)], 1
    ),
    "a list of scales": lambda m, x: [functional.avg_pool2d(x, size) for size in (1, 2, 4)],
}

# What cannot be done on blocks, or is not known: refused by name on all ranks, never wrong.
REFUSALS: dict[str, Piece] = {
    "written view": written_view,
    "lp pool": lambda m, x: functional.lp_pool2d(x, 2.0, 2),
    "noise": lambda m, x: x + torch.randn_like(x),
    "fresh noise": lambda m, x: x + torch.rand(x.shape, dtype=x.dtype),
    "way by value": lambda m, x: x if x.sum() > 0 else -x,
    "a number of it": lambda m, x: x * x.mean().item(),
    "distances": lambda m, x: torch.cdist(x, x),
    "unfolded": lambda m, x: functional.unfold(x, 3),
    "masked choice": lambda m, x: x[x > 0],
    "unpooled": lambda m, x: functional.max_unpool2d(
        *functional.max_pool2d(x, 2, return_indices=True), 2, output_size=x.shape[2:]
    ),
    "sampled": lambda m, x: functional.grid_sample(
        x, functional.affine_grid(torch.eye(2, 3, dtype=x.dtype)[None].repeat(2, 1, 1), x.shape)
    ),
    "as numpy": lambda m, x: torch.as_tensor(x.detach().numpy()) * x,
    "strided by hand": lambda m, x: x.as_strided((2, 4, 5, 9), (360, 90, 18, 1)),
}


class SmallModel(nn.Module):
    """A convolution, and a piece in its place.

    Args:
        piece: the function.
        place: "alone" or "before".
    """

    shape = (2, 2, 10, 9)

    def __init__(self, piece: Piece, place: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.pieces = Pieces()
        self.tail = nn.Conv2d(4, 2, 3, padding=1)
        self.piece, self.place = piece, place

    def forward(self, x: torch.Tensor) -> Any:
        x = self.stem(x)
        y = self.piece(self.pieces, x)
        if self.place == "alone":
            return y
        return self.tail(y)


def small_models() -> Iterator[tuple[str, Piece, str]]:
    """Name, piece and place of every model."""
    for name, piece in MAPS.items():
        for place in ("alone", "before"):
            yield f"{name}, {place}", piece, place
    for name, piece in HEADS.items():
        yield f"{name}, alone", piece, "alone"
    for name, piece in REFUSALS.items():
        yield f"{name}, alone", piece, "alone"


REFUSED = frozenset(f"{name}, alone" for name in REFUSALS)

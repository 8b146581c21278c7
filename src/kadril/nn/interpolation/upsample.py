"""Interpolation of a tensor whose spatial dims are split.

    y = (W_1 x W_2 x ...) x          x* = (W_1^T x W_2^T x ...) y*

Along each dim an output is made of 1, 2 or 4 inputs with weights that follow from its place in the
*global* tensor (`taps.py`); the matrices W have these weights. A worker gets all inputs that its
block of the output is made of, and interpolates along one dim after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch.nn import functional
from typing_extensions import Self

from kadril.nn.box_layer import BoxLayer
from kadril.nn.interpolation.interpolated_box import (
    Part,
    Weighted,
    along_each_dim,
    part_of,
    weighted,
)
from kadril.nn.interpolation.taps import AlongDim, taps_type
from kadril.ops.box_plan import WorkerBoxes
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["MODES", "DistributedUpsample", "Scale", "UpSize"]

Number = TypeVar("Number", int, float)
UpSize = int | Sequence[int] | None
Scale = float | Sequence[float] | None

# For each mode, what it does along a dim, and for how many spatial dims torch has it.
MODES: dict[str, tuple[str, Sequence[int]]] = {
    "nearest": ("nearest", (1, 2, 3)),
    "nearest-exact": ("nearest-exact", (1, 2, 3)),
    "linear": ("linear", (1,)),
    "bilinear": ("linear", (2,)),
    "trilinear": ("linear", (3,)),
    "bicubic": ("cubic", (2,)),
}
SMALL_PLANE = 128


class DistributedUpsample(BoxLayer):
    """`torch.nn.Upsample` on a partition.

    | tensor | shape on each worker |
    |---|---|
    | x | a block of N x C x spatial, of any size |
    | y | the balanced block of N x C x output spatial |

    Positions and weights are torch's to the bit (weights of bicubic to 3 eps), for contiguous
    tensors on the CPU; for `channels_last` ones, torch finds other nearest inputs for a few sizes.
    The backward pass is the adjoint of that; torch's own is not for a few sizes of the nearest
    modes, such as 3 inputs and a scale of 2.3. One exchange each in forward and backward pass.

    Args:
        P_x: an axis for batch, channels and each spatial dim.
        size: of the global output's spatial dims, one or for each.
        scale_factor: instead of `size`: outputs per input, one or for each.
        mode: "nearest", "nearest-exact", "linear" (1 spatial dim), "bilinear" and "bicubic" (2),
            "trilinear" (3).
        align_corners: whether the first and last of input and output lie at the same place; not
            for the nearest modes.
        recompute_scale_factor: whether positions follow from the sizes, and not from
            `scale_factor`.
        what: the name of the layer in errors.

    Raises:
        ValueError: settings that make no sense, or a partition without such axes.
    """

    torch_class = torch.nn.Upsample
    takes_unbatched = False

    def __init__(
        self,
        P_x: Partition,
        size: UpSize = None,
        scale_factor: Scale = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
        *,
        what: str | None = None,
    ) -> None:
        self.num_spatial = P_x.dim - 2
        name = what or f"{type(self).__name__}({mode})"
        check_mode(name, mode, align_corners, P_x)
        super().__init__(P_x, name)
        if (size is None) == (scale_factor is None):
            raise ValueError(f"{name}: give either size or scale_factor")
        if size is not None and recompute_scale_factor:
            raise ValueError(f"{name}: recompute_scale_factor is for scale_factor, not for size")
        self.size = None if size is None else self._each(size, "size")
        self.scale_factor = None
        if scale_factor is not None:
            self.scale_factor = self._each(scale_factor, "scale_factor")
        self.mode = mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    @classmethod
    def of(cls, layer: torch.nn.Module, P_x: Partition, *, what: str | None = None) -> Self:
        """Make the twin of a torch layer.

        Raises:
            TypeError: it is of another kind.
        """
        given = cls.check_kind(layer)
        return cls(
            P_x,
            given.size,
            given.scale_factor,
            given.mode,
            given.align_corners,
            given.recompute_scale_factor,
            what=what,
        )

    def _each(self, value: Number | Sequence[Number], name: str) -> tuple[Number, ...]:
        values = tuple(value) if isinstance(value, Sequence) else (value,) * self.num_spatial
        if len(values) != self.num_spatial or any(each <= 0 for each in values):
            raise ValueError(
                f"{self.what}: {name} must be a positive number, or {self.num_spatial} of them,"
                f" got {value}"
            )
        return values

    @property
    def is_whole(self) -> bool:
        """Whether a worker does what torch does in one process: where no spatial dim is split.

        Not for the nearest modes: for a few sizes, torch's backward pass takes other inputs for the
        nearest ones than its forward pass, and is not its adjoint.
        """
        lengths = self.P_x.shape[self.first_spatial :]
        return not self.mode.startswith("nearest") and all(length == 1 for length in lengths)

    def reaches(self, sizes: Sequence[int], dtype: torch.dtype) -> Sequence[AlongDim]:
        """Return how each spatial dim is interpolated.

        Raises:
            ValueError: there is no such interpolation of numbers of this type.
        """
        kind, _ = MODES[self.mode]
        if not (dtype.is_floating_point or kind.startswith("nearest")):
            raise ValueError(f"{self.what}: {self.mode} is for floating-point numbers, got {dtype}")
        scales: Sequence[float | None] = [None] * self.num_spatial
        if self.size is not None:
            outputs = [int(size) for size in self.size]
        else:
            factors = self.scale_factor or ()
            spatial = sizes[self.first_spatial :]
            outputs = [math.floor(n * factor) for n, factor in zip(spatial, factors, strict=True)]
            if not self.recompute_scale_factor:
                scales = [float(factor) for factor in factors]
        # Where the height and width of the output add up to no more, torch has another kernel.
        is_small_plane = self.num_spatial == 2 and sum(outputs) <= SMALL_PLANE
        return [
            AlongDim(
                kind,
                num_outputs,
                scale,
                bool(self.align_corners),
                taps_type(dtype),
                is_small_plane,
                self.is_whole,
            )
            for num_outputs, scale in zip(outputs, scales, strict=True)
        ]

    def derive(self, mine: WorkerBoxes, dtype: torch.dtype) -> Part | list[Weighted | None] | None:
        """Find what this worker does with its box; None for what torch does with the whole."""
        if self.is_whole:
            return None
        first, sizes = self.first_spatial, mine.plan.sizes
        boxes, outputs = mine.box[first:], mine.output[first:]
        dims = list(zip(self.reaches(sizes, dtype), sizes[first:], boxes, outputs, strict=True))
        factors = [along.power_of_two(size) for along, size, _, _ in dims]
        if None not in factors:
            return part_of([factor or 1 for factor in factors], boxes, outputs)
        return [weighted(along, size, box, output) for along, size, box, output in dims]

    def compute(self, box: torch.Tensor, mine: WorkerBoxes) -> torch.Tensor:
        """Interpolate this worker's outputs."""
        work: Part | list[Weighted | None] | None = mine.plan.derived
        if work is None:
            return functional.interpolate(
                box,
                self.size,
                self.scale_factor,
                self.mode,
                self.align_corners,
                self.recompute_scale_factor,
            )
        if isinstance(work, Part):
            return work.interpolate(box, self.mode, self.align_corners)
        return along_each_dim(box, work, self.first_spatial)

    def extra_repr(self) -> str:
        """Return the settings, as torch shows them, and where the layer is."""
        shown = f"size={self.size}" if self.size else f"scale_factor={self.scale_factor}"
        return f"P_x={text(self.P_x.shape)}, {shown}, mode={self.mode!r}"


def check_mode(what: str, mode: str, align_corners: bool | None, P_x: Partition) -> None:
    """Refuse a mode that does not exist, or not for so many dims.

    Raises:
        ValueError: it names the modes that exist.
    """
    if mode not in MODES:
        hint = "; use an adaptive average pool instead" if mode == "area" else ""
        raise ValueError(f"{what}: mode must be one of {', '.join(MODES)}, got {mode!r}{hint}")
    kind, nums_spatial = MODES[mode]
    if kind.startswith("nearest") and align_corners is not None:
        raise ValueError(f"{what}: align_corners is for the linear and cubic modes")
    if P_x.dim - 2 not in nums_spatial:
        wanted = " or ".join(str(num + 2) for num in nums_spatial)
        raise ValueError(
            f"{what}: P_x has shape {text(P_x.shape)}; {mode} needs {wanted} axes: batch, channels"
            " and the spatial ones"
        )

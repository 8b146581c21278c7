"""Taps: along one dim, which inputs an interpolated output is made of, and with which weights.

    output o lies at   c = r (o + 1/2) - 1/2       among the inputs, r being inputs per output,
                       c = r o                     or so, where the corners are aligned

    nearest    1 tap     floor(r o);  nearest-exact  floor(r (o + 1/2))
    linear     2 taps    i = floor(c), i + 1           weights 1 - t, t,             t being c - i
    cubic      4 taps    i - 1, i, i + 1, i + 2        weights of Keys' cubic at 1 + t, t, ...

Taps beyond the edge are at the edge. An error in c of one part in 2^24 is an error in t of c parts
in 2^24: far from the origin, weights of the same output would differ visibly from torch's if c were
rounded in another way. So c is made exactly as torch's kernels make it: in the precision of the
data, r (o + 1/2) - 1/2 with one rounding (compilers fuse the two operations), and floors taken of
the nearest float32. All of it is arithmetic on the global tensor, the same on all ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kadril.partition import Interval

__all__ = ["AlongDim", "Taps", "taps_type"]

Floats = npt.NDArray[np.floating[Any]]
Integers = npt.NDArray[np.int64]
Precision = type[np.float32] | type[np.float64]

KEYS_A = -0.75


class Taps(NamedTuple):
    """The taps of some outputs.

    Attributes:
        indices: of inputs; one row for each tap of an output.
        weights: the same; None where there is one tap, with weight 1.
    """

    indices: Integers
    weights: Floats | None


class AlongDim(NamedTuple):
    """Interpolation along one dim.

    Attributes:
        kind: "nearest", "nearest-exact", "linear" or "cubic".
        num_outputs: of the global tensor.
        scale: outputs per input where that is given; from the sizes where None.
        align_corners: whether the first and last of both lie at the same place.
        dtype: of positions and weights: float32 or float64.
        is_small_plane: whether torch uses its kernel for small images, which finds the nearest
            input in a way of its own.
        is_whole: whether no dim is split, and torch's own function gets all of the input.
    """

    kind: str
    num_outputs: int
    scale: float | None
    align_corners: bool
    dtype: Precision
    is_small_plane: bool = False
    is_whole: bool = False

    def output_size(self, size: int) -> int:
        """Return the number of outputs."""
        return self.num_outputs

    def inputs_of(self, outputs: Interval, size: int) -> Interval:
        """Return what some outputs are made of."""
        if self.is_whole:
            return Interval(0, size)
        indices = self.taps(outputs, size).indices
        return Interval(int(indices.min()), int(indices.max()) + 1)

    def ratio(self, size: int) -> np.floating[Any]:
        """Return inputs per output, rounded."""
        if self.align_corners:
            last = max(1, self.num_outputs - 1)  # one output lies at the first input
            return self.dtype(size - 1) / self.dtype(last)
        if self.scale is not None:
            return self.dtype(1.0 / self.scale)
        return self.dtype(size) / self.dtype(self.num_outputs)

    def taps(self, outputs: Interval, size: int) -> Taps:
        """Return the taps of some outputs."""
        places = np.arange(outputs.start, outputs.stop)
        if self.kind in ("nearest", "nearest-exact"):
            nearest = self._nearest_in_plane if self.is_small_plane else self._nearest
            return Taps(np.clip(nearest(places, size), 0, size - 1)[None], None)
        if self.kind == "cubic":
            return cubic_taps(self._positions(places, size), size)
        if size == self.num_outputs:
            return Taps(places[None], None)
        return linear_taps(np.maximum(self._positions(places, size), 0), size)

    def power_of_two(self, size: int) -> int | None:
        """Return outputs per input where it is 1, 2, 4, ...; None where it is something else.

        Then no position is rounded, as long as sizes are not astronomic: a part of the tensor may
        be interpolated as if it was all.
        """
        ratio = float(self.ratio(size))
        if self.align_corners or not 0 < ratio <= 1 or self.num_outputs > 2**20:
            return None
        factor = round(1 / ratio)
        is_power = factor * ratio == 1 and factor & (factor - 1) == 0
        return factor if is_power and (self.num_outputs == factor * size) else None

    def _positions(self, places: Integers, size: int) -> Floats:
        ratio = np.full(places.shape, self.ratio(size))
        steps: Floats = places.astype(self.dtype)
        if self.align_corners:
            product: Floats = ratio * steps
            return product
        return fused(ratio, steps + 0.5, -0.5)

    def _nearest(self, places: Integers, size: int) -> Integers:
        if self.kind == "nearest":
            steps: Floats = places.astype(self.dtype)
            return floors(steps * self.ratio(size))
        positions = np.maximum(self._positions(places, size), 0)
        return floors(positions + 0.5)

    def _nearest_in_plane(self, places: Integers, size: int) -> Integers:
        ratio = self._replace(dtype=np.float32).ratio(size)
        if self.kind == "nearest-exact":
            return floors((places.astype(np.float32) + np.float32(0.5)) * ratio)
        if self.num_outputs == size:
            return places
        if self.num_outputs == 2 * size:
            return places // 2
        return floors(places.astype(np.float32) * ratio)


def linear_taps(positions: Floats, size: int) -> Taps:
    """Return two taps for each position."""
    before, rest = index_and_rest(positions, size)
    after = np.minimum(before + 1, size - 1)
    return Taps(np.stack([before, after]), np.stack([1 - rest, rest]))


def cubic_taps(positions: Floats, size: int) -> Taps:
    """Return four taps for each position."""
    before, rest = index_and_rest(positions, size)
    steps = np.arange(-1, 3)[:, None]
    weights = [far(rest + 1), near(rest), near(1 - rest), far((1 - rest) + 1)]
    return Taps(np.clip(before + steps, 0, size - 1), np.stack(weights))


def near(distance: Floats) -> Floats:
    """Return the weight of a tap at a distance of up to 1."""
    slope = fused(np.full_like(distance, KEYS_A + 2), distance, -(KEYS_A + 3))
    return fused(slope * distance, distance, 1.0)


def far(distance: Floats) -> Floats:
    """Return the weight of a tap at a distance of 1 to 2."""
    slope = fused(np.full_like(distance, KEYS_A), distance, -5 * KEYS_A)
    return fused(fused(slope, distance, 8 * KEYS_A), distance, -4 * KEYS_A)


def index_and_rest(positions: Floats, size: int) -> tuple[Integers, Floats]:
    """Return the input before each position, and how far that is beyond it, from 0 to 1."""
    before = np.minimum(floors(positions), size - 1)
    return before, np.clip(positions - before.astype(positions.dtype), 0, 1)


def floors(positions: Floats) -> Integers:
    """Return the integers below, as torch takes them: in float32, also of float64."""
    return np.floor(positions.astype(np.float32)).astype(np.int64)


def fused(a: Floats, b: Floats, c: float) -> Floats:
    """Return a b + c, rounded once."""
    if a.dtype == np.float32:
        exact = a.astype(np.float64) * b.astype(np.float64)  # 24 + 24 bits fit into 53
        return (exact + c).astype(np.float32)
    product = a * b
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    # Dekker's product and Knuth's sum: what is lost in `product` and in `total`, exactly.
    lost = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    total = product + c
    added = total - product
    lost_too = (product - (total - added)) + (c - added)
    result: Floats = total + (lost_too + lost)
    return result


def halves(a: Floats) -> tuple[Floats, Floats]:
    """Split a float64 into two of 26 bits each, whose products are exact (Veltkamp)."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high


def taps_type(dtype: torch.dtype) -> Precision:
    """Return the precision in which torch finds positions and weights for data of a type."""
    return np.float64 if dtype == torch.float64 else np.float32

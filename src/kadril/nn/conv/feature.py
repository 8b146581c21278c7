"""Convolution of a tensor whose batch and spatial dims are split: every worker has all channels.

    P_x = 1 x 1 x 2 x 2           y = conv(x, w, b)

    +-----+-----+                 every worker:   box_r = halo(x)_r
    |  0  |  1  |                                 y_r   = conv(box_r, w, b)
    +-----+-----+
    |  2  |  3  |                 adjoint:        x*    = halo*(conv*(y*_r, w))
    +-----+-----+                                 w*    = sum_r (w* of worker r),   b* likewise

Every worker holds the parameters of the ordinary layer, and gets their whole gradient.

Small blocks are copied together with their halo. Large ones are convolved as they lie, and the
outputs at their border separately (`bordered.py`): nothing is copied, and no copy kept for the
backward pass; halos may be on their way meanwhile. Which it is follows from the blocks of all
workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.modules.conv import _ConvNd

from kadril.nn.conv.bordered import Bordered, convolve_bordered
from kadril.nn.conv.input import ConvInput
from kadril.nn.conv.layer import CONVOLUTIONS, ConvLayer, check_axes, windows_of
from kadril.nn.conv.overlap import should_overlap
from kadril.nn.conv.strips import plan_strips
from kadril.nn.sharing import refuse_data, spread_together
from kadril.ops.calling import uncompiled
from kadril.ops.structure import PlanCache, Structure, agree
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["FeatureConv"]

# Of the largest block, from which on the copy costs more than some convolutions of strips do.
LEAST_BYTES = 512 << 10

logger = logging.getLogger("kadril")


def convolve_copy(
    inputs: ConvInput,
    structure: Structure,
    convolution: Callable[..., torch.Tensor],
    settings: tuple[object, ...],
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """y = conv(halo(x), w, b); collective over the partition."""
    return convolution(inputs.gather(x, structure), weight, bias, *settings)


class FeatureConv(ConvLayer):
    """A convolution over the spatial, and the batch, blocks of `P_x`."""

    P_x: Partition
    overlap: bool | None

    def _set_up(
        self,
        layer: _ConvNd,
        P_x: Partition,
        P_y: Partition | None,
        P_w: Partition | None,
        what: str | None,
    ) -> None:
        self._adopt_settings(layer, what)
        if P_y is not None or P_w is not None:
            raise ValueError(f"{self.what}: the feature form has the input's partition, P_x, only")
        check_axes(self.what, "P_x", P_x, self.num_spatial)
        if P_x.shape[1] != 1:
            raise ValueError(
                f"{self.what}: axis 1 of P_x = {text(P_x.shape)} splits the channels; give P_y and"
                " P_w too, for the channels of the output and for the weight"
            )
        self.P_x = P_x
        self._adopt_parameters(layer)
        self._plans = PlanCache()
        self.input = ConvInput(
            P_x, self.in_channels, windows_of(self), self.padding_mode, self.what
        )

    @uncompiled
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve; collective over the partition.

        Args:
            x: this worker's block of the input; a zero-volume tensor on other ranks.

        Returns:
            Its block of the output, which is balanced; a copy of `x` on other ranks.

        Raises:
            ValueError: the input does not fit to the partition or to the layer; on every worker,
                before any of it is moved.
            MismatchError: the blocks do not make up a tensor; likewise.
        """
        if not self.P_x.active or self.weight is None:
            refuse_data(x, self.what)
            return x.clone()
        structure = agree(self.P_x, x, self.what)
        self.input.plan(structure)
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = spread_together(
            [self.weight, self.bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        (bordered,) = self._plans.get(structure, lambda: (self._plan_bordered(structure),))
        if bordered is not None and weight is not None:
            return convolve_bordered(
                x, weight, bias, bordered, requires_grad=structure.requires_grad
            )
        return self._convolve_copy(structure)(x, weight, bias)

    @property
    def overlaps(self) -> bool:
        """Whether halos are exchanged while blocks are convolved, where they can be."""
        if self.overlap is not None:
            return self.overlap
        return self.P_x.active and should_overlap(self.P_x.transport)

    def _plan_bordered(self, structure: Structure) -> Bordered | None:
        """How to convolve the block as it lies; None, on all workers, where it is copied first."""
        plan = self.input.plan(structure)
        if plan.is_local:
            return None
        largest = max(math.prod(shape) for shape in structure.shapes) * structure.dtype.itemsize
        if not self.overlap and largest < LEAST_BYTES:
            logger.debug("%s: blocks are small, and copied together with their halos", self.what)
            return None
        strips = None
        if self.padding_mode in ("zeros", "circular") and not structure.dtype.is_complex:
            strips = plan_strips(self.P_x, plan.blocks, self.input.windows, self.padding_mode)
        if strips is None:
            level = logging.WARNING if self.overlap else logging.DEBUG
            words = "%s: blocks are copied together with their halos, and convolved after that:"
            words += " this padding, stride or cut does not let them be convolved as they lie"
            logger.log(level, words, self.what)
            return None
        when = "while" if self.overlaps else "before"
        logger.debug("%s: halos are exchanged %s the block is convolved", self.what, when)
        return Bordered(
            strips,
            CONVOLUTIONS[self.num_spatial],
            self.stride,
            self.dilation,
            self.groups,
            self.P_x,
            self.what,
            self.overlaps,
            self._convolve_copy(structure),
        )

    def _convolve_copy(self, structure: Structure) -> Callable[..., torch.Tensor]:
        """The convolution of a block that is copied together with its halo: of x, weight, bias."""
        settings = (self.stride, self.input.torch_padding, self.dilation, self.groups)
        return partial(
            convolve_copy, self.input, structure, CONVOLUTIONS[self.num_spatial], settings
        )

    def _where(self) -> str:
        return f"overlap={self.overlaps}, P_x={text(self.P_x.shape)}"

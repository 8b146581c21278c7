"""The feature form of a convolution: the batch and spatial dims are split, and no channels.

    P_x = 1 x 1 x 2 x 2           y = conv(x, w, b)

    +-----+-----+                 every worker:   box_r = gather(x)_r
    |  0  |  1  |                                 y_r   = conv(box_r, w, b)
    +-----+-----+
    |  2  |  3  |                 adjoint:        x*    = gather*(conv*(y*_r, w))
    +-----+-----+                                 w*    = sum_r (w* of worker r),   b* likewise

Every worker holds the parameters of the ordinary layer, and gets their whole gradient.

Small blocks are copied together with their halo. Large ones are convolved as they lie, and the
outputs at their border separately (`strip_conv.py`): nothing is copied, and no copy kept for the
backward pass; halos may be on their way meanwhile. Which it is follows from the blocks of all
workers. Transposed convolutions always gather.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Hashable, Sequence

import torch

from kadril.nn.conv.conv_form import ConvForm, Kind, check_axes
from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.conv.convolution import CONVOLUTIONS, Convolution
from kadril.nn.conv.overlap import can_overlap, should_overlap
from kadril.nn.conv.strip_conv import StripConv, convolve_with_strips
from kadril.nn.conv.strips import StripPlan, plan_strips
from kadril.nn.sharing import spread_together
from kadril.ops.box_plan import BoxPlan
from kadril.ops.structure import Structure
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["FeatureForm"]

# From this size of the largest block on, its copy costs more than some convolutions of strips.
LEAST_BYTES = 512 << 10

logger = logging.getLogger("kadril")


class FeatureForm(ConvForm):
    """A convolution over the spatial, and the batch, blocks of `P_x`.

    Args:
        kind: ordinary or transposed.
        settings: of the torch layer.
        P_x: where input and output are.
        overlap: see `DistributedConv`.
        what: name of the layer in errors.

    Raises:
        ValueError: a partition without such axes, or that splits the channels.
    """

    def __init__(
        self,
        kind: type[Kind],
        settings: ConvSettings,
        P_x: Partition,
        overlap: bool | None,
        what: str,
    ) -> None:
        check_axes(what, "P_x", P_x, settings.num_spatial)
        if P_x.shape[1] != 1:
            raise ValueError(
                f"{what}: axis 1 of P_x = {text(P_x.shape)} splits the channels; give P_y and"
                " P_w too, for the channels of the output and for the weight"
            )
        super().__init__(kind, settings, P_x, what)
        self.overlap = overlap
        if overlap and P_x.active and not can_overlap(P_x.transport):
            logger.warning(
                "%s: halos are exchanged before blocks are convolved, although overlap=True: this"
                " MPI was initialized for one thread only; set mpi4py.rc.thread_level ="
                " 'multiple' before mpi4py.MPI is imported",
                what,
            )

    def _settings_for(self, output_size: Sequence[int] | None) -> Hashable | None:
        if self.overlap is not None:  # a layer that was told to overlap says when it cannot
            return None
        return super()._settings_for(output_size), self.overlaps

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        output_size: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Convolve; collective over the partition."""
        # Before the exchange, so that in the backward pass it comes after, on every worker.
        weight, bias = spread_together(
            [weight, bias], self.P_x.group, what=f"parameters of {self.what}"
        )
        if weight is None:
            raise AssertionError("every worker has the weight")
        box, mine, structure = self.gather_for(output_size)(x)
        if mine.plan.leaves_blocks:
            strips = self._strip_conv(mine.plan.derived, structure)
            return convolve_with_strips(
                x, weight, bias, strips, requires_grad=structure.requires_grad
            )
        return self.kind.run(box, weight, bias, mine.plan, mine.index[2:], self.settings.groups)

    @property
    def overlaps(self) -> bool:
        """Whether halos are exchanged while blocks are convolved, where they can be."""
        if not self.P_x.active:
            return bool(self.overlap)
        if self.overlap is not None:
            return self.overlap and can_overlap(self.P_x.transport)
        return should_overlap(self.P_x.transport)

    def _plan(self, output_size: Sequence[int] | None, structure: Structure) -> BoxPlan:
        plan = self.kind.plan(structure, output_size)
        if plan.is_local or not isinstance(self.kind, Convolution):
            return plan
        strips = self._plan_strips(self.kind, plan, structure)
        if strips is None:
            return plan
        return dataclasses.replace(plan, leaves_blocks=True, derived=strips)

    def _plan_strips(
        self, kind: Convolution, plan: BoxPlan, structure: Structure
    ) -> StripPlan | None:
        """Plan the strips of a block that is convolved as it lies; None, on all, for a copy."""
        largest = max(math.prod(shape) for shape in structure.shapes) * structure.dtype.itemsize
        if not self.overlap and largest < LEAST_BYTES:
            logger.debug("%s: blocks are small, and copied together with their halos", self.what)
            return None
        strips, mode = None, self.settings.padding_mode
        if mode in ("zeros", "circular") and not structure.dtype.is_complex:
            strips = plan_strips(self.P_x, plan.blocks, kind.windows, mode)
        if strips is None:
            level = logging.WARNING if self.overlap else logging.DEBUG
            words = "%s: blocks are copied together with their halos, and convolved after that:"
            words += " this padding, stride or cut does not let them be convolved as they lie"
            logger.log(level, words, self.what)
            return None
        when = "while" if self.overlaps else "before"
        logger.debug("%s: halos are exchanged %s the block is convolved", self.what, when)
        return strips

    def _strip_conv(self, strips: StripPlan, structure: Structure) -> StripConv:
        settings = self.settings
        return StripConv(
            plan=strips,
            convolution=CONVOLUTIONS[settings.num_spatial],
            stride=settings.stride,
            dilation=settings.dilation,
            groups=settings.groups,
            P_x=self.P_x,
            what=self.what,
            overlaps=self.overlaps,
            compose=self._convolve_copy(structure),
        )

    def _convolve_copy(self, structure: Structure) -> Callable[..., torch.Tensor]:
        """Return the convolution of a block that is gathered with its halo: of x, weight, bias."""

        def convolve(
            x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
        ) -> torch.Tensor:
            plan = self.gather.plan(structure)
            box = self.gather.fetch(x, structure)
            return self.kind.run(box, weight, bias, plan, (), self.settings.groups)

        return convolve

    def __str__(self) -> str:
        """Describe where the layer is, and how it exchanges halos."""
        overlap = "" if self.kind.is_transposed else f"overlap={self.overlaps}, "
        return f"{overlap}P_x={text(self.P_x.shape)}"

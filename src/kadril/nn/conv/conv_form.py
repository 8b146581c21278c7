"""Forms of a convolution: which dims are split, and who holds which part of the weight.

| form | partitions | what each worker holds of the weight |
|---|---|---|
| Feature | P_x = batch x 1 x S | all of it |
| Channel | P_x = batch x in x 1.., P_y = batch x out x 1.., P_w = out x in x 1.. | its block |
| General | P_x = batch x in x S, P_y = batch x out x S, P_w = out x in x S | its block |

Where the batch is split, P_w of the last two has an axis for it before the others. Each form takes
either kind of convolution, ordinary or transposed, of any number of spatial dims.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import partial
from typing import Literal

import torch

from kadril.nn.conv.conv_settings import ConvSettings
from kadril.nn.conv.convolution import Convolution
from kadril.nn.conv.transposed_convolution import TransposedConvolution
from kadril.ops.box_gather import BoxGather
from kadril.ops.box_plan import BoxPlan
from kadril.ops.structure import PlanCache, Structure
from kadril.partition import Partition
from kadril.partition.pairing import text

__all__ = ["ConvForm", "FormName", "Kind", "check_axes", "form_for"]

FormName = Literal["Feature", "Channel", "General"]

Kind = Convolution | TransposedConvolution


class ConvForm:
    """Base of the forms: a convolution on the partitions that it is spread over.

    Args:
        kind: ordinary or transposed.
        settings: of the torch layer.
        P_x: where the input is.
        what: name of the layer in errors.

    Attributes:
        kind: the arithmetic of one worker.
        everyone: all workers that take part.
    """

    def __init__(self, kind: type[Kind], settings: ConvSettings, P_x: Partition, what: str) -> None:
        self.kind = kind(settings, P_x, what)
        self.settings = settings
        self.everyone = self.P_x = P_x
        self.what = what
        self._gathers = PlanCache()

    def __call__(
        self,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        output_size: Sequence[int] | None = None,
    ) -> torch.Tensor:
        """Convolve; collective over all workers that take part.

        Args:
            x: this worker's block of the input.
            weight: its copy, or its block of the weight; None where it has none.
            bias: its copy, or its block of the bias; None where it has none.
            output_size: of a transposed convolution, instead of the output padding.
        """
        raise NotImplementedError

    @property
    def gather(self) -> BoxGather:
        """Gather that gives the workers of `P_x` the boxes that their outputs are made of."""
        return self.gather_for(None)

    def gather_for(self, output_size: Sequence[int] | None) -> BoxGather:
        """Return the gather for an output of this size; None for the one of the settings."""
        key = None if output_size is None else tuple(int(size) for size in output_size)
        return self._gathers.get(
            key,
            lambda: BoxGather(
                self.P_x, partial(self._plan, key), self.what, settings=self._settings_for(key)
            ),
        )

    def _plan(self, output_size: Sequence[int] | None, structure: Structure) -> BoxPlan:
        return self.kind.plan(structure, output_size)

    def _settings_for(self, output_size: Sequence[int] | None) -> Hashable | None:
        """All that the plans of a gather follow from; layers that are alike share them."""
        return type(self.kind), self.settings, output_size


def form_for(P_x: Partition, P_y: Partition | None, P_w: Partition | None) -> FormName:
    """Return the form that some partitions call for."""
    if P_y is None and P_w is None:
        return "Feature"
    return "Channel" if all(length == 1 for length in P_x.shape[2:]) else "General"


def check_axes(what: str, name: str, partition: Partition, num_spatial: int) -> None:
    """Refuse a partition without one axis for the batch, the channels, and each spatial dim.

    Raises:
        ValueError: names the partition.
    """
    if partition.dim != num_spatial + 2:
        raise ValueError(
            f"{what}: {name} has shape {text(partition.shape)}; it needs {num_spatial + 2} axes:"
            f" batch, channels and {num_spatial} spatial"
        )

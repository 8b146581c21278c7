"""Rules for the modules that pad: `nn.ZeroPad2d`, `nn.ReflectionPad3d` and their like."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from kadril.nn.distribution.layout import Layout, Subgrids
from kadril.nn.distribution.rules.call import Call, Decision, Rule
from kadril.nn.distribution.rules.functions.slices import make_pad

__all__ = ["PADS"]

KINDS = {"Constant": "constant", "Zero": "constant", "Reflection": "reflect"}
KINDS.update({"Replication": "replicate", "Circular": "circular"})


class DistributedPad(nn.Module):
    """A module that pads, on the blocks of a partition.

    Args:
        layer: of torch.
        mode: of `F.pad`.
        layout: of the input.
        subgrids: of the partition.
        what: name of the layer in errors.
    """

    def __init__(
        self, layer: Any, mode: str, layout: Layout, what: str, subgrids: Subgrids
    ) -> None:
        super().__init__()
        self.padding: Sequence[int] = layer.padding
        self.mode = mode
        self.value: float = getattr(layer, "value", 0.0)
        self._pad = make_pad(layout, what, subgrids)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pad; collective over the partition."""
        y: torch.Tensor = self._pad(x, self.padding, self.mode, self.value)
        return y

    def extra_repr(self) -> str:
        """Show the settings."""
        return f"{tuple(self.padding)}, mode={self.mode!r}"


def pad_rule(mode: str) -> Rule:
    """Return the rule for the modules of one mode."""

    def rule(call: Call) -> Decision:
        operand = call.operand
        layout = call.fitting(call.layout(operand), call.result.shape)
        make = partial(DistributedPad, call.module, mode, layout, call.name)
        return Decision({operand: layout}, layout, make)

    return rule


PADS: dict[type[nn.Module], Rule] = {
    getattr(nn, f"{kind}Pad{num}d"): pad_rule(mode)
    for kind, mode in KINDS.items()
    for num in (1, 2, 3)
}

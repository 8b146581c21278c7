"""A function that does what a layer does, seen as a call of that layer."""

from __future__ import annotations

from torch import fx, nn

from kadril.nn.distribution.rules.call import Call

__all__ = ["LayerCall"]


class LayerCall(Call):
    """A call, as if a layer had been called with one of its operands.

    Args:
        call: of the function, or of a module that stands for the layer.
        module: the layer.
        operand: what it is called with.
    """

    def __init__(self, call: Call, module: nn.Module, operand: fx.Node) -> None:
        super().__init__(call.node, module, call.layouts, call.shapes, call.lengths)
        self.name = call.name
        self.may_gather = call.may_gather
        self._operand = operand

    @property
    def operands(self) -> list[fx.Node]:
        """The operand; parameters are not among them."""
        return [self._operand]

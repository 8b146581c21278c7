"""Linear operators on distributed tensors, as torch's autograd knows them.

A primitive is two plain functions on blocks, F and its adjoint F*. What all of them need besides is
here: every worker is kept in the graph when any worker's input is, a lazily conjugated or negated
tensor is made into memory, and a second derivative is refused by name instead of being silently 0.

    forward     y  = F x
    backward    x* = F* y*
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from kadril.errors import UnsupportedError
from kadril.ops.calling import anchor_for, apply, beneath

__all__ = ["Done", "Operator", "apply_operator", "put_in_graph", "resolved"]


class Operator(Protocol):
    """A linear operator; both functions are collective over the same workers.

    They get tensors without a graph, of any strides, and give new memory.
    """

    @property
    def what(self) -> str:
        """Its name, for errors."""
        ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """y = F x."""
        ...

    def adjoint(self, y: torch.Tensor) -> torch.Tensor | None:
        """x* = F* y*; None where this rank's input has no part in it."""
        ...


def apply_operator(
    operator: Operator, x: torch.Tensor, *, requires_grad: bool, done: torch.Tensor | None = None
) -> torch.Tensor:
    """F x, with F* as its backward pass.

    Args:
        operator: F.
        x: this rank's block; it stays in the graph also where the rank gives nothing.
        requires_grad: whether any worker's block does. Then all of them are there for the
            collectives of the backward pass.
        done: F x, where that is there already; it has no graph, and nobody else has it.
    """
    if not (torch.is_grad_enabled() and (x.requires_grad or requires_grad)):
        return operator.forward(resolved(x)) if done is None else done
    anchor = None if x.requires_grad else anchor_for(True)
    # In a tuple: as an argument of its own it would be an input that is given back.
    return apply(OperatorFunction, x, anchor, operator, (done,))


def resolved(x: torch.Tensor) -> torch.Tensor:
    """A tensor whose memory holds its values, without a graph.

    Torch conjugates and negates lazily.
    """
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x.detach() if x.requires_grad else x


class OperatorFunction(torch.autograd.Function):
    """F, and F* as its backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        _: torch.Tensor | None,
        operator: Operator,
        done: tuple[torch.Tensor | None],
    ) -> torch.Tensor:
        """y = F x."""
        ctx.operator, ctx.shape, ctx.dtype = operator, x.shape, x.dtype
        return operator.forward(resolved(x)) if done[0] is None else done[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = F* y*."""
        return pull_back(grads[0], ctx.operator, ctx.shape, ctx.dtype), None, None, None


def pull_back(
    grad: torch.Tensor, operator: Operator, shape: torch.Size, dtype: torch.dtype
) -> torch.Tensor:
    """x* = F* y*, in the shape and dtype of x."""
    with torch.no_grad():
        got = operator.adjoint(resolved(grad))
        if got is None:
            got = grad.new_zeros(shape, dtype=dtype)
        x = got.reshape(shape)
    if torch.is_grad_enabled() and grad.requires_grad:
        x = apply(OnceFunction, x, grad, operator.what)
    return x


class Done(NamedTuple):
    """F, and what it was applied to; the same for all blocks of a shape.

    Attributes:
        operator: F.
        shape: of the block.
        dtype: of the block.
    """

    operator: Operator
    shape: torch.Size
    dtype: torch.dtype


class DoneFunction(torch.autograd.Function):
    """F x, where that is there already, and F* as its backward pass."""

    @staticmethod
    def forward(ctx: Any, _: torch.Tensor, done: Done, y: tuple[torch.Tensor]) -> torch.Tensor:
        """y = F x."""
        ctx.done = done
        return y[0]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """x* = F* y*."""
        return pull_back(grads[0], *ctx.done), None, None


# As `apply_operator` for a block that needs a gradient, in fewer steps: (x, done, (y,)).
put_in_graph = beneath(DoneFunction)


class OnceFunction(torch.autograd.Function):
    """A gradient that has no derivative itself."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, _: torch.Tensor, what: str) -> torch.Tensor:
        """The gradient as it is."""
        ctx.what = what
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Refuse."""
        raise UnsupportedError(
            f"{ctx.what} can be differentiated once; the gradient of a gradient through it was"
            " asked for. Leave the second derivative to a part of the model that lies on one rank"
        )

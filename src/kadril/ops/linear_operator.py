"""Linear operators on distributed tensors, as torch's autograd knows them.

A primitive is two plain functions on blocks, F and its adjoint F*. What all of them need besides is
here: every worker is kept in the graph when any worker's input is, and a lazily conjugated or
negated tensor is made into memory.

    forward             y   = F x
    backward            x*  = F* y*
    its own backward    y** = F x**          and so on: F* is an operator whose adjoint is F
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from kadril.ops.calling import anchor_for, apply_tied, beneath, tie, tied

__all__ = [
    "Adjoint",
    "Operator",
    "Reverse",
    "apply_operator",
    "pull_back",
    "put_in_graph",
    "resolved",
]


class Operator(Protocol):
    """A linear operator; both functions are collective over the same workers.

    They get tensors without a graph, of any strides, and a name for the collective, which is part
    of what ranks compare. They give new memory.

    One that is not linear has its derivative at x, which is, as the attribute `tangent`.
    """

    @property
    def what(self) -> str:
        """Name of the operator, for errors."""
        ...

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y = F x."""
        ...

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor | None:
        """x* = F* y*; None where this rank's input has no part in it."""
        ...


def apply_operator(
    operator: Operator, x: torch.Tensor, *, requires_grad: bool, done: torch.Tensor | None = None
) -> torch.Tensor:
    """Return F x, with F* as its backward pass.

    Args:
        operator: F.
        x: this rank's block; it stays in the graph also where the rank gives nothing.
        requires_grad: whether any worker's block does. Then all of them are there for the
            collectives of the backward pass.
        done: F x, where that is there already; it has no graph, and nobody else has it.
    """
    if not (torch.is_grad_enabled() and (x.requires_grad or requires_grad)):
        return operator.forward(resolved(x), operator.what) if done is None else done
    anchor = None if x.requires_grad else anchor_for(True)
    # In a tuple: as an argument of its own it would be an input that is given back.
    return apply_tied(OperatorFunction, x, anchor, operator, (done,))


def resolved(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose memory holds its values, without a graph.

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
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y = F x."""
        ctx.adjoint = Adjoint(operator, x.shape, x.dtype)
        y = operator.forward(resolved(x), operator.what) if done[0] is None else done[0]
        return tie(ctx, y)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """x* = F* y*."""
        return pull_back(tied(ctx, grads[0]), ctx.adjoint), None, None, None


def pull_back(y: torch.Tensor, adjoint: Adjoint) -> torch.Tensor:
    """Return x* = F* y*, for the backward of a function; F is its own backward if recorded.

    Collectives have another name then: ranks of which only some record would miss each other later.
    """
    if torch.is_grad_enabled():
        return apply_operator(adjoint, y, requires_grad=True)
    return adjoint.forward(resolved(y), f"adjoint of {adjoint.operator.what}")


class Adjoint(NamedTuple):
    """F* as an operator, whose adjoint is F.

    Attributes:
        operator: F.
        shape: of x.
        dtype: of x.
    """

    operator: Operator
    shape: torch.Size
    dtype: torch.dtype

    @property
    def what(self) -> str:
        """Name of the operator, for errors."""
        return f"adjoint of {self.operator.what}, with a graph"

    def forward(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x* = F* y*, in the shape and dtype of x."""
        x = self.operator.adjoint(y, what)
        if x is None:
            return y.new_zeros(self.shape, dtype=self.dtype)
        return x if x.shape == self.shape else x.reshape(self.shape)

    def adjoint(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y** = F x**."""
        linear: Operator = getattr(self.operator, "tangent", self.operator)
        return linear.forward(x, what)


class Reverse(NamedTuple):
    """An operator whose forward is the adjoint of another one, and the other way round.

    Attributes:
        operator: the other one; its adjoint gives a tensor on every rank.
    """

    operator: Operator

    @property
    def what(self) -> str:
        """Name of the operator, for errors."""
        return self.operator.what

    def forward(self, x: torch.Tensor, what: str) -> torch.Tensor:
        """y = F* x."""
        y = self.operator.adjoint(x, what)
        if y is None:
            raise AssertionError(f"{what}: the adjoint gives nothing, so it is no operator")
        return y

    def adjoint(self, y: torch.Tensor, what: str) -> torch.Tensor:
        """x* = F y*."""
        return self.operator.forward(y, what)


class DoneFunction(torch.autograd.Function):
    """F x, where that is there already, and F* as its backward pass."""

    @staticmethod
    def forward(
        ctx: Any, _: torch.Tensor, adjoint: Adjoint, y: tuple[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """y = F x."""
        ctx.adjoint = adjoint
        return tie(ctx, y[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """x* = F* y*."""
        return pull_back(tied(ctx, grads[0]), ctx.adjoint), None, None


run_done = beneath(DoneFunction)


def put_in_graph(x: torch.Tensor, adjoint: Adjoint, y: tuple[torch.Tensor]) -> torch.Tensor:
    """Do what `apply_operator` does for a block with a gradient, and y = F x, in fewer steps."""
    found: torch.Tensor = run_done(x, adjoint, y)[0]
    return found

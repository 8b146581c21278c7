"""Calling an autograd function, with a type; and keeping every rank in the graphs that it makes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["anchor_for", "apply", "apply_tied", "beneath", "tie", "tied", "uncompiled"]

Call = TypeVar("Call", bound=Callable[..., Any])

NOTHING = torch.empty(0)
WHY_UNCOMPILED = "it communicates, in an order that is the same on all ranks"


def uncompiled(function: Call) -> Call:
    """Keep `torch.compile` away from a function, and from all that it calls.

    Whatever communicates is one: ranks have to do so in the same order, in both directions, and a
    compiler that is free to order calls of one graph knows nothing of the other ranks. What is
    between such functions is compiled.

    It is `torch.compiler.disable`, once a program has loaded the compiler: that function loads it
    when it is called, which takes seconds, and most programs never compile anything.
    """
    disabled: Callable[..., Any] | None = None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal disabled
        if disabled is None:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            disabled = torch.compiler.disable(function, reason=WHY_UNCOMPILED)  # type: ignore[no-untyped-call]
        return disabled(*args, **kwargs)

    if not hide_from_compiler(call):
        found: Call = torch.compiler.disable(function, reason=WHY_UNCOMPILED)  # type: ignore[no-untyped-call]
        return found
    return cast(Call, call)


def hide_from_compiler(call: Callable[..., Any]) -> bool:
    """Mark a function as `torch.compiler.disable` does, without loading the compiler.

    The caller's trace ends before a function so marked, and its own frame is not traced. Torch has
    no public name for either.

    Returns:
        whether this version of torch has what it takes.
    """
    try:
        from torch._C._dynamo import eval_frame

        leave = eval_frame._FrameExecStrategy(
            eval_frame._FrameAction.SKIP, eval_frame._FrameAction.DEFAULT
        )
        eval_frame.set_code_exec_strategy(call.__code__, leave)
    except (ImportError, AttributeError):
        return False
    call.__dict__.update(_torchdynamo_disable=True, _torchdynamo_disable_msg=WHY_UNCOMPILED)
    return True


def apply(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    """Apply a function that gives one tensor.

    Past `Function.apply`, which looks for the wrappers of `torch.func` and takes a third of the
    time of a short operation for it; what is beneath it refuses those by itself.
    """
    found: torch.Tensor = beneath(function)(*arguments)
    return found


def apply_tied(function: type[torch.autograd.Function], *arguments: object) -> torch.Tensor:
    """Apply a function whose forward gives its result with a `tie`."""
    found: torch.Tensor = beneath(function)(*arguments)[0]
    return found


@functools.cache
def beneath(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the function beneath `Function.apply`."""
    found: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return found


def anchor_for(requires_grad: bool) -> torch.Tensor:
    """Return a tensor without elements, to be given to a function besides its input.

    It keeps a rank in the graph whose own input needs no gradient, when other ranks' inputs do: all
    of them have to be there for the collectives of the backward pass.
    """
    return torch.empty(0, requires_grad=requires_grad and torch.is_grad_enabled())


def tie(
    ctx: Any, y: torch.Tensor, *saved: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the results of the forward of a function whose backward is collective.

    They are y, and a tie to it.

    The backward pass may itself be differentiated, and then y* is a function of y. On some ranks it
    may not be: a rank that holds nothing has a constant for y*, and so has one whose loss is
    linear. All of them have to be there for the collectives of the second derivative, so y* is
    tied to y on each: by a second result, without elements, that has no gradient.

        x --- F --- y --- loss          x* --- F* --- y* --- loss*
              |                                |
              +-------------- tie -------------+

    Args:
        ctx: of the function.
        y: the result.
        saved: for the backward pass, as `ctx.saved_tensors[1:]`.
    """
    end = NOTHING.detach()  # of all ways to make a tensor the one that takes least
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(end, *saved)
    ctx.out = y.shape, y.dtype, y.device
    return y, end


def tied(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor:
    """Return y*, of what the backward of a function was given; zeros where that is nothing.

    Where a graph of the backward pass is recorded it is tied to y. That is a choice for the whole
    program (`create_graph`), so ranks need not ask each other.

    Args:
        ctx: of the function, whose forward has made a `tie`.
        grad: of its first result.
    """
    if grad is None:
        shape, dtype, device = ctx.out
        grad = torch.zeros(shape, dtype=dtype, device=device)
    return apply(TiedFunction, grad, ctx.saved_tensors[0]) if torch.is_grad_enabled() else grad


class TiedFunction(torch.autograd.Function):
    """A gradient that depends on something else, with the derivative 0."""

    @staticmethod
    def forward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        """Return the gradient as it is."""
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient as it is, and nothing for the tie."""
        return grads[0], None

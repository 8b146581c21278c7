"""The canonical form of calls that can be written in several ways.

    x + y, y.__radd__(x), x.add(y)          ->  the method `add`
    2 - x, x.__rsub__(2)                    ->  operator.sub(2, x)
    w.expand_as(x)                          ->  w.expand(4, 3, 9, 8)
    x.new_zeros(5), torch.zeros_like(x)     ->  torch.zeros(5, dtype=..., device=...)

Where a call reads only the shape or the dtype of a tensor, those are recorded instead of the
tensor, which is no operand then.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["META", "CanonicalCall", "canonical_call", "name_of"]


# Stands for the device of all tensors of the model.
META = torch.device("meta")


class CanonicalCall(NamedTuple):
    """A call in canonical form.

    Attributes:
        op: "call_function" or "call_method", as in `torch.fx`.
        target: the function, or the name of the method.
        args: with which it is called.
        kwargs: the same, by name.
    """

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call it with some arguments."""
        if self.op == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        return self.target(*args, **kwargs)


def name_of(func: Any) -> str:
    """Return the name of a function; "get ..." or "set ..." for a property."""
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return f"get {func.__self__.__name__}"
    if name in ("__set__", "__delete__"):
        return f"set {func.__self__.__name__}"
    return name


def canonical_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> CanonicalCall:
    """Return a call in canonical form."""
    name = name_of(func)
    if name.startswith("get "):
        attribute = name.removeprefix("get ")
        if attribute == "data":
            return CanonicalCall("call_method", "detach", (args[0],), {})
        return CanonicalCall("call_function", builtins.getattr, (args[0], attribute), {})
    if name in LIKE and func == getattr(torch, name):
        return LIKE[name](*args, **kwargs)
    if not is_method(func, name):
        return CanonicalCall("call_function", func, tuple(args), kwargs)
    if name.startswith("__"):
        return operator_for(name, func, args, kwargs)
    if name in REWRITTEN:
        return REWRITTEN[name](*args, **kwargs)
    if name == "to":
        return CanonicalCall(
            "call_method", "to", (args[0], *[kind_of(each) for each in args[1:]]), kwargs
        )
    return CanonicalCall("call_method", name, tuple(args), kwargs)


def kind_of(value: Any) -> Any:
    """Return an argument of `x.to(...)` as a dtype or a device."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    return torch.device(value) if isinstance(value, str) else value


def is_method(func: Any, name: str) -> bool:
    """Whether a function is a method of tensors."""
    if not hasattr(torch.Tensor, name):
        return False
    return bool(getattr(torch.Tensor, name) == func or func.__module__ == "torch._tensor")


def operator_for(
    name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> CanonicalCall:
    """Return a call of the operator of Python; of the function itself where there is none."""
    plain = name.strip("_").replace("div", "truediv").replace("floortruediv", "floordiv")
    for candidate in (plain, f"{plain}_"):
        if hasattr(operator, candidate):
            return CanonicalCall("call_function", getattr(operator, candidate), tuple(args), kwargs)
    for candidate in (plain[1:], f"{plain[1:]}_"):
        if plain.startswith("r") and hasattr(operator, candidate) and len(args) == 2:
            swapped = (args[1], args[0])
            return CanonicalCall("call_function", getattr(operator, candidate), swapped, kwargs)
    return CanonicalCall("call_function", func, tuple(args), kwargs)


def sized_like(method: str) -> Callable[..., CanonicalCall]:
    """Return the rewriting of `x.expand_as(y)` and its like: only the shape of `y` matters."""
    return lambda x, other: CanonicalCall("call_method", method, (x, tuple(other.shape)), {})


def new(function: Any, num_more: int = 0) -> Callable[..., CanonicalCall]:
    """Return the rewriting of `x.new_zeros(size)` and its like: only dtype and device matter.

    Args:
        function: that does it without `x`.
        num_more: arguments after the size.
    """

    def rewrite(x: torch.Tensor, *args: Any, **kwargs: Any) -> CanonicalCall:
        options = {"dtype": x.dtype, "device": META, **kwargs}
        if args and isinstance(args[0], int):
            sizes = args[: len(args) - num_more]
            args = (tuple(sizes), *args[len(sizes) :])
        return CanonicalCall("call_function", function, args, options)

    return rewrite


def like(function: Any) -> Callable[..., CanonicalCall]:
    """Return the rewriting of `torch.zeros_like(x)` and its like: no values of `x` matter."""

    def rewrite(input: torch.Tensor, *args: Any, **kwargs: Any) -> CanonicalCall:  # noqa: A002
        x = input
        kwargs.pop("memory_format", None)
        options = {"dtype": x.dtype, "device": META}
        options.update({name: each for name, each in kwargs.items() if each is not None})
        return CanonicalCall("call_function", function, (tuple(x.shape), *args), options)

    return rewrite


def new_tensor(x: torch.Tensor, *args: Any, **kwargs: Any) -> CanonicalCall:
    """Rewrite `x.new_tensor(data)`."""
    options = {"dtype": x.dtype, "device": META, **kwargs}
    return CanonicalCall("call_function", torch.tensor, args, options)


REWRITTEN: dict[str, Callable[..., CanonicalCall]] = {
    "expand_as": sized_like("expand"),
    "view_as": sized_like("view"),
    "reshape_as": sized_like("reshape"),
    "type_as": lambda x, other: CanonicalCall("call_method", "to", (x, other.dtype), {}),
    "new_zeros": new(torch.zeros),
    "new_ones": new(torch.ones),
    "new_empty": new(torch.empty),
    "new_full": new(torch.full, 1),
    "new_tensor": new_tensor,
    "cpu": lambda x, **_: CanonicalCall("call_method", "to", (x, torch.device("cpu")), {}),
    "cuda": lambda x, *where, **_: CanonicalCall(
        "call_method", "to", (x, torch.device("cuda")), {}
    ),
}

LIKE: dict[str, Callable[..., CanonicalCall]] = {
    "zeros_like": like(torch.zeros),
    "ones_like": like(torch.ones),
    "empty_like": like(torch.empty),
    "full_like": like(torch.full),
}

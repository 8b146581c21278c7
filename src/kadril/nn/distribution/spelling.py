"""Spelling: one name for what can be called in several ways.

    x + y, y.__radd__(x), x.add(y)          ->  the method `add`
    2 - x, x.__rsub__(2)                    ->  operator.sub(2, x)
    w.expand_as(x)                          ->  w.expand(4, 3, 9, 8)
    x.new_zeros(5), torch.zeros_like(x)     ->  torch.zeros(5, dtype=..., device=...)

Where a call looks only at the shape or at the dtype of a tensor, those are written down instead of
the tensor: it is no operand then.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["META", "Spelled", "name_of", "spelled"]


# The device of all tensors of the model, which has no name here.
META = torch.device("meta")


class Spelled(NamedTuple):
    """A call as it is written down.

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
    """The name of a function; of a property, where it is asked for one."""
    name = str(getattr(func, "__name__", func))
    if name == "__get__":
        return f"get {func.__self__.__name__}"
    if name in ("__set__", "__delete__"):
        return f"set {func.__self__.__name__}"
    return name


def spelled(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Spelled:
    """How a call is written down."""
    name = name_of(func)
    if name.startswith("get "):
        attribute = name.removeprefix("get ")
        if attribute == "data":
            return Spelled("call_method", "detach", (args[0],), {})
        return Spelled("call_function", builtins.getattr, (args[0], attribute), {})
    if name in LIKE and func == getattr(torch, name):
        return LIKE[name](*args, **kwargs)
    if not is_method(func, name):
        return Spelled("call_function", func, tuple(args), kwargs)
    if name.startswith("__"):
        return operator_for(name, func, args, kwargs)
    if name in REWRITTEN:
        return REWRITTEN[name](*args, **kwargs)
    if name == "to":
        return Spelled(
            "call_method", "to", (args[0], *[kind_of(each) for each in args[1:]]), kwargs
        )
    return Spelled("call_method", name, tuple(args), kwargs)


def kind_of(value: Any) -> Any:
    """An argument of `x.to(...)`: of a tensor its dtype, and devices as such."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    return torch.device(value) if isinstance(value, str) else value


def is_method(func: Any, name: str) -> bool:
    """Whether a function is a method of tensors."""
    if not hasattr(torch.Tensor, name):
        return False
    return bool(getattr(torch.Tensor, name) == func or func.__module__ == "torch._tensor")


def operator_for(name: str, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Spelled:
    """An operator of Python; the function itself where it is none."""
    plain = name.strip("_").replace("div", "truediv").replace("floortruediv", "floordiv")
    for candidate in (plain, f"{plain}_"):
        if hasattr(operator, candidate):
            return Spelled("call_function", getattr(operator, candidate), tuple(args), kwargs)
    for candidate in (plain[1:], f"{plain[1:]}_"):
        if plain.startswith("r") and hasattr(operator, candidate) and len(args) == 2:
            swapped = (args[1], args[0])
            return Spelled("call_function", getattr(operator, candidate), swapped, kwargs)
    return Spelled("call_function", func, tuple(args), kwargs)


def sized_like(method: str) -> Callable[..., Spelled]:
    """`x.expand_as(y)` and its like: only the shape of `y` matters."""
    return lambda x, other: Spelled("call_method", method, (x, tuple(other.shape)), {})


def new(function: Any, num_more: int = 0) -> Callable[..., Spelled]:
    """`x.new_zeros(size)` and its like: only the dtype and the device of `x` matter.

    Args:
        function: that does it without `x`.
        num_more: arguments after the size.
    """

    def rewrite(x: torch.Tensor, *args: Any, **kwargs: Any) -> Spelled:
        options = {"dtype": x.dtype, "device": META, **kwargs}
        if args and isinstance(args[0], int):
            sizes = args[: len(args) - num_more]
            args = (tuple(sizes), *args[len(sizes) :])
        return Spelled("call_function", function, args, options)

    return rewrite


def like(function: Any) -> Callable[..., Spelled]:
    """`torch.zeros_like(x)` and its like: only what `x` is like matters."""

    def rewrite(input: torch.Tensor, *args: Any, **kwargs: Any) -> Spelled:  # noqa: A002
        x = input
        kwargs.pop("memory_format", None)
        options = {"dtype": x.dtype, "device": META}
        options.update({name: each for name, each in kwargs.items() if each is not None})
        return Spelled("call_function", function, (tuple(x.shape), *args), options)

    return rewrite


def new_tensor(x: torch.Tensor, *args: Any, **kwargs: Any) -> Spelled:
    """`x.new_tensor(data)`."""
    options = {"dtype": x.dtype, "device": META, **kwargs}
    return Spelled("call_function", torch.tensor, args, options)


REWRITTEN: dict[str, Callable[..., Spelled]] = {
    "expand_as": sized_like("expand"),
    "view_as": sized_like("view"),
    "reshape_as": sized_like("reshape"),
    "type_as": lambda x, other: Spelled("call_method", "to", (x, other.dtype), {}),
    "new_zeros": new(torch.zeros),
    "new_ones": new(torch.ones),
    "new_empty": new(torch.empty),
    "new_full": new(torch.full, 1),
    "new_tensor": new_tensor,
    "cpu": lambda x, **_: Spelled("call_method", "to", (x, torch.device("cpu")), {}),
    "cuda": lambda x, *where, **_: Spelled("call_method", "to", (x, torch.device("cuda")), {}),
}

LIKE: dict[str, Callable[..., Spelled]] = {
    "zeros_like": like(torch.zeros),
    "ones_like": like(torch.ones),
    "empty_like": like(torch.empty),
    "full_like": like(torch.full),
}

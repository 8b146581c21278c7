"""Torch's optimizer classes without the marks that load torch's compiler.

Torch marks some methods of its optimizers for its compiler, and loads the whole compiler when one
of them is first called: 60 to 70 MiB in each process, and a second or more, for programs that
compile nothing. The eager class is a subclass that has the methods beneath the marks:

    class Adam(torch.optim.Adam):           of the same name
        add_param_group = the same, unmarked
        ...
        step = the same, unmarked, without gradients
"""

from __future__ import annotations

import copyreg
import inspect
from typing import Any, TypeAlias

import torch

__all__ = ["OptimizerClass", "eager_class", "torch_class"]

OptimizerClass: TypeAlias = type[torch.optim.Optimizer]

TORCH_CLASS = "_torch_class"  # attribute of an eager class
MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")

_made: dict[OptimizerClass, OptimizerClass] = {}


def eager_class(kind: OptimizerClass) -> OptimizerClass:
    """Return the subclass of one of torch's optimizers that does not load its compiler.

    Its instances do the same, and are pickled as instances of torch's class.

    Args:
        kind: a class that is torch's own.
    """
    if kind not in _made:
        _made[kind] = make_eager_class(kind)
    return _made[kind]


def make_eager_class(kind: OptimizerClass) -> OptimizerClass:
    """Make the class; see `eager_class`."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in MARKED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))

    def reduce(self: torch.optim.Optimizer, _: Any) -> tuple[Any, ...]:
        return copyreg._reconstructor, (kind, object, None), self.__getstate__()  # type: ignore[attr-defined]

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, TORCH_CLASS: kind}
    return type(kind.__name__, (kind,), {**names, **methods, "__reduce_ex__": reduce})


def torch_class(kind: OptimizerClass) -> OptimizerClass:
    """Return the class that an eager class was made from; any other class as it is."""
    found: OptimizerClass = kind.__dict__.get(TORCH_CLASS, kind)
    return found

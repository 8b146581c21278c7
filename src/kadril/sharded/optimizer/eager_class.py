"""Optimizers of torch's that do not load its compiler.

Torch marks some methods of its optimizers for its compiler, and to do so loads all of that when one
is first called: 60 to 70 MiB in each process, and a second or more, for programs that compile
nothing. A twin of the class has the methods as they are beneath.

    class Adam(torch.optim.Adam):           of the same name
        add_param_group = the same, unmarked
        ...
        step = the same, unmarked, without gradients
"""

from __future__ import annotations

import inspect
from typing import Any, TypeAlias

import torch

__all__ = ["OptimizerClass", "eager_class", "torch_class"]

OptimizerClass: TypeAlias = type[torch.optim.Optimizer]

PLAIN = "_plain_class"
MARKED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")

_twins: dict[OptimizerClass, OptimizerClass] = {}


def eager_class(kind: OptimizerClass) -> OptimizerClass:
    """A class that does as one of torch's optimizers, and is pickled as that.

    Args:
        kind: a class that is torch's own.
    """
    if kind not in _twins:
        _twins[kind] = make_twin(kind)
    return _twins[kind]


def make_twin(kind: OptimizerClass) -> OptimizerClass:
    """As `eager_class`, anew."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in MARKED}
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))

    def reduce(self: torch.optim.Optimizer, _: Any) -> tuple[Any, ...]:
        return restore, (kind, self.__getstate__())

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, PLAIN: kind}
    return type(kind.__name__, (kind,), {**names, **methods, "__reduce_ex__": reduce})


def restore(kind: type[torch.optim.Optimizer], state: dict[str, Any]) -> torch.optim.Optimizer:
    """An optimizer from what was pickled of it."""
    made = kind.__new__(kind)
    made.__setstate__(state)
    return made


def torch_class(kind: OptimizerClass) -> OptimizerClass:
    """The class that a twin is of; any other class itself."""
    found: OptimizerClass = kind.__dict__.get(PLAIN, kind)
    return found

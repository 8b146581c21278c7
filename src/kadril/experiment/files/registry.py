"""The classes that an experiment's file may name: those registered here, and no others.

A file can name a class in several ways, so that files written for neon work as they are:

    !obj:kadril.experiment.models.gb_dist.GBDist        where it is
    !obj:kadril.experiment.GBDist                       short
    !obj:gb_dist.GBDist                                 shorter
    !obj:neon.models.gb_dist.GBDist                     as neon has it

Nothing is imported because a file names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from kadril.experiment import datasets, layers, models, transforms
from kadril.experiment.backend import Backend

__all__ = ["nearest", "plain_twin", "register", "registered"]

Class = TypeVar("Class", bound=type[Any])

CLASSES: dict[str, type[Any]] = {}

# Modules of neon, for classes whose place follows from no rule.
TRANSFORMS = {
    "RectLin": "rectified",
    "Logistic": "logistic",
    "Tanh": "tanh",
    "Linear": "linear",
    "Softmax": "softmax",
    "CrossEntropy": "cross_entropy",
    "SumSquaredDiffs": "sum_squared",
}


def register(cls: Class, *others: str) -> Class:
    """Let experiments' files name a class; as a decorator too.

    Args:
        cls: its `__init__` is annotated: keys of a file are checked against it.
        others: paths by which it is known besides.

    Raises:
        ValueError: another class is known by one of its paths.
    """
    module = cls.__module__
    paths = [f"{module}.{cls.__name__}", f"{module.split('.')[-1]}.{cls.__name__}", *others]
    if module.startswith("kadril.experiment"):
        paths.append(f"kadril.experiment.{cls.__name__}")
    for path in paths:
        known = CLASSES.get(path, cls)
        if known is not cls and (known.__module__, known.__qualname__) != (
            module,
            cls.__qualname__,
        ):
            raise ValueError(f"{path} is registered already, for {known}")
        CLASSES[path] = cls
    return cls


def registered(path: str) -> type[Any] | None:
    """Return the class of a path; None where there is none."""
    return CLASSES.get(path)


def nearest(path: str) -> str | None:
    """Return a registered path that someone may have meant."""
    found = difflib.get_close_matches(path, list(CLASSES), n=1, cutoff=0.7)
    if found:
        return found[0]
    by_name = {known.rpartition(".")[2]: known for known in CLASSES}
    close = difflib.get_close_matches(path.rpartition(".")[2], list(by_name), n=1, cutoff=0.7)
    return by_name[close[0]] if close else None


def plain_twin(cls: type[Any]) -> type[Any] | None:
    """Return the class that a distributed one is the twin of; None where there is none."""
    name = cls.__name__.removesuffix("Dist")
    for base in cls.__mro__[1:]:
        if base.__name__ == name and base in CLASSES.values():
            return base
    return None


def register_all(module: Any, paths: Iterable[str]) -> None:
    """Register the classes that a package shows, with neon's path for each."""
    for name in module.__all__:
        others = [path.format(name=name, file=file_of(getattr(module, name))) for path in paths]
        register(getattr(module, name), *others)


def file_of(cls: type[Any]) -> str:
    """Return the name of the file in which a class is."""
    return TRANSFORMS.get(cls.__name__, cls.__module__.rpartition(".")[2])


register_all(
    layers, ["neon.models.layer.{name}", "kadril.experiment.layers.{name}", "layer.{name}"]
)
register_all(models, ["neon.models.{file}.{name}", "kadril.experiment.models.{name}"])
register_all(datasets, ["neon.datasets.{file}.{name}", "kadril.experiment.datasets.{name}"])
register_all(transforms, ["neon.transforms.{file}.{name}", "kadril.experiment.transforms.{name}"])
register(
    Backend,
    *("neon.backends._numpy.Numpy", "neon.backends.numpy.Numpy", "neon.backends.cpu.CPU"),
)

"""Stage of the tests of `kadril.tensorflow`: worlds, modes of TensorFlow, and small tools."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pytest

from kadril.testing import ranks

__all__ = [
    "MODES",
    "check_works",
    "every_mode",
    "hvd",
    "in_mode",
    "keras",
    "make_variable",
    "on_ranks",
    "quick_and_long",
    "tf",
]

MODES = ("eager", "function", "graph")

# A kernel of each kind of dtype; the others are those of the same kind with another width.
KINDS = ("uint8", "int32", "bfloat16", "float32", "complex64")


def quick_and_long(dtypes: Sequence[str]) -> Any:
    """A parameter `dtypes`: one of each kind in the quick suite, the rest in the long one."""
    rest = [each for each in dtypes if each not in KINDS]
    return pytest.mark.parametrize(
        "dtypes",
        [
            pytest.param([each for each in dtypes if each in KINDS], id="kinds"),
            pytest.param(rest, id="rest", marks=pytest.mark.long),
        ],
    )


Body = TypeVar("Body", bound=Callable[..., None])


class LazyModule:
    """A module that is loaded when something of it is used: in a rank, not in the session."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


tf: Any = LazyModule("tensorflow")
hvd: Any = LazyModule("kadril.tensorflow")
keras: Any = LazyModule("keras")


def on_ranks(*sizes: int, timeout: float = 100.0) -> Callable[[Body], Body]:
    """Run a test as `kadril.testing.ranks` does, with the engine running beside it."""
    # A rank loads TensorFlow in its first test, which takes seconds, more on a busy machine.
    mark = ranks(*sizes, timeout=timeout, patience=90.0)

    def decorate(body: Body) -> Body:
        @functools.wraps(body)
        def run(*arguments: Any, **keywords: Any) -> None:
            hvd.init()
            try:
                body(*arguments, **keywords)
            finally:
                hvd.shutdown()

        return mark(run)  # type: ignore[return-value]

    return decorate


def in_mode(mode: str, make: Callable[[], Any]) -> Any:
    """The arrays that a function gives: run eagerly, as a `tf.function` or in a session."""
    if mode == "eager":
        result = make()
    elif mode == "function":
        result = tf.function(make)()
    else:
        with tf.Graph().as_default():
            made = make()
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                return session.run(made)
    return tf.nest.map_structure(np.asarray, result)


def every_mode(make: Callable[[], Any]) -> Iterator[Any]:
    """The results of a function in all modes."""
    for mode in MODES:
        yield in_mode(mode, make)


kept: list[Any] = []


def make_variable(value: Any) -> Any:
    """A variable with a value, in every mode.

    A function refuses variables that are made while it is traced, except by another thread, and
    does not keep them.
    """
    if not tf.inside_function():
        return tf.compat.v1.Variable(value, use_resource=True)
    with ThreadPoolExecutor(1) as pool:
        kept.append(pool.submit(lambda: tf.Variable(value)).result())
    del kept[:-100]
    return kept[-1]


def check_works() -> None:
    """An op that all ranks make alike gives the right result."""
    total = hvd.allreduce(tf.ones(3), op=hvd.Sum)
    assert total.numpy().tolist() == [hvd.size()] * 3

"""Small functions that scripts and tests take from Horovod's `util`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kadril.tensorflow.framework import tf

__all__ = ["_cache", "_executing_eagerly", "_make_subgraph", "refs_to_vars", "vars_to_refs"]


def _executing_eagerly() -> bool:
    """Whether ops run at once."""
    return bool(tf.executing_eagerly())


def _make_subgraph(f: Callable[..., Any]) -> Any:
    """A function as a graph."""
    return tf.function(f)


def _cache(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function that remembers its results, by its arguments."""
    return functools.lru_cache(maxsize=None)(f)


def vars_to_refs(vars: Any) -> Any:  # noqa: A002 - Horovod's name
    """Variables, in lists or not, as what can be hashed."""
    if isinstance(vars, list):
        return tuple(vars_to_refs(each) for each in vars)
    return vars.ref() if hasattr(vars, "ref") else vars


def refs_to_vars(refs: Any) -> Any:
    """The reverse of `vars_to_refs`."""
    if isinstance(refs, tuple):
        return [refs_to_vars(each) for each in refs]
    return refs.deref() if hasattr(refs, "deref") else refs

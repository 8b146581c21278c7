"""Functions, arguments and results as bytes.

Plain pickle names a function by its module, so that what lives in a notebook, a REPL or the script
itself (`__main__`) cannot be sent: in the other process the module of that name is another one.
cloudpickle sends such functions with their code, and is used where it is installed.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

from kadril.launch.options import LaunchError

__all__ = ["Call", "load", "pack"]

REMEDY = "install cloudpickle (pip install 'kadril[notebook]')"


class Call(NamedTuple):
    """A function with its arguments."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def make(self) -> Any:
        """Call the function."""
        return self.function(*self.args, **self.kwargs)


class ByName(pickle.Pickler):
    """A pickler that refuses what only the module `__main__` knows."""

    def reducer_override(self, value: Any) -> Any:
        """Check every function and class that is pickled."""
        if isinstance(value, FunctionType | type) and value.__module__ == "__main__":
            raise pickle.PicklingError(f"{value.__qualname__} is defined in __main__")
        return NotImplemented


def pack(value: Any, what: str) -> bytes:
    """Return a value as bytes.

    Args:
        value: anything that can be pickled.
        what: what it is, for the message.

    Raises:
        LaunchError: it cannot be pickled; the message says why and what to do.
    """
    cloudpickle = find_cloudpickle()
    try:
        if cloudpickle is not None:
            data: bytes = cloudpickle.dumps(value)
            return data
        file = io.BytesIO()
        ByName(file).dump(value)
        return file.getvalue()
    # Anything may be raised by the `__reduce__` of a user's class.
    except Exception as error:
        remedy = (
            "leave out what cannot be pickled (locks, files, sockets), and make it on the ranks"
            if cloudpickle is not None
            else f"{REMEDY}, or put functions and classes into a module that ranks can import"
        )
        reason = str(error) or type(error).__name__
        raise LaunchError(f"{what} cannot go to another process: {reason}; {remedy}") from error


def load(data: bytes) -> Any:
    """Return the value that `pack` made bytes of."""
    # They have been nowhere but in a pipe of this user's and in a file of the private directory.
    return pickle.loads(data)  # noqa: S301


def find_cloudpickle() -> ModuleType | None:
    """Return cloudpickle, or None where it is not installed."""
    try:
        import cloudpickle
    except ImportError:
        return None
    return sys.modules[cloudpickle.__name__]

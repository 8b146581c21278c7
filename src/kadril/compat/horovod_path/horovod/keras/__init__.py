"""kadril.keras under the name of Horovod's module: every name of the one is in the other."""

import importlib
from typing import Any

from .._forward import forward
from . import callbacks, elastic  # noqa: F401 - scripts take them from here

_home: Any = importlib.import_module("kadril.keras")

__all__ = list(_home.__all__)

_own = ("callbacks", "elastic")
globals().update({name: getattr(_home, name) for name in _home.__all__ if name not in _own})

__getattr__ = forward("kadril.keras")

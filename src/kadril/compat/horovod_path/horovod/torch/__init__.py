"""kadril.torch under the name of Horovod's module: every name of the one is a name of the other."""

import importlib

from .._forward import forward
from . import functions

__all__ = list(importlib.import_module("kadril.torch").__all__)

# Through a module that has all of them, and does more in one.
globals().update({name: getattr(functions, name) for name in __all__})

# Names that are not exported, and those that are added later.
__getattr__ = forward("kadril.torch")

"""kadril.torch under the name of Horovod's module: every name of the one is a name of the other."""

import importlib

from .._forward import forward

_torch = importlib.import_module("kadril.torch")

__all__ = list(_torch.__all__)

globals().update({name: getattr(_torch, name) for name in __all__})

# Names that are not exported, and those that are added later.
__getattr__ = forward("kadril.torch")

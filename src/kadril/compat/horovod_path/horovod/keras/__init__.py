"""kadril.keras under the name of Horovod's module: every name of the one is in the other."""

from .._forward import expose, forward
from . import callbacks, elastic  # noqa: F401 - scripts take them from here

expose(globals(), "kadril.keras", "callbacks", "elastic")

__getattr__ = forward("kadril.keras")

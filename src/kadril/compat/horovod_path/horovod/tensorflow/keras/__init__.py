"""kadril.tensorflow.keras under the name of Horovod's module: with all of its names."""

from ..._forward import expose, forward
from . import callbacks, elastic  # noqa: F401 - scripts take them from here

expose(globals(), "kadril.tensorflow.keras", "callbacks", "elastic")

__getattr__ = forward("kadril.tensorflow.keras")

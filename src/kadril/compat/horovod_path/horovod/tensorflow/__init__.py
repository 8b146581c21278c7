"""kadril.tensorflow under the name of Horovod's module: every name of the one is in the other."""

import importlib
from typing import Any

from .._forward import forward
from .mpi_ops import (  # noqa: F401 - scripts take them from here
    _allreduce,
    _basics,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)

_home: Any = importlib.import_module("kadril.tensorflow")

__all__ = list(_home.__all__)

globals().update(
    {name: getattr(_home, name) for name in _home.__all__ if name != "SyncBatchNormalization"}
)

# Names that are not exported, and those that load Keras.
__getattr__ = forward("kadril.tensorflow", "kadril.tensorflow.util")

"""kadril.tensorflow under the name of Horovod's module: every name of the one is in the other."""

from .._forward import expose, forward
from .mpi_ops import (  # noqa: F401 - scripts take them from here
    _allreduce,
    _basics,
    _grouped_allreduce,
    _grouped_reducescatter,
    _reducescatter,
    check_num_rank_power_of_2,
    handle_average_backwards_compatibility,
)

expose(globals(), "kadril.tensorflow", "SyncBatchNormalization")

# Names that are not exported, and those that load Keras.
__getattr__ = forward("kadril.tensorflow", "kadril.tensorflow.util")

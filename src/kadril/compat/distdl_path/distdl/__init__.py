"""DistDL by kadril: this package stands in for `distdl` on the ranks of `--compat distdl`.

    distdl.backends.mpi    partitions made from an mpi4py communicator, and buffers
    distdl.nn              data movement and layers
    distdl.functional      the zero-volume corrector for the end of a network
    distdl.utilities       shapes and indices

Layers stand on those of `kadril.nn`, and keep what DistDL does otherwise: pools have stride 1,
batch norm follows the biased variance, parameters live on the first worker and are zero-volume
tensors elsewhere, losses have their value on rank 0, and HaloExchange works in place. What DistDL
leaves open holds here, too: halos reach as far as they must, inputs of layers are not changed, and
an error is raised on all ranks.
"""

from . import backend, functional, nn, utilities

__all__ = ["__version__", "backend", "functional", "nn", "utilities"]

# The release whose interface this is.
__version__ = "0.5.0"

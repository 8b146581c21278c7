"""DistDL by kadril: this package stands in for `distdl` on the ranks of `--compat distdl`.

    distdl.backends.mpi    partitions made from an mpi4py communicator, and buffers
    distdl.nn              data movement and layers
    distdl.functional      what stands at the end of a network
    distdl.utilities       shapes and indices

Names, signatures and defaults are DistDL's: pools have stride 1, batch norm keeps the biased
variance, parameters live on the first worker, losses have their value on rank 0, and HaloExchange
works in place. `kadril.nn` has torch's instead. Data moves through `kadril.ops`, so that what
DistDL leaves open holds here: halos reach as far as they must, inputs of layers are not changed,
and an error is an error on all ranks.
"""

from . import backend, functional, nn, utilities

__all__ = ["__version__", "backend", "functional", "nn", "utilities"]

# The release whose interface this is.
__version__ = "0.5.0"

"""Horovod by kadril: this package stands in for `horovod` on the ranks of `--compat horovod`.

    horovod.torch         kadril.torch, under the names of Horovod's modules
    horovod.tensorflow    kadril.tensorflow, likewise
    horovod.common        exceptions, process sets, basics, helpers
    horovod.runner, run   call a function on many ranks
    horovod.data          data loaders that read ahead

What Horovod has beyond that (keras, mxnet, spark, ray) raises ImportError and says so.
"""

from .runner import run

__all__ = ["__version__", "run"]

# The release whose interface this is.
__version__ = "0.28.1"

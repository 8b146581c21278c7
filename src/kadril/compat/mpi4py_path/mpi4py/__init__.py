"""A stand-in for mpi4py, for ranks that no MPI has started.

Programs written for DistDL use `MPI.COMM_WORLD` and little else. Here it is made of all ranks of
the job, however they were started. The rest of mpi4py is missing, and raises an error that says so.
"""

from __future__ import annotations

__all__ = ["__version__", "rc"]

# The release whose names these are.
__version__ = "4.0.0"


class Rc:
    """Settings of mpi4py, which have no effect here."""

    initialize = True
    finalize: bool | None = None
    threads = True
    thread_level = "multiple"


rc = Rc()

"""The one backend there is: `distdl.backend.backend`."""

from .backends import mpi as backend

__all__ = ["backend"]

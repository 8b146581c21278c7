"""The only backend, as `distdl.backend.backend`."""

from .backends import mpi as backend

__all__ = ["backend"]

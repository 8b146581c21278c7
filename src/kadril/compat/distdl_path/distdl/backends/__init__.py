"""Backends; there is one."""

from . import mpi

__all__ = ["mpi"]

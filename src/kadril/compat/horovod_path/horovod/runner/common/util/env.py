"""Rank and size by the variables of a launcher."""

from __future__ import annotations

import os

__all__ = ["get_env_rank_and_size"]

# Of each launcher: the variables of the rank and of the size.
VARIABLES = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def get_env_rank_and_size() -> tuple[int, int]:
    """Return rank and size by the variables of a launcher; 0 and 1 without one."""
    for rank, size in VARIABLES:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return 0, 1

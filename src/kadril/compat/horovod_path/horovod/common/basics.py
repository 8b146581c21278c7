"""HorovodBasics: the functions that every framework of Horovod has, as methods."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["HorovodBasics"]

NAMES = frozenset(
    {
        "Adasum",
        "Average",
        "Max",
        "Min",
        "Product",
        "Sum",
        "ccl_built",
        "cross_rank",
        "cross_size",
        "cuda_built",
        "ddl_built",
        "gloo_built",
        "gloo_enabled",
        "init",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "mpi_built",
        "mpi_enabled",
        "mpi_threads_supported",
        "nccl_built",
        "rank",
        "rocm_built",
        "shutdown",
        "size",
        "start_timeline",
        "stop_timeline",
    }
)


class HorovodBasics:
    """The basics of kadril.torch.

    Args:
        pkg_path: path of the package that has the native library. Not used: kadril has one for all.
        args: names of the library, likewise.
    """

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        self.pkg_path = pkg_path

    def __getattr__(self, name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"HorovodBasics has no {name!r}")
        return getattr(importlib.import_module("kadril.torch"), name)

    def __dir__(self) -> list[str]:
        return sorted(NAMES)

"""HorovodBasics: the functions that every framework of Horovod has, as methods."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

__all__ = ["HorovodBasics"]

# Functions that return `bool` in C; the others return `int`.
BOOLEANS = (
    "init",
    "init_multi_comm",
    "is_initialized",
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
)


class HorovodBasics:
    """The basics without a framework: every method calls the native library.

    The library and Python share the one world of the process, whichever of them opened it.

    Attributes:
        MPI_LIB_CTYPES: the native library of kadril, which has Horovod's C functions. Those that
            are collective wait for the other ranks without the GIL.

    Args:
        pkg_path: path of the package that has the native library. Not used: kadril has one for all.
        args: names of the library, likewise.
    """

    # What functions of process sets return where they fail.
    HOROVOD_PROCESS_SET_ERROR_INIT = -1
    HOROVOD_PROCESS_SET_ERROR_DYNAMIC = -2  # never: sets may always be added
    HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET = -3
    HOROVOD_PROCESS_SET_ERROR_FOREIGN_SET = -4
    HOROVOD_PROCESS_SET_ERROR_SHUTDOWN = -5
    HOROVOD_PROCESS_SET_ERROR_EXISTING_SET = -6

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        self.pkg_path = pkg_path
        self.MPI_LIB_CTYPES = load_library()
        self.Average: int = self.MPI_LIB_CTYPES.horovod_reduce_op_average()
        self.Sum: int = self.MPI_LIB_CTYPES.horovod_reduce_op_sum()
        self.Adasum: int = self.MPI_LIB_CTYPES.horovod_reduce_op_adasum()
        self.Min: int = self.MPI_LIB_CTYPES.horovod_reduce_op_min()
        self.Max: int = self.MPI_LIB_CTYPES.horovod_reduce_op_max()
        self.Product: int = self.MPI_LIB_CTYPES.horovod_reduce_op_product()

    def init(self, comm: Any = None, process_sets: Any = None) -> None:
        """Connect to the other ranks; see `kadril.torch.init`."""
        importlib.import_module("kadril.torch").init(comm, process_sets)

    def shutdown(self) -> None:
        """Leave the world; local."""
        self.MPI_LIB_CTYPES.horovod_shutdown()

    def is_initialized(self) -> bool:
        """Whether there is a world."""
        return bool(self.MPI_LIB_CTYPES.horovod_is_initialized())

    def start_timeline(self, file_path: str, mark_cycles: bool = False) -> None:
        """Write a timeline of all ranks to one file; collective.

        Raises:
            ValueError: one is being written, or there is no world.
        """
        self._checked(
            self.MPI_LIB_CTYPES.horovod_start_timeline(
                ctypes.c_char_p(file_path.encode()), ctypes.c_bool(mark_cycles)
            )
        )

    def stop_timeline(self) -> None:
        """End the timeline; collective. Raises ValueError without a world."""
        self._checked(self.MPI_LIB_CTYPES.horovod_stop_timeline())

    def size(self) -> int:
        """Number of ranks. Raises ValueError without a world, as the next ones do."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_size())

    def local_size(self) -> int:
        """Number of ranks on this host."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_local_size())

    def cross_size(self) -> int:
        """Number of hosts that have this local rank."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_cross_size())

    def rank(self) -> int:
        """Rank of this process."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_rank())

    def local_rank(self) -> int:
        """Position of this rank on its host."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_local_rank())

    def cross_rank(self) -> int:
        """Position of this host among the hosts that have this local rank."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_cross_rank())

    def is_homogeneous(self) -> bool:
        """Whether all hosts have the same number of ranks."""
        return bool(self._checked(self.MPI_LIB_CTYPES.horovod_is_homogeneous()))

    def mpi_threads_supported(self) -> bool:
        """Whether MPI runs and takes calls from several threads."""
        return bool(self._checked(self.MPI_LIB_CTYPES.horovod_mpi_threads_supported()))

    def mpi_enabled(self) -> bool:
        """Whether MPI carries the data."""
        return bool(self.MPI_LIB_CTYPES.horovod_mpi_enabled())

    def mpi_built(self) -> bool:
        """Whether MPI can be used: mpi4py is installed."""
        return bool(self.MPI_LIB_CTYPES.horovod_mpi_built())

    def gloo_enabled(self) -> bool:
        """Whether the job runs without MPI."""
        return bool(self.MPI_LIB_CTYPES.horovod_gloo_enabled())

    def gloo_built(self) -> bool:
        """Whether gloo can be used."""
        return bool(self.MPI_LIB_CTYPES.horovod_gloo_built())

    def nccl_built(self) -> int:
        """NCCL's version as a number, or 0 without it."""
        return int(self.MPI_LIB_CTYPES.horovod_nccl_built())

    def ddl_built(self) -> bool:
        """Whether IBM's library is used: never."""
        return bool(self.MPI_LIB_CTYPES.horovod_ddl_built())

    def ccl_built(self) -> bool:
        """Whether oneCCL is used: never."""
        return bool(self.MPI_LIB_CTYPES.horovod_ccl_built())

    def cuda_built(self) -> bool:
        """Whether CUDA can be used."""
        return bool(self.MPI_LIB_CTYPES.horovod_cuda_built())

    def rocm_built(self) -> bool:
        """Whether ROCm can be used."""
        return bool(self.MPI_LIB_CTYPES.horovod_rocm_built())

    def _add_process_set_impl(self, ranks: Sequence[int]) -> int | None:
        """Register a process set and give its number; None where one of the same ranks exists.

        Raises:
            ValueError: there is no world, or ranks that do not exist.
        """
        listed = list(ranks)
        number = self.MPI_LIB_CTYPES.horovod_add_process_set(as_array(listed), len(listed))
        if number == self.HOROVOD_PROCESS_SET_ERROR_EXISTING_SET:
            return None
        return self._checked(number)

    def _remove_process_set_impl(self, process_set_id: int) -> int | None:
        """Remove a process set and give its number; None where there is none, and for set 0.

        Raises:
            ValueError: there is no world.
        """
        if process_set_id == 0:
            return None
        number = self.MPI_LIB_CTYPES.horovod_remove_process_set(process_set_id)
        if number == self.HOROVOD_PROCESS_SET_ERROR_UNKNOWN_SET:
            return None
        return self._checked(number)

    def _process_set_rank(self, process_set_id: int) -> int:
        """Rank of this process in a set. Raises ValueError where it is not in it."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_process_set_rank(process_set_id))

    def _process_set_size(self, process_set_id: int) -> int:
        """Number of ranks in a set. Raises ValueError where there is no such set."""
        return self._checked(self.MPI_LIB_CTYPES.horovod_process_set_size(process_set_id))

    def _get_process_set_ids_and_ranks(self) -> dict[int, list[int]]:
        """World ranks of every set, by its number. Raises ValueError without a world."""
        library = self.MPI_LIB_CTYPES
        ids = as_array([0] * self._checked(library.horovod_number_of_process_sets()))
        library.horovod_process_set_ids(ids)
        sets = {}
        for set_id in ids:
            ranks = as_array([0] * self._process_set_size(set_id))
            self._checked(library.horovod_process_set_ranks(set_id, ranks))
            sets[set_id] = list(ranks)
        return sets

    def _comm_process_set_id(self, comm: Any) -> int:
        """Return the number of the set with the ranks of a communicator; collective over it.

        Raises:
            ValueError: there is none.
        """
        members = sorted(comm.allgather(self.rank()))
        for set_id, ranks in self._get_process_set_ids_and_ranks().items():
            if ranks == members:
                return set_id
        raise ValueError(
            f"there is no process set of ranks {members}, which are those of the communicator;"
            " register it first with add_process_set()"
        )

    def _checked(self, number: int) -> int:
        """Return the result of a C function; raise ValueError with its message on failure."""
        if number < 0:
            raise ValueError(self.MPI_LIB_CTYPES.kadril_last_error().decode())
        return number


def load_library() -> ctypes.CDLL:
    """Return the native library, which is the one that kadril's Python code uses.

    Raises:
        ImportError: kadril is not installed with it.
    """
    spec = importlib.util.find_spec("kadril._native")
    if spec is None or spec.origin is None:
        raise ImportError("kadril has no native library here; install it", name="kadril._native")
    library = ctypes.CDLL(spec.origin)
    library.kadril_last_error.restype = ctypes.c_char_p
    for name in BOOLEANS:
        getattr(library, f"horovod_{name}").restype = ctypes.c_bool
    for name in ("shutdown", "process_set_ids"):
        getattr(library, f"horovod_{name}").restype = None
    return library


def as_array(numbers: list[int]) -> ctypes.Array[ctypes.c_int]:
    """Return numbers as an array of C."""
    return (ctypes.c_int * len(numbers))(*numbers)

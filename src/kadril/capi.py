"""The Python side of the C interface in `native/include/kadril.h`.

    python -m kadril.capi --cflags --libs      what a C compiler needs

The native library calls the functions here once per `kadril_init()` and process set; operations do
not come through Python. `kadril run` tells the program which Python to start (KADRIL_PYTHON).
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import importlib
import itertools
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kadril import errors

__all__ = [
    "Status",
    "add_process_set",
    "cflags",
    "describe_failure",
    "feature",
    "init",
    "init_multi_comm",
    "libs",
    "remove_process_set",
    "shutdown",
    "start_timeline",
    "stop_timeline",
]


class Status(enum.IntEnum):
    """The codes of `kadril_status`."""

    OK = 0
    FAILED = 1
    NOT_INITIALIZED = 2
    INVALID = 3
    NO_SUCH_SET = 4
    NOT_A_MEMBER = 5
    SET_EXISTS = 6
    MISMATCH = 7
    PEER_LOST = 8
    STALLED = 9
    CLOSED = 10
    CANCELLED = 11


# The first that fits: some errors of kadril are ValueErrors too.
STATUS_OF_ERROR: tuple[tuple[type[Exception], Status], ...] = (
    (errors.MismatchError, Status.MISMATCH),
    (errors.Stalled, Status.STALLED),
    (errors.PeerError, Status.PEER_LOST),
    (errors.NotInitializedError, Status.NOT_INITIALIZED),
    (errors.ClosedError, Status.CLOSED),
    (errors.UnsupportedError, Status.INVALID),
    (ValueError, Status.INVALID),
    (TypeError, Status.INVALID),
)


def describe_failure(error: BaseException) -> tuple[int, str]:
    """The status and the text by which the C interface reports an exception."""
    for kind, status in STATUS_OF_ERROR:
        if isinstance(error, kind):
            return int(status), str(error)
    return int(Status.FAILED), str(error) or type(error).__name__


def hvd() -> Any:
    """Return the package whose world and process sets the C interface shares."""
    return importlib.import_module("kadril.shared_engine")


def init(
    ranks: Sequence[int] = (), set_ranks: Sequence[int] = (), set_sizes: Sequence[int] = ()
) -> int:
    """Meet the other ranks and start the engine; collective.

    Args:
        ranks: those of the world, or none.
        set_ranks: ranks of process sets to register, one set after the other.
        set_sizes: how many of them each set has.

    Raises:
        ValueError: `ranks` is a part of the world.
    """
    hvd().init(list(ranks) or None)
    add_missing_sets(cut(set_ranks, set_sizes))
    return 0


def init_multi_comm(
    address: int, num_communicators: int, set_ranks: Sequence[int], set_sizes: Sequence[int]
) -> int:
    """Meet the other ranks of a communicator of MPI; collective over it.

    Args:
        address: of an array of MPI_Comm. The first is the world; each other one is a process set,
            and MPI_COMM_NULL on ranks that are not in it.
        num_communicators: how many there are.
        set_ranks: more process sets, as for `init`.
        set_sizes: number of ranks of each of them, as for `init`.

    Raises:
        ValueError: there is no communicator, or one entry stands for several sets.
    """
    from mpi4py import MPI

    if num_communicators < 1:
        raise ValueError("horovod_init_multi_comm() needs a communicator of the world")
    handle_type = ctypes.c_int if MPI._sizeof(MPI.Comm) == 4 else ctypes.c_void_p
    handles = (handle_type * num_communicators).from_address(address)
    world, *others = [MPI.Comm.fromhandle(handle or 0) for handle in handles]
    hvd().init(world)
    if (world.rank, world.size) != (hvd().rank(), hvd().size()):
        raise ValueError(
            f"the communicator makes this rank {world.rank} of {world.size}, and the world that is"
            f" open {hvd().rank()} of {hvd().size()}; call horovod_shutdown() first"
        )
    members = [members_of(each, world, MPI.COMM_NULL) for each in others]
    add_missing_sets([*members, *cut(set_ranks, set_sizes)])
    return 0


def members_of(communicator: Any, world: Any, null: Any) -> list[int]:
    """World ranks of a communicator, also where this rank is not in it; collective over the world.

    Raises:
        ValueError: ranks gave different communicators.
    """
    leader = -1 if communicator == null else communicator.bcast(world.rank)
    leaders = world.allgather(leader)
    if len({*leaders} - {-1}) > 1:
        raise ValueError(
            "ranks gave different communicators for one process set: by its rank 0 those of ranks"
            f" {sorted({*leaders} - {-1})}. Give each set an entry of its own, with MPI_COMM_NULL"
            " on ranks that are not in it"
        )
    return [rank for rank, each in enumerate(leaders) if each >= 0]


def cut(ranks: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """The lists whose items stand one after the other in `ranks`."""
    remaining = iter(ranks)
    for size in sizes:
        yield sorted(itertools.islice(remaining, size))


def add_missing_sets(sets: Iterator[list[int]] | list[list[int]]) -> None:
    """Register process sets; those of an earlier `init` are there already."""
    for ranks in sets:
        if ranks not in hvd().get_process_set_ids_and_ranks().values():
            hvd().add_process_set(ranks)


def shutdown() -> int:
    """Leave the world."""
    hvd().shutdown()
    return 0


def add_process_set(ranks: Sequence[int]) -> int:
    """Make a process set and give its number; collective."""
    return int(hvd().add_process_set(ranks).process_set_id)


def remove_process_set(set_id: int) -> int:
    """Remove a process set; collective.

    Raises:
        ValueError: it is the set of all ranks.
    """
    process_set = hvd().ProcessSet()
    process_set.process_set_id = set_id
    if not hvd().remove_process_set(process_set):
        raise ValueError(f"process set {set_id} cannot be removed")
    return 0


def start_timeline(path: str, mark_cycles: int) -> int:
    """Write what is done when to a file; collective."""
    hvd().start_timeline(path, bool(mark_cycles))
    return 0


def stop_timeline() -> int:
    """End the timeline; collective."""
    hvd().stop_timeline()
    return 0


def feature(name: str) -> int:
    """Return the answer to a question such as "nccl_built"."""
    return int(getattr(hvd(), name)())


def cflags() -> list[str]:
    """Return where the headers are: installed with the package, or in its sources."""
    from kadril.shared_engine.headers import header_directory

    return [f"-I{header_directory()}"]


def libs() -> list[str]:
    """The native library, and the Python that it runs.

    Raises:
        RuntimeError: this Python was built without a shared library.
    """
    from kadril import _native

    if not sysconfig.get_config_var("Py_ENABLE_SHARED"):
        raise RuntimeError(
            f"{sys.executable} was built without a shared libpython, so that a C program cannot"
            " run it; use a Python built with --enable-shared"
        )
    native = Path(_native.__file__)
    directory = sysconfig.get_config_var("LIBDIR")
    version = sysconfig.get_config_var("LDVERSION")
    return [
        str(native),
        f"-Wl,-rpath,{native.parent}",
        f"-L{directory}",
        f"-Wl,-rpath,{directory}",
        f"-lpython{version}",
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print flags for a C compiler."""
    parser = argparse.ArgumentParser(prog="python -m kadril.capi", description=main.__doc__)
    parser.add_argument("--cflags", action="store_true", help="flags for compiling")
    parser.add_argument("--libs", action="store_true", help="flags for linking")
    chosen = parser.parse_args(argv)
    flags = [*(cflags() if chosen.cflags else []), *(libs() if chosen.libs else [])]
    sys.stdout.write(shlex.join(flags) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

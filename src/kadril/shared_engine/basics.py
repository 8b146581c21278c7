"""Start and end, `init()` and `shutdown()`, and questions about ranks and about the build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kadril import world as _world
from kadril.config import Config
from kadril.engine import engine_of
from kadril.errors import NotInitializedError, StateError
from kadril.frameworks import is_installed
from kadril.shared_engine import handles
from kadril.shared_engine.context import Context, context, holder
from kadril.shared_engine.process_sets import ProcessSet, Registry

__all__ = [
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
]


def init(comm: Any = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Meet the other ranks and start the engine; collective. Calling it again does no harm.

    Args:
        comm: a communicator of mpi4py whose ranks are the world; None for all ranks that the
            launcher started. A list of all ranks is the same as None.
        process_sets: sets to register from the start, the same on all ranks; or "dynamic", which is
            always allowed here.

    Raises:
        RendezvousError: a rank did not come.
        ValueError: two sets of the same ranks, or a list of ranks that is not all of them.
    """
    if hasattr(comm, "Get_group"):
        if not _world.is_initialized():
            _world.make_current(_world.open_mpi(comm))
    else:
        # A program may have opened its world itself, with options of its own.
        world = _world.current() if _world.is_initialized() else _world.init()
        check_ranks(comm, world.size)
    found = holder.context
    if found is None or found.engine.is_closed or found.engine.world is not _world.current():
        handles.forget_all()
        if found is not None:
            found.registry.forget_all()
        engine = engine_of(_world.current())
        found = holder.context = Context(engine, Registry(engine))
        config = engine.world.config
        if config.timeline not in ("", "DYNAMIC"):
            engine.start_timeline(config.timeline, config.timeline_mark_cycles)
    if process_sets and not isinstance(process_sets, str):
        register(found.registry, process_sets)


def check_ranks(comm: Any, size: int) -> None:
    """Raise where a list of ranks is not that of the world."""
    if comm is not None and sorted(comm) not in ([], list(range(size))):
        raise ValueError(
            f"init(comm={list(comm)}): the world has ranks 0 to {size - 1}, and part of them cannot"
            " be a world of their own here. Use init() and a ProcessSet of these ranks"
        )


def register(registry: Registry, process_sets: Sequence[ProcessSet]) -> None:
    """Register static sets; those of an earlier `init()` are there already."""
    wanted = [tuple(process_set.ranks or ()) for process_set in process_sets]
    if len(set(wanted)) < len(wanted):
        raise ValueError(f"two process sets have the same ranks: {[list(each) for each in wanted]}")
    for process_set in process_sets:
        if process_set.process_set_id is None:
            registry.add(process_set)


def shutdown() -> None:
    """Stop the engine and leave the world; local. Operations under way fail."""
    found, holder.context = holder.context, None
    holder.num_named.clear()
    if found is not None:
        found.engine.close()
        found.registry.forget_all()
    handles.forget_all()
    _world.shutdown()


def is_initialized() -> bool:
    """Whether the engine runs."""
    return holder.context is not None and not holder.context.engine.is_closed


def rank() -> int:
    """Rank of this process. Raises `NotInitializedError`, a ValueError too, before `init()`."""
    return context().engine.world.rank


def size() -> int:
    """Number of ranks."""
    return context().engine.world.size


def local_rank() -> int:
    """Position of this rank on its host."""
    return context().engine.world.local_rank


def local_size() -> int:
    """Number of ranks on this host."""
    return context().engine.world.local_size


def cross_rank() -> int:
    """Position of this host among the hosts that have this local rank."""
    return context().engine.world.cross_rank


def cross_size() -> int:
    """Number of hosts that have this local rank."""
    return context().engine.world.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks."""
    return context().engine.world.layout.is_homogeneous


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write what is done when, on all ranks, to one file; all ranks call it alike.

    Raises:
        ValueError: one is being written.
    """
    try:
        context().engine.start_timeline(file_path, mark_cycles)
    except NotInitializedError:
        raise
    except StateError as error:
        raise ValueError(str(error)) from error


def stop_timeline() -> None:
    """End the timeline; all ranks call it alike."""
    context().engine.stop_timeline()


def mpi_threads_supported() -> bool:
    """Whether MPI runs and takes calls from several threads.

    Raises:
        NotInitializedError: before `init()`.
    """
    context()
    if not mpi_enabled():
        return False
    from mpi4py import MPI

    return bool(MPI.Query_thread() == MPI.THREAD_MULTIPLE)


def mpi_enabled() -> bool:
    """Whether MPI carries the data; before `init()`, whether it was asked to."""
    if is_initialized():
        return context().engine.world.uses_mpi
    return Config.from_environment().asks_for_mpi


def mpi_built() -> bool:
    """Whether MPI can be used: mpi4py is installed."""
    return is_installed("mpi4py")


def gloo_enabled() -> bool:
    """Whether the job runs without MPI, as scripts that ask for gloo mean it."""
    return not mpi_enabled()


def gloo_built() -> bool:
    """Whether gloo can be used: torch brings it."""
    if not is_installed("torch"):
        return False
    import torch.distributed as dist

    return dist.is_available() and dist.is_gloo_available()


def nccl_built() -> int:
    """NCCL's version as a number, or 0 without it."""
    if not is_installed("torch"):
        return 0
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_nccl_available()):
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]  # type: ignore[no-untyped-call]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def ddl_built() -> bool:
    """Whether IBM's library is used: never."""
    return False


def ccl_built() -> bool:
    """Whether oneCCL is used: never."""
    return False


def cuda_built() -> bool:
    """Whether torch knows CUDA."""
    if not is_installed("torch"):
        return False
    import torch

    return bool(torch.version.cuda)


def rocm_built() -> bool:
    """Whether torch knows ROCm."""
    if not is_installed("torch"):
        return False
    import torch

    return bool(torch.version.hip)

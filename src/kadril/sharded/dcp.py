"""torch.distributed.checkpoint over the ranks of a kadril world, which need no process group.

    dcp.save({"model": model, "optim": trainer}, "checkpoints/last")
    dcp.load({"model": model, "optim": trainer}, "checkpoints/last")

The files are torch's, and so are the keys:

    model.<name of parameter>                        as `model.state_dict()` has it
    optim.state.<name of parameter>.<value>          exp_avg, exp_avg_sq, step, momentum_buffer, ...
    optim.param_groups.<number>.<option>             lr, betas, ...; `params` lists the names

so that `torch.distributed.checkpoint.load` and `dcp_to_torch_save` read what is written here, at
any number of ranks, and what FSDP or a plain optimizer wrote by `get_optimizer_state_dict` is read
here.

Metadata of torch's format is a pickle, which may run code when it is read: load only what you
trust. It has no checksums either. The files of `trainer.save()` are JSON and bytes, with checksums.
`torch.distributed.checkpoint.async_save` copies tensors by their storage, which parts do not have.
"""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult

from kadril import world as worlds
from kadril.errors import CheckpointError, KadrilError
from kadril.sharded.agreement import allgather_json, raise_together
from kadril.sharded.cut_tensor import coordinated
from kadril.sharded.dcp_target import Target, state_of
from kadril.sharded.dcp_writer import METADATA, AtomicWriter
from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["AtomicWriter", "load", "save"]

Result = TypeVar("Result")

PathLike = str | os.PathLike[str]


def save(
    state_dict: Mapping[str, Any],
    checkpoint_id: PathLike | None = None,
    *,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    world: World | None = None,
) -> None:
    """Write a checkpoint, each rank what it has; collective.

    Args:
        state_dict: as `torch.distributed.checkpoint.save` takes it: trainers, modules and others
            that have `state_dict()`, tensors, and anything that can be pickled.
        checkpoint_id: a directory that all ranks see. What was there before stays whole until the
            new checkpoint is.
        storage_writer: another than `AtomicWriter(checkpoint_id)`.
        planner: another than torch's.
        world: the current one where None.

    Raises:
        CheckpointError: a rank could not write; on all ranks. What was there before is as it was.
        PeerLost, Stalled: a rank does not come.
    """
    if storage_writer is None:
        if checkpoint_id is None:
            raise ValueError("give checkpoint_id, a directory, or a storage_writer")
        storage_writer = AtomicWriter(checkpoint_id)
    transport = transport_of(world, "save")
    try:
        Saving(transport, storage_writer, planner or DefaultSavePlanner()).run(state_dict)
    finally:
        transport.close()


def transport_of(world: World | None, operation: str) -> Transport:
    """A transport of its own for one call; collective."""
    world = worlds.current() if world is None else world
    world.check_usable(operation)
    made = world.transport.split(0)
    assert made is not None  # noqa: S101 - all ranks gave a color
    return made


def together(transport: Transport, operation: str, work: Callable[[], Result]) -> Result:
    """Do something local on all ranks; where it fails on one, it has failed on all; collective."""
    result: Any = None
    error: Exception | None = None
    try:
        result = work()
    except (Exception, CheckpointException) as caught:
        # Planners and storage raise what they like; torch wraps it, with all stacks as text.
        cause: BaseException = caught
        if isinstance(caught, CheckpointException) and caught.failures:
            cause = next(iter(caught.failures.values()))[0]
        if isinstance(cause, KadrilError):
            error = cause
        else:
            error = CheckpointError(f"{operation}: {str(cause) or repr(cause)}")
            error.__cause__ = caught
    raise_together(transport, operation, error, CheckpointError)
    return result  # type: ignore[no-any-return]


class Saving:
    """One `save`: what torch does over a process group, over a transport.

    each rank      what it would write
    rank 0         who writes what: of what several have, one writes it; metadata
    each rank      writes
    rank 0         the metadata, with where everything lies
    """

    def __init__(
        self,
        transport: Transport,
        writer: StorageWriter,
        planner: SavePlanner,
    ) -> None:
        self.transport = transport
        self.writer = writer
        self.planner = planner
        self.is_first = transport.rank == 0
        self.metadata: Metadata | None = None

    def run(self, state_dict: Mapping[str, Any]) -> None:
        """Write; collective."""
        plans = self.gather(self.do(lambda: self.plan(state_dict)))
        shared = self.gather(self.do(lambda: self.share_out(plans)))
        plan = shared[0][self.transport.rank]
        results = self.gather(self.do(lambda: self.write(plan)))
        self.do(lambda: self.finish(results))

    def do(self, work: Callable[[], Result]) -> Result:
        """One step; collective."""
        return together(self.transport, "save", work)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has; collective. From ranks of this job, which run the same program."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy()
        counts = allgather_json(self.transport, len(data), "save.length")
        everything = np.empty(sum(counts), dtype=np.uint8)
        self.transport.allgatherv(data, everything, counts, name="save.plans")
        parts = np.split(everything, np.cumsum(counts)[:-1])
        return [pickle.loads(part.tobytes()) for part in parts]  # noqa: S301

    def plan(self, state_dict: Mapping[str, Any]) -> SavePlan:
        """What this rank would write."""
        flat = {key: state_of(value) for key, value in state_dict.items()}
        self.planner.set_up_planner(flat, self.writer.storage_meta(), self.is_first)
        self.writer.set_up_storage_writer(self.is_first)
        with coordinated():
            return self.writer.prepare_local_plan(self.planner.create_local_plan())

    def share_out(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Rank 0: what each rank writes."""
        if not self.is_first:
            return []
        plans, self.metadata = self.planner.create_global_plan(plans)
        return self.writer.prepare_global_plan(plans)

    def write(self, plan: SavePlan) -> list[WriteResult]:
        """Write what falls to this rank."""
        future = self.writer.write_data(self.planner.finish_plan(plan), self.planner)
        future.wait()
        return future.value()

    def finish(self, results: list[list[WriteResult]]) -> None:
        """Rank 0: write the metadata."""
        if self.metadata is not None:
            self.writer.finish(self.metadata, results)


# ---- load ---------------------------------------------------------------------------------------


def load(
    state_dict: dict[str, Any],
    checkpoint_id: PathLike | None = None,
    *,
    storage_reader: StorageReader | None = None,
    planner: LoadPlanner | None = None,
    world: World | None = None,
) -> None:
    """Read a checkpoint that was written on any number of ranks; collective.

    Each rank reads what it owns of the state of trainers and of their parameters, and all of what
    else is asked for. Nothing is changed before all ranks have read everything.

    Args:
        state_dict: as `torch.distributed.checkpoint.load` takes it. What is neither a tensor nor
            has `load_state_dict()` is replaced in it.
        checkpoint_id: the directory.
        storage_reader: another than `FileSystemReader(checkpoint_id)`.
        planner: another than torch's.
        world: the current one where None.

    Raises:
        CheckpointError: it is missing, damaged or of another model; on all ranks, and nothing was
            changed. It names the parameter or the file.
        PeerLost, Stalled: a rank does not come.
    """
    if storage_reader is None:
        if checkpoint_id is None:
            raise ValueError("give checkpoint_id, a directory, or a storage_reader")
        storage_reader = FileSystemReader(checkpoint_id)
    reader = storage_reader
    transport = transport_of(world, "load")
    try:
        target = together(transport, "load", lambda: read(state_dict, reader, planner))
        together(transport, "load", target.check)
        target.apply()
        transport.barrier(name="loaded")
    finally:
        transport.close()


def read(
    state_dict: dict[str, Any],
    reader: StorageReader,
    planner: LoadPlanner | None,
) -> Target:
    """Read what this rank needs into memory of its own."""
    metadata = read_metadata(reader)
    check_files(reader, metadata)
    target = Target(state_dict, metadata)
    with warnings.catch_warnings():
        # That it has no process group: it needs none to read.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_loader.load(target.staged, storage_reader=reader, planner=planner, no_dist=True)
    return target


def read_metadata(reader: StorageReader) -> Metadata:
    """What a checkpoint says that it has."""
    try:
        return reader.read_metadata()
    except FileNotFoundError:
        path = getattr(reader, "path", "")
        raise CheckpointError(
            f"there is no checkpoint in {path}: it has no {METADATA}. Either nothing was saved"
            " there, or whoever saved was killed before it was whole",
            path=str(path),
        ) from None


def check_files(reader: StorageReader, metadata: Metadata) -> None:
    """Raise `CheckpointError` for files that are missing or too short, before anything is read."""
    if not isinstance(reader, FileSystemReader):
        return
    ends: dict[str, int] = {}
    names: dict[str, str] = {}
    for index, place in metadata.storage_data.items():
        end = place.offset + place.length
        if end > ends.get(place.relative_path, 0):
            ends[place.relative_path], names[place.relative_path] = end, index.fqn
    for name, end in ends.items():
        path = Path(reader.path) / name
        size = path.stat().st_size if path.exists() else None
        if size is None or size < end:
            found = "is missing" if size is None else f"has {size} bytes of {end}"
            raise CheckpointError(
                f"shard {path} {found}; the checkpoint cannot be loaded without it: it has a part"
                f" of {names[name]!r}. Copy the directory with all its files, where all ranks can"
                " see it",
                parameter=names[name],
                path=str(path),
            )

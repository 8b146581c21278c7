"""torch.distributed.checkpoint over the ranks of a kadril world, which need no process group.

    dcp.save({"model": model, "optim": trainer}, "checkpoints/last")
    dcp.load({"model": model, "optim": trainer}, "checkpoints/last")

    saved = dcp.async_save({"model": model, "optim": trainer}, "checkpoints/last")
    ...                                              # training continues
    saved.result()                                   # raises what went wrong

The files are torch's, and so are the keys:

    model.<name of parameter>                        as `model.state_dict()` has it
    optim.state.<name of parameter>.<value>          exp_avg, exp_avg_sq, step, momentum_buffer, ...
    optim.param_groups.<number>.<option>             lr, betas, ...; `params` lists the names

so that `torch.distributed.checkpoint.load` and `dcp_to_torch_save` read what is written here, at
any number of ranks, and what FSDP or a plain optimizer wrote by `get_optimizer_state_dict` is read
here. Beside them lies a file with checksums, which torch ignores and `load` compares.

Metadata of torch's format is a pickle, which may run code when it is read: load only what you
trust; checksums reveal damage, not malice. The files of `trainer.save()` are JSON and bytes.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import LoadPlanner, SavePlanner
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

from kadril import world as worlds
from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.dcp.background import background_of
from kadril.sharded.checkpoint.dcp.load_target import Target
from kadril.sharded.checkpoint.dcp.plain_planner import PlainLoadPlanner
from kadril.sharded.checkpoint.dcp.reader import CheckedReader
from kadril.sharded.checkpoint.dcp.saving import Saving, together
from kadril.sharded.checkpoint.dcp.writer import AtomicWriter
from kadril.sharded.checkpoint.same_version import check_same_version
from kadril.sharded.ownership.dedicated_transport import dedicated_transport
from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["AtomicWriter", "CheckedReader", "async_save", "load", "save"]

PathLike = str | os.PathLike[str]


def save(
    state_dict: Mapping[str, Any],
    checkpoint_id: PathLike | None = None,
    *,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    world: World | None = None,
) -> None:
    """Write a checkpoint, to which each rank adds what it has; collective.

    Args:
        state_dict: as `torch.distributed.checkpoint.save` takes it: trainers, modules and others
            that have `state_dict()`, tensors, and anything that can be pickled.
        checkpoint_id: a directory that all ranks see. What was there before stays whole until the
            new checkpoint is.
        storage_writer: another than `AtomicWriter(checkpoint_id)`.
        planner: another than torch's.
        world: the current one where None.

    Raises:
        CheckpointError: a rank could not write; on all ranks. What was there before is unchanged.
        PeerLost, Stalled: a rank does not come.
    """
    writer = writer_for(checkpoint_id, storage_writer)
    transport = transport_of(world, "save")
    try:
        saving = Saving(transport, writer, planner or DefaultSavePlanner())
        saving.begin(state_dict)
        saving.end()
    finally:
        transport.close()


def async_save(
    state_dict: Mapping[str, Any],
    checkpoint_id: PathLike | None = None,
    *,
    storage_writer: StorageWriter | None = None,
    planner: SavePlanner | None = None,
    world: World | None = None,
) -> Future[None]:
    """Write a checkpoint beside the training, as it is now; collective.

    Ranks agree on who writes what, and each copies what it writes; both are done on return, so
    training may resume. The files are written in a thread of its own. One save runs at a time: this
    and every other call of this module first waits for the one before, and so does the end of the
    world.

    Args:
        state_dict: as for `save`.
        checkpoint_id: as for `save`.
        storage_writer: as for `save`.
        planner: as for `save`.
        world: as for `save`.

    Returns:
        A future. Its `result()` waits until the checkpoint is whole, and raises what `save` would.

    Raises:
        CheckpointError: there is something that cannot be saved; on all ranks.
        PeerLost, Stalled: a rank does not come.
    """
    writer = writer_for(checkpoint_id, storage_writer)
    world = worlds.current() if world is None else world
    transport = transport_of(world, "async_save")
    try:
        saving = Saving(transport, writer, planner or DefaultSavePlanner())
        saving.begin(state_dict)
        saving.copy()
    except BaseException:
        transport.close()
        raise
    return background_of(world).run(transport, saving.end)


def writer_for(checkpoint_id: PathLike | None, writer: StorageWriter | None) -> StorageWriter:
    """Return the writer to use."""
    if writer is not None:
        if checkpoint_id is not None:
            writer.reset(checkpoint_id)
        return writer
    if checkpoint_id is None:
        raise ValueError("give checkpoint_id, a directory, or a storage_writer")
    return AtomicWriter(checkpoint_id)


def transport_of(world: World | None, operation: str) -> Transport:
    """Make a transport for one call, once the save before it has ended; collective."""
    world = worlds.current() if world is None else world
    world.check_usable(operation)
    background_of(world).wait()
    return dedicated_transport(world)


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
    else is asked for. Nothing is changed before all ranks have read everything, and found that it
    matches. Then objects are given their state by their own `load_state_dict()`, and after that
    parameters, state of trainers and the rest are overwritten. Gradients of trainers are dropped,
    as `trainer.load` does. Objects that have parameters of these trainers, such as modules, come
    last, when the parameters are there.

    Args:
        state_dict: as `torch.distributed.checkpoint.load` takes it. What is neither a tensor nor
            has `load_state_dict()` is replaced in it.
        checkpoint_id: directory of the checkpoint.
        storage_reader: another than `CheckedReader(checkpoint_id)`.
        planner: another than `PlainLoadPlanner`, which makes only plain data of what is no tensor.
        world: the current one where None.

    Raises:
        CheckpointError: it is missing, damaged, of another model, or has a value that is not plain
            data; on all ranks, and nothing was changed. It names the parameter or the file. Or the
            `load_state_dict()` of an object has raised on some rank; on all ranks. Trainers and
            their parameters are as they were then, though other objects may have taken their state;
            but where that object has parameters of trainers, the trainers are loaded. It names the
            key.
        PeerLost, Stalled: a rank does not come.
    """
    if storage_reader is None:
        if checkpoint_id is None:
            raise ValueError("give checkpoint_id, a directory, or a storage_reader")
        storage_reader = CheckedReader(checkpoint_id)
    elif checkpoint_id is not None:
        storage_reader.reset(checkpoint_id)
    reader = storage_reader
    transport = transport_of(world, "load")
    try:
        target = together(transport, "load", lambda: read(state_dict, reader, planner))
        together(transport, "load", target.check)
        if isinstance(reader, CheckedReader):
            check_same_version(transport, Path(reader.path), reader.version)
        target.settle()
        together(transport, "load", target.apply_to_objects)
        target.apply()
        together(transport, "load", target.apply_rest)
    finally:
        transport.close()


def read(
    state_dict: dict[str, Any],
    reader: StorageReader,
    planner: LoadPlanner | None,
) -> Target:
    """Read what this rank needs into memory of its own."""
    target = Target(state_dict, reader.read_metadata())
    version = reader.version if isinstance(reader, CheckedReader) else ""
    planner = PlainLoadPlanner() if planner is None else planner
    with warnings.catch_warnings():
        # Torch warns that there is no process group; reading needs none.
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_loader.load(target.staged, storage_reader=reader, planner=planner, no_dist=True)
    if isinstance(reader, CheckedReader) and reader.version != version:
        raise CheckpointError(
            f"{reader.path}: another checkpoint was saved there while this one was read. Load"
            " again",
            path=str(reader.path),
        )
    return target

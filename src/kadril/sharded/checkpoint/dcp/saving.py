"""One save of a checkpoint: what torch does over a process group, done over a transport.

each rank      plans what it would write
rank 0         decides who writes what: of what several ranks have, one writes it
each rank      copies what it writes: from here on the save can run beside the training
each rank      writes
rank 0         writes the metadata, which says where everything lies
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from kadril.errors import CheckpointError, KadrilError
from kadril.sharded.checkpoint.dcp.load_target import state_of
from kadril.sharded.checkpoint.durable_files import failure_reason
from kadril.sharded.cut_tensor import coordinated
from kadril.transport.agreement import allgather_blobs, raise_on_all
from kadril.transport.base import Transport

__all__ = ["Saving", "together"]

Result = TypeVar("Result")


def together(transport: Transport, operation: str, work: Callable[[], Result]) -> Result:
    """Call a local function; if it fails on one rank, raise on all of them; collective."""
    result: Any = None
    error: Exception | None = None
    try:
        result = work()
    except (Exception, CheckpointException) as caught:
        # Planners and storage may raise anything; torch wraps it, with all stacks as text.
        cause: BaseException = caught
        if isinstance(caught, CheckpointException) and caught.failures:
            cause = next(iter(caught.failures.values()))[0]
        if isinstance(cause, KadrilError):
            error = cause
        else:
            error = CheckpointError(f"{operation}: {failure_reason(cause)}")
            error.__cause__ = caught
    raise_on_all(transport, operation, error, CheckpointError)
    return result  # type: ignore[no-any-return]


class Saving:
    """One save.

    Args:
        transport: dedicated transport over the ranks.
        writer: writer of this rank.
        planner: planner of this rank.
    """

    def __init__(self, transport: Transport, writer: StorageWriter, planner: SavePlanner) -> None:
        self.transport = transport
        self.writer = writer
        self.planner = planner
        self.is_first = transport.rank == 0
        self.metadata: Metadata | None = None
        self.plan: SavePlan | None = None

    def begin(self, state_dict: Mapping[str, Any]) -> None:
        """Decide who writes what; collective."""
        plans = self.gather(self.do(lambda: self.propose(state_dict)))
        shared = self.gather(self.do(lambda: self.share_out(plans)))
        mine = shared[0][self.transport.rank]
        self.plan = self.do(lambda: self.planner.finish_plan(mine))

    def copy(self) -> None:
        """Copy what this rank writes: the originals may change from here on; collective."""
        plan = self.plan
        assert plan is not None  # noqa: S101 - begun
        self.planner = self.do(lambda: CopiedPlan(self.planner, plan))

    def end(self) -> None:
        """Write; collective, in any thread that the transport takes."""
        try:
            results = self.gather(self.do(self.write))
            self.do(lambda: self.finish(results))
        finally:
            if isinstance(self.planner, CopiedPlan):
                self.planner.forget()  # a traceback may keep the planner alive

    def do(self, work: Callable[[], Result]) -> Result:
        """Do one step of the save on all ranks; collective."""
        return together(self.transport, "save", work)

    def gather(self, value: Any) -> list[Any]:
        """Return what each rank gave, from ranks that run the same program; collective."""
        blobs = allgather_blobs(self.transport, pickle.dumps(value), "save.plans")
        return [pickle.loads(blob) for blob in blobs]  # noqa: S301

    def propose(self, state_dict: Mapping[str, Any]) -> SavePlan:
        """Plan what this rank would write."""
        flat = {key: state_of(value) for key, value in state_dict.items()}
        self.planner.set_up_planner(flat, self.writer.storage_meta(), self.is_first)
        self.writer.set_up_storage_writer(self.is_first)
        with coordinated():
            return self.writer.prepare_local_plan(self.planner.create_local_plan())

    def share_out(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Decide, on rank 0, what each rank writes; [] elsewhere."""
        if not self.is_first:
            return []
        plans, self.metadata = self.planner.create_global_plan(plans)
        return self.writer.prepare_global_plan(plans)

    def write(self) -> list[WriteResult]:
        """Write this rank's part of the plan."""
        assert self.plan is not None  # noqa: S101 - begun
        future = self.writer.write_data(self.plan, self.planner)
        future.wait()
        return future.value()

    def finish(self, results: list[list[WriteResult]]) -> None:
        """Write the metadata, on rank 0."""
        if self.metadata is not None:
            self.writer.finish(self.metadata, results)


class CopiedPlan(SavePlanner):
    """A planner with copies of what this rank writes; writers ask it for nothing else."""

    def __init__(self, planner: SavePlanner, plan: SavePlan) -> None:
        self._copies: dict[MetadataIndex, Any] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, torch.Tensor):
                data = data.detach().to("cpu", copy=True)
            self._copies[item.index] = data

    def resolve_data(self, write_item: WriteItem) -> Any:
        """Return the copy."""
        return self._copies[write_item.index]

    def forget(self) -> None:
        """Free the copies."""
        self._copies.clear()

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        """Raise: the plan is made already."""
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        """Raise: the plan is made already."""
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Raise: the plan is made already."""
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Raise: the plan is made already."""
        raise NotImplementedError

"""One save of a checkpoint: what torch does over a process group, over a transport.

each rank      what it would write
rank 0         who writes what: of what several have, one writes it; metadata
-- from here on it can go on beside the training: what falls to a rank was copied --
each rank      writes
rank 0         the metadata, with where everything lies
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult

from kadril.errors import CheckpointError, KadrilError
from kadril.sharded.checkpoint.dcp.load_target import state_of
from kadril.sharded.checkpoint.failure_reason import reason_of
from kadril.sharded.cut_tensor import coordinated
from kadril.sharded.ownership.agreement import allgather_json, raise_together
from kadril.transport.base import Transport

__all__ = ["Saving", "together"]

Result = TypeVar("Result")


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
            error = CheckpointError(f"{operation}: {reason_of(cause)}")
            error.__cause__ = caught
    raise_together(transport, operation, error, CheckpointError)
    return result  # type: ignore[no-any-return]


class Saving:
    """One save.

    Args:
        transport: that nobody else uses meanwhile.
        writer: of each rank.
        planner: of each rank.
    """

    def __init__(self, transport: Transport, writer: StorageWriter, planner: SavePlanner) -> None:
        self.transport = transport
        self.writer = writer
        self.planner = planner
        self.is_first = transport.rank == 0
        self.metadata: Metadata | None = None
        self.plan: SavePlan | None = None

    def begin(self, state_dict: Mapping[str, Any]) -> None:
        """Find out who writes what; collective."""
        plans = self.gather(self.do(lambda: self.propose(state_dict)))
        shared = self.gather(self.do(lambda: self.share_out(plans)))
        mine = shared[0][self.transport.rank]
        self.plan = self.do(lambda: self.planner.finish_plan(mine))

    def copy(self) -> None:
        """Copy what falls to this rank: the originals may change from here on; collective."""
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
                self.planner.forget()  # an error keeps hold of it for as long as it is kept itself

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

    def propose(self, state_dict: Mapping[str, Any]) -> SavePlan:
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

    def write(self) -> list[WriteResult]:
        """Write what falls to this rank."""
        assert self.plan is not None  # noqa: S101 - begun
        future = self.writer.write_data(self.plan, self.planner)
        future.wait()
        return future.value()

    def finish(self, results: list[list[WriteResult]]) -> None:
        """Rank 0: write the metadata."""
        if self.metadata is not None:
            self.writer.finish(self.metadata, results)


class CopiedPlan(SavePlanner):
    """A planner that has copied what is to be written; writers ask it for nothing else.

    Only what falls to this rank is copied: of what several have, one copies it.
    """

    def __init__(self, planner: SavePlanner, plan: SavePlan) -> None:
        self._copies: dict[MetadataIndex, Any] = {}
        for item in plan.items:
            data = planner.resolve_data(item)
            if isinstance(data, torch.Tensor):
                data = data.detach().to("cpu", copy=True)
            self._copies[item.index] = data

    def resolve_data(self, write_item: WriteItem) -> Any:
        """The copy."""
        return self._copies[write_item.index]

    def forget(self) -> None:
        """Give the memory of the copies back."""
        self._copies.clear()

    def set_up_planner(self, *_: Any, **__: Any) -> None:
        """Not asked for: the plan is made."""
        raise NotImplementedError

    def create_local_plan(self) -> SavePlan:
        """Not asked for: the plan is made."""
        raise NotImplementedError

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Not asked for: the plan is made."""
        raise NotImplementedError

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Not asked for: the plan is made."""
        raise NotImplementedError

"""The native core, as Python sees it: addresses in, `None` or a `Failure` out.

Every `name` is text for the fingerprint and for messages. `dtype` and `op` are the codes of
`kadril.transport.buffer.DTYPES` and `kadril.transport.base.OPS`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

DTYPE_NAMES: list[str]
DTYPE_SIZES: list[int]
OP_NAMES: list[str]

class Failure:
    """Reason why a call failed; `reason` is a name of `enum class Reason` in native/failure.h."""

    @property
    def reason(self) -> str: ...
    @property
    def member(self) -> int: ...
    @property
    def stopped(self) -> bool: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def needed(self) -> int: ...
    @property
    def available(self) -> int: ...
    @property
    def detail(self) -> str: ...
    @property
    def late(self) -> list[int]: ...
    @property
    def calls(self) -> list[str]: ...
    @property
    def num_common(self) -> int: ...
    @property
    def last_common(self) -> str: ...
    @property
    def cause(self) -> Exception | None: ...

class Channel:
    """The ordered meeting point of the members of one partition on one host."""

    def allreduce(
        self,
        source: int,
        target: int,
        *,
        shape: tuple[int, ...],
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> Failure | None: ...
    def allreduce_tensor(
        self, tensor: object, op: str, prescale: float, postscale: float, name: str, /
    ) -> Any:
        """All-reduce in place in one call; NotImplemented for anything that needs a closer look."""

    def sum_tensor(self, source: object, target: object, wish: bool, name: str, /) -> Any:
        """The sum in another tensor, and whether any member wishes: a bool, or a Failure.

        NotImplemented for anything that needs a closer look.
        """

    def reduce(
        self,
        source: int,
        target: int,
        *,
        shape: tuple[int, ...],
        dtype: int,
        op: int,
        root: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> Failure | None: ...
    def broadcast(
        self, memory: int, shape: tuple[int, ...], dtype: int, root: int, name: str, /
    ) -> Failure | None: ...
    def allgatherv(
        self, source: int, target: int, counts: Sequence[int], dtype: int, name: str, /
    ) -> Failure | None: ...
    def allgather_bytes(self, data: bytes, name: str, /) -> list[bytes] | Failure:
        """Every member gives as many bytes."""

    def reduce_scatterv(
        self,
        source: int,
        target: int,
        *,
        counts: Sequence[int],
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> Failure | None: ...
    def alltoallv(
        self,
        source: int,
        send_counts: Sequence[int],
        target: int,
        recv_counts: Sequence[int],
        dtype: int,
        name: str,
        /,
    ) -> Failure | None: ...
    def exchange(
        self,
        sends: Sequence[tuple[int, int, int, int]],
        recvs: Sequence[tuple[int, int, int, int]],
        name: str,
        /,
    ) -> Failure | None:
        """Messages are (peer, dtype, address, bytes)."""

    def barrier(self, name: str, /) -> Failure | None: ...
    def revoke(self) -> None: ...
    def close(self) -> None: ...

class MovePlan:
    """Boxes that move between two tensors and other members.

    Boxes are (start, size) of each dim. The arguments: boxes of the source by peer, boxes of the
    target by peer, boxes of both that are copied, boxes of the target that are filled, the element
    they are filled with, and what all members said of themselves when this was planned.
    """

    def __init__(
        self,
        sends: Sequence[tuple[int, Sequence[Sequence[tuple[int, int]]]]],
        recvs: Sequence[tuple[int, Sequence[Sequence[tuple[int, int]]]]],
        copies: Sequence[tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]],
        edges: Sequence[Sequence[tuple[int, int]]],
        fill: bytes,
        planned: bytes,
        /,
    ) -> None: ...
    def run(
        self,
        channel: Channel,
        source: object,
        target: object,
        beside: object | None,
        mine: bytes,
        copies: bool,
        name: str,
    ) -> bytes | Failure | None:
        """Move; bytes, what all members say of themselves, where it was not planned for that."""

    def run_again(
        self, channel: Channel, source: object, target: object, name: str
    ) -> bytes | Failure | None:
        """Move as the last `run` did, where that only copied.

        NotImplemented for tensors that lie otherwise.
        """

NUM_SLOTS: int

class Blocks:
    """Blocks that an outbox posts and takes at once, each as (parts, source, target, count).

    Parts, which go to other ranks, are (place in the slot, offset, bytes). The others are offsets
    in bytes of what stays here, in the memory and in the result, and its number of elements.
    """

    def __init__(
        self, blocks: Sequence[tuple[Sequence[tuple[int, int, int]], int, int, int]], /
    ) -> None: ...
    def __len__(self) -> int: ...

class Outbox:
    """The outboxes of all ranks in shared bytes, as one of them sees them."""

    def __init__(self, memory: object, slot_bytes: int, rank: int, size: int, /) -> None: ...
    @staticmethod
    def num_bytes(slot_bytes: int, size: int, /) -> int:
        """Return the size of the memory of all ranks, which has to be zeroed."""
    @property
    def num_posted(self) -> int: ...
    @property
    def num_taken(self) -> int: ...
    @property
    def bytes_for_one(self) -> int:
        """Room for one receiver in a slot."""
    def position(self, sender: int, receiver: int, /) -> int: ...
    def laggards(self) -> list[int]: ...
    def all_posted(self) -> list[int]: ...
    def set_walked(self, number: int, /) -> None: ...
    def walked(self, rank: int, /) -> int: ...
    def set_settling(self, is_settling: bool, /) -> None: ...
    def is_settling(self, rank: int, /) -> bool: ...
    def are_settling(self) -> bool: ...
    def post(self, blocks: Blocks, first: int, most: int, memory: int, /) -> int:
        """Give the next blocks, while there is room; how many. Nothing at address 0."""
    def add_up(
        self,
        blocks: Blocks,
        *,
        first: int,
        count: int,
        own: int,
        result: int,
        posted: Sequence[int],
        dtype: int,
        before: float,
        after: float,
    ) -> None:
        """Sum the next blocks up, in the order of the ranks.

        `own` and `result` are addresses: of what this rank gives, 0 for nothing, and of the sum.
        `posted` is the number of blocks of each rank that count.
        """
    def skip(self, count: int, /) -> None: ...
    def skip_to(self, number: int, /) -> None: ...

class Segment:
    """One process's view of the shared segment: the mapping, and the watch on the peers."""

    @staticmethod
    def create(
        num_ranks: int, capacity: int, generation: int, named: bool, /
    ) -> Segment | Failure: ...
    @staticmethod
    def attach(descriptor: int, generation: int, /) -> Segment | Failure:
        """Takes over the descriptor."""

    def watch(self, pidfds: Sequence[int], /) -> Failure | None:
        """Takes over the descriptors, one per rank; -1 for this process."""

    def allocate(self, rank: int, num_bytes: int, /) -> npt.NDArray[np.uint8] | Failure: ...
    def offset_of(self, address: int, num_bytes: int, /) -> int | None:
        """Offset of memory in the segment, the same for all ranks; None if it lies elsewhere."""

    def view(self, offset: int, num_bytes: int, /) -> npt.NDArray[np.uint8]:
        """Memory of any rank; whoever allocated it has to keep it alive."""

    def allocate_board(self, rank: int, num_members: int, /) -> int | Failure: ...
    def open_channel(
        self,
        board: int | None,
        ranks: Sequence[int],
        me: int,
        owns_board: bool,
        patience: float,
        warn_after: float,
        num_spins: int,
        num_yields: int,
        on_late: Callable[[str, list[int], bool, float], None] | None,
        describe: Callable[[str], tuple[int, int, str]] | None,
    ) -> Channel:
        """`board` None is the channel of all ranks.

        `describe` returns the number of threads that might call something, the world rank, and the
        call with its group and line; see `kadril.transport.standpoint`.
        """

    def contains(self, address: int, num_bytes: int, /) -> bool: ...
    @property
    def descriptor(self) -> int: ...
    @property
    def num_allocated_bytes(self) -> int: ...

class Timeline:
    """Record of what the engine did when, in a file that the ranks of a host share."""

    def __init__(self, path: str, rank: int, origin_ns: int) -> None: ...
    def write(self) -> None: ...

class BlockedWait:
    """Wait of a thread that does nothing else until a request is done."""

    def wait(self, seconds: float, num_submitting: int, num_calling: int) -> int:
        """Sleep as `Completion.wait` does, or until it is time to count threads anew.

        `num_submitting` are the threads that could submit something, `num_calling` those that could
        make any call, the caller's included.
        """

    def end(self) -> None:
        """End it; by the thread that waits."""

class Completion:
    """Completion of a request, which its caller polls or waits for."""

    @property
    def is_done(self) -> bool: ...
    def wait(self, seconds: float, /) -> int:
        """Sleep until it is done, a signal comes, or time is up.

        0: not yet; 1: done; 2: failed; 3: in a child made by fork, where it never will be.
        """

    def block(self, where: str, name: int, waited: float) -> BlockedWait:
        """Tell others that the caller does nothing else until it is done.

        `where` is the process set and the line, for people; `name` the world rank; `waited` the
        seconds for which the caller has slept on it.
        """

    @property
    def failure(self) -> Failure | None: ...
    def take_outputs(self) -> list[tuple[npt.NDArray[np.uint8], int, list[int]]]:
        """The results that the engine made: (bytes, dtype code, shape) each."""

    @property
    def received_splits(self) -> list[int]:
        """Rows that came from each member, for each output."""

    @property
    def last_joined(self) -> int: ...

class Operation:
    """Operation of a request, apart from its name and tensors; requests may share one."""

    def __init__(
        self,
        verb: int,
        *,
        reduction: int = 1,
        root: int = -1,
        prescale: float = 1.0,
        postscale: float = 1.0,
        splits: Sequence[int] = (),
        note: str = "",
        is_group: bool = False,
    ) -> None:
        """Describe it, with a `Verb` and a `Reduction` of `kadril.engine`.

        `root` is the member that broadcasts, `splits` the rows for each member in an all-to-all,
        `note` a text that all members must give alike. A group is served all or nothing, and has a
        name of its own.
        """

class Conductor:
    """Takes the named requests of one process set, in any order."""

    @staticmethod
    def over_channel(
        channel: Channel,
        arena_rank: int,
        patience: float,
        stall_warning: float,
        fusion_threshold: int,
        cache_capacity: int,
        world_ranks: Sequence[int],
        report: Callable[[str], None],
        /,
    ) -> Conductor:
        """Open one on shared memory; from then on the channel is the conductor's alone."""

    @staticmethod
    def over_transport(
        lane: object,
        size: int,
        rank: int,
        patience: float,
        stall_warning: float,
        fusion_threshold: int,
        cache_capacity: int,
        world_ranks: Sequence[int],
        report: Callable[[str], None],
        /,
    ) -> Conductor:
        """Open one on a `kadril.engine.lane.TransportLane`."""

    def submit(
        self,
        operation: Operation,
        tensors: object,
        targets: object,
        name: str,
        is_named: bool = True,
    ) -> Any:
        """A Completion; a Failure; or NotImplemented where a tensor needs a closer look.

        `tensors` is a tensor or a list; an element is a torch tensor or (address, dtype code,
        shape). `targets` likewise, or None for in place.
        """

    def report_late(self, members: Sequence[int], elapsed: float, /) -> None:
        """Tell who waits for whom; for the lane, while a call of it waits for these members."""

    def set_timeline(self, timeline: Timeline | None, mark_cycles: bool) -> None: ...
    @property
    def num_cycles(self) -> int: ...
    @property
    def num_deadlocks(self) -> int: ...
    @property
    def num_in_flight(self) -> int: ...
    def close(self) -> None: ...

def memory_at(address: int, num_bytes: int, /) -> npt.NDArray[np.uint8]:
    """Memory that somebody else keeps alive, as an array."""

def set_package_paths(paths: Sequence[str], /) -> None:
    """Tell where files of libraries are: their frames are nobody's call site."""

def publish_engine(
    engine: int,
    facts: Sequence[int],
    sets: Sequence[tuple[int, Sequence[int], Conductor | None]],
    /,
) -> None:
    """Tell the C interface of the engine of this process and all its sets.

    `facts` are rank, size, local rank and size, cross rank and size, and whether hosts are alike.
    """

def retract_engine(engine: int, /) -> None:
    """Tell the C interface that an engine is closed; another one that took its place stays."""

def reduce_local(
    targets: Sequence[int],
    sources: Sequence[int],
    count: int,
    dtype: int,
    op: int,
    prescale: float,
    postscale: float,
    /,
) -> bool:
    """Reduce the sources in their order into every target.

    False where the op makes no sense for the dtype.
    """

def supports(dtype: int, op: int, /) -> bool: ...
def register_tensor(tensor_class: type, dtype_codes: Mapping[Any, int], /) -> None:
    """Tell the core what a tensor is, for `Channel.allreduce_tensor`."""

def copy_memory(target: int, source: int, num_bytes: int, /) -> None: ...
def set_fault(text: str, /) -> None:
    """Arm a fault point: "point:action" or "point:action#n"; "" disarms. Raises ValueError."""

def fault_points() -> list[str]: ...
def total_memory() -> int: ...
def open_recorder(descriptor: int, rank: int, size: int, stack_signal: int, /) -> str:
    """Record calls in an empty file from now on; an empty text, or why that cannot be."""

def go_on_recording(rank: int, size: int, /) -> bool:
    """Go on under this rank; False where this process has no recorder, as in a forked child."""

def begin_record(operation: str, name: str, group: int, sequence: int, num_members: int, /) -> int:
    """Record a call of a transport that is written in Python; 0 where nothing is recorded."""

def end_record(number: int, /) -> None: ...

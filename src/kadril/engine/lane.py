"""A lane: lets the native engine move memory over a transport that is written in Python.

The engine speaks in addresses; transports take arrays, or buffers that are looked at already. What
it passes stays alive until the call returns, so a buffer may simply look at it.

It calls from a thread of its own. Python makes a thread object of that as soon as anything asks for
the current thread, as logging and every start of a thread do, and calls it "Dummy-1": it is given
a name by which it is not taken for a thread of the user's, who might submit something.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Concatenate, ParamSpec, cast

import numpy as np

from kadril._native import memory_at
from kadril.transport.base import OPS, Op, Transport
from kadril.transport.buffer import DTYPES, Array, Buffer

__all__ = ["OWN_THREADS", "TransportLane", "name_own_thread"]

OWN_THREADS = "kadril"  # how the names of kadril's own threads begin

DTYPE_OF_CODE = {dtype.code: dtype for dtype in DTYPES.values()}


def array_at(address: int, count: int, dtype_code: int) -> Array:
    """Look at memory as a flat array: a buffer, which transports take for one."""
    dtype = DTYPE_OF_CODE[dtype_code]
    memory = memory_at(address, count * dtype.itemsize) if count else np.empty(0, dtype=np.uint8)
    return cast("Array", Buffer(address, count, dtype, (count,), memory))


Arguments = ParamSpec("Arguments")
Move = Callable[Concatenate["TransportLane", Arguments], None]


def name_own_thread() -> None:
    """Name the calling thread as one of kadril's own."""
    threading.current_thread().name = f"{OWN_THREADS}.engine"


def on_own_thread(move: Move[Arguments]) -> Move[Arguments]:
    """Have a method called by the engine's thread, which is named at its first call."""

    @functools.wraps(move)
    def run(lane: TransportLane, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        if lane.thread != threading.get_ident():
            lane.thread = threading.get_ident()
            name_own_thread()
        try:
            move(lane, *args, **kwargs)
        except BaseException as error:
            lane.error = error
            raise

    return run


class TransportLane:
    """A transport, as the native engine calls it. Codes are those of the native core.

    Attributes:
        error: of the transport, by which the process set has ended.
    """

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.thread = 0  # that has called
        self.error: BaseException | None = None

    @on_own_thread
    def allreduce(
        self,
        source: int,
        target: int,
        count: int,
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> None:
        """Reduce over all members."""
        out = None if source == target else array_at(target, count, dtype)
        self.transport.allreduce(
            array_at(source, count, dtype),
            cast("Op", OPS[op]),
            out=out,
            prescale=prescale,
            postscale=postscale,
            name=name,
        )

    @on_own_thread
    def allreduce_many(
        self,
        arrays: Sequence[tuple[int, int, int]],
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> None:
        """Reduce several arrays, given as (source, target, elements), over all members."""
        sources = [array_at(source, count, dtype) for source, _, count in arrays]
        self.transport.allreduce_many(
            sources,
            cast("Op", OPS[op]),
            outs=[
                given if source == target else array_at(target, count, dtype)
                for given, (source, target, count) in zip(sources, arrays, strict=True)
            ],
            prescale=prescale,
            postscale=postscale,
            name=name,
        )

    @on_own_thread
    def broadcast(self, memory: int, count: int, dtype: int, root: int, name: str) -> None:
        """Copy the root's memory to all members."""
        self.transport.broadcast(array_at(memory, count, dtype), root, name=name)

    @on_own_thread
    def allgatherv(
        self, source: int, target: int, counts: Sequence[int], dtype: int, name: str
    ) -> None:
        """Concatenate what all members give."""
        self.transport.allgatherv(
            array_at(source, counts[self.transport.rank], dtype),
            array_at(target, sum(counts), dtype),
            counts,
            name=name,
        )

    @on_own_thread
    def reduce_scatterv(
        self,
        source: int,
        target: int,
        counts: Sequence[int],
        dtype: int,
        op: int,
        prescale: float,
        postscale: float,
        name: str,
    ) -> None:
        """Reduce over all members; each gets its part."""
        self.transport.reduce_scatterv(
            array_at(source, sum(counts), dtype),
            array_at(target, counts[self.transport.rank], dtype),
            counts,
            cast("Op", OPS[op]),
            prescale=prescale,
            postscale=postscale,
            name=name,
        )

    @on_own_thread
    def alltoallv(
        self,
        source: int,
        send_counts: Sequence[int],
        target: int,
        recv_counts: Sequence[int],
        dtype: int,
        name: str,
    ) -> None:
        """Send each member its part."""
        self.transport.alltoallv(
            array_at(source, sum(send_counts), dtype),
            send_counts,
            array_at(target, sum(recv_counts), dtype),
            recv_counts,
            name=name,
        )

    @on_own_thread
    def exchange(
        self,
        sends: Sequence[tuple[int, int, int]],
        recvs: Sequence[tuple[int, int, int]],
        name: str,
    ) -> None:
        """Exchange (peer, address, bytes) with any set of members."""
        code = DTYPES["uint8"].code
        self.transport.exchange(
            [(peer, array_at(memory, num_bytes, code)) for peer, memory, num_bytes in sends],
            [(peer, array_at(memory, num_bytes, code)) for peer, memory, num_bytes in recvs],
            name=name,
        )

    def close(self) -> None:
        """Leave the group; a call of another thread returns with an error."""
        self.transport.close()

"""Memory of devices: torch.distributed's own collectives, on the device.

Tensors in CPU memory go as in `c10d.py`. Tensors on a device go by a process group of the device's
backend (nccl, xccl, ucc), after the ranks have compared their calls over gloo. There the engine
adds, in an order of its own, and knows fewer dtypes and ops; results are ordered on the current
stream of the device, as torch has it.

The collectives are tested with gloo in place of the device's backend; on nccl they have not been
run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist

from kadril.config import Config
from kadril.errors import KadrilError, UnsupportedError
from kadril.transport import checks
from kadril.transport.buffer import Array, Buffer, unsupported_dtype
from kadril.transport.c10d import C10dTransport
from kadril.transport.call import Call, alltoallv_call, counted, reduction_call, shaped
from kadril.transport.kept_groups import Group, keep_in_children
from kadril.transport.operands import CheckedAllToAll, CheckedReduction, Message, Op
from kadril.transport.tensor import TORCH_DTYPES

__all__ = ["DeviceTransport"]

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
}


class DeviceTransport(C10dTransport):
    """A group of ranks connected by gloo for the CPU, and by another backend for devices.

    Args:
        store: see `C10dTransport.open`.
        rank: see `C10dTransport.open`.
        size: see `C10dTransport.open`.
        world_ranks: see `C10dTransport.open`.
        config: see `C10dTransport.open`.
        hostname: see `C10dTransport.open`.
        backend: of devices: "nccl", "xccl" or "ucc".

    Raises:
        RendezvousError: see `C10dTransport.open`.
        UnsupportedError: this torch has no such backend.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        world_ranks: Sequence[int],
        config: Config,
        hostname: str,
        backend: str,
    ) -> None:
        group_class = find_group_class(backend)
        super().__init__(store, rank, size, world_ranks, config, hostname)
        self.backend = backend
        self._device_group: Group = None
        if size > 1:
            place = dist.PrefixStore("device", store)
            patience = timedelta(seconds=config.patience)
            self._device_group = keep_in_children(
                self._connect(lambda _: group_class(place, rank, size, patience))
            )

    def _subgroup(self, members: Sequence[int], label: str, number: int) -> DeviceTransport:
        return DeviceTransport(*self._subgroup_arguments(members, label), self.backend)

    def _leave(self, failure: KadrilError | None) -> None:
        super()._leave(failure)
        self._device_group = None

    def _look_for(self, array: Array) -> checks.Look:
        return as_device_buffer if self._is_ours(array) else super()._look_for(array)

    def _is_ours(self, array: Array) -> bool:
        """Whether an array is on a device."""
        return isinstance(array, torch.Tensor) and not array.is_cpu

    # Collectives: of memory on a device here, of CPU memory by gloo.

    def _run_allreduce(self, reduction: CheckedReduction) -> None:
        source = reduction.source
        if not self._is_ours(source.array):
            super()._run_allreduce(reduction)
            return
        call = reduction_call("allreduce", placed(shaped(source), source.array), reduction)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(REDUCE_OPS[reduction.op])
        given, result = flat(source.array), flat(reduction.target.array)
        with self._running(call) as run:
            scale(result.copy_(given), reduction.prescale)
            run(lambda group: group.allreduce([result], options))
            scale(result, reduction.postscale)

    def _run_reduce(self, reduction: CheckedReduction, root: int) -> None:
        source = reduction.source
        if not self._is_ours(source.array):
            super()._run_reduce(reduction, root)
            return
        memory = placed(shaped(source), source.array)
        call = reduction_call("reduce", memory, reduction, root=root)
        work = scale(flat(source.array).clone(), reduction.prescale)
        with self._running(call) as run:
            reduce_part(run, work, reduction.op, root)
            if self.rank == root:
                flat(reduction.target.array).copy_(scale(work, reduction.postscale))

    def _run_broadcast(self, memory: Buffer, root: int, name: str) -> None:
        if not self._is_ours(memory.array):
            super()._run_broadcast(memory, root, name)
            return
        text = placed(shaped(memory), memory.array)
        with self._running(Call("broadcast", (text, f"root={root}"), name=name)) as run:
            broadcast_part(run, flat(memory.array), root)

    def _run_allgatherv(
        self, source: Buffer, target: Buffer, counts: Sequence[int], name: str
    ) -> None:
        if not self._is_ours(source.array):
            super()._run_allgatherv(source, target, counts, name)
            return
        text = placed(counted(source, counts), source.array)
        with self._running(Call("allgatherv", (text,), name=name)) as run:
            parts = torch.split(flat(target.array), list(counts))
            if source.count:
                parts[self.rank].copy_(flat(source.array))
            for root, part in enumerate(parts):
                broadcast_part(run, part, root)

    def _run_reduce_scatterv(self, reduction: CheckedReduction, counts: Sequence[int]) -> None:
        source = reduction.source
        if not self._is_ours(source.array):
            super()._run_reduce_scatterv(reduction, counts)
            return
        memory = placed(counted(source, counts), source.array)
        call = reduction_call("reduce_scatterv", memory, reduction)
        scaled = scale(flat(source.array).clone(), reduction.prescale)
        parts = torch.split(scaled, list(counts))
        with self._running(call) as run:
            for root, part in enumerate(parts):
                reduce_part(run, part, reduction.op, root)
            flat(reduction.target.array).copy_(scale(parts[self.rank], reduction.postscale))

    def _run_alltoallv(self, arguments: CheckedAllToAll) -> None:
        source, send_counts, target, recv_counts, _ = arguments
        if not self._is_ours(source.array):
            super()._run_alltoallv(arguments)
            return
        call = alltoallv_call(placed(source.dtype.name, source.array), arguments)
        given, result = flat(source.array), flat(target.array)
        with self._running(call, (send_counts, recv_counts)) as run:
            if self.size == 1:
                result.copy_(given)
            run(
                lambda group: group.alltoall_base(
                    result, given, list(recv_counts), list(send_counts)
                )
            )

    def exchange(
        self, sends: Sequence[Message], recvs: Sequence[Message], *, name: str = ""
    ) -> None:
        """Send to and receive from any set of neighbours in one call, through the host.

        A rank without neighbours cannot know whether those of the others are on a device, so all of
        them meet on the CPU.
        """
        copies = [(peer, array, on_host(array)) for peer, array in recvs]
        super().exchange(
            [(peer, on_host(array)) for peer, array in sends],
            [(peer, copy) for peer, _, copy in copies],
            name=name,
        )
        for _, array, copy in copies:
            if copy is not array:
                flat(array).copy_(flat(copy))

    # Engine.

    @contextmanager
    def _running(
        self, call: Call, pairs: tuple[Sequence[int], Sequence[int]] | None = None
    ) -> Iterator[Run]:
        """Hold the group for one call, agree on it, and give what runs works of the engine."""
        with self._calling(call):
            if pairs is None:
                self._agree(call)
            else:
                self._agree_in_pairs(call, *pairs)
            yield self._run

    def _run(self, start: Callable[[Group], dist.Work]) -> None:
        """Run one work of the engine; in a group of one there is nothing to run."""
        group = self._device_group
        if self.size == 1:
            return
        if group is None:
            self._check_usable(self._call)
        try:
            start(group).wait()
        except (RuntimeError, ValueError, TypeError) as error:
            if isinstance(error, RuntimeError) and not is_refusal(str(error)):
                raise self._verdict(str(error)) from error
            # For a reason that all ranks share, since their calls agree.
            raise UnsupportedError(
                f"{self._call.text}: {self.backend} cannot do that ({error}); use another dtype or"
                " op, or tensor.cpu()"
            ) from error


Run: TypeAlias = Callable[[Callable[[Group], dist.Work]], None]


def find_group_class(backend: str) -> Callable[..., Group]:
    """The class of a backend's process groups.

    Raises:
        UnsupportedError: this torch has none of that name.
    """
    classes = {
        name.removeprefix("ProcessGroup").lower(): getattr(dist, name)
        for name in dir(dist)
        if name.startswith("ProcessGroup") and name != "ProcessGroup"
    }
    if backend not in classes:
        raise UnsupportedError(
            f"this torch has no backend {backend!r}, only {', '.join(sorted(classes))}; install a"
            " torch that was built for the device, or use the backend gloo and tensor.cpu()"
        )
    group_class: Callable[..., Group] = classes[backend]
    return group_class


def is_refusal(words: str) -> bool:
    """Whether an engine refused a dtype or an op, rather than failed at it."""
    return (
        re.search(r"scalar type|data type|dtype|unsupported|not support|cannot use", words, re.I)
        is not None
    )


def as_device_buffer(array: Array) -> Buffer:
    """Look at a tensor on any device as a buffer; raises like `as_buffer`."""
    if not isinstance(array, torch.Tensor):
        raise TypeError(
            f"expected a torch tensor beside tensors on a device, got {type(array).__name__}"
        )
    dtype = TORCH_DTYPES.get(array.dtype)
    if dtype is None:
        raise unsupported_dtype(array.dtype)
    if not array.is_contiguous():
        raise ValueError(
            f"the tensor of shape {tuple(array.shape)} is not contiguous; use .contiguous()"
        )
    return Buffer(array.data_ptr(), array.numel(), dtype, tuple(array.shape), array)


def placed(text: str, array: Array) -> str:
    """`float32[3] on cuda`: memory of a device is not taken for memory of the CPU."""
    return f"{text} on {array.device.type}" if isinstance(array, torch.Tensor) else text


def flat(array: Array) -> torch.Tensor:
    """A contiguous tensor in one dimension, without a copy."""
    tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    return tensor.detach().reshape(-1)


def on_host(array: Array) -> Array:
    """A tensor in CPU memory: itself, or a copy."""
    return array.cpu() if isinstance(array, torch.Tensor) else array


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiply in place."""
    return tensor if factor == 1.0 else tensor.mul_(factor)


def broadcast_part(run: Run, part: torch.Tensor, root: int) -> None:
    """Copy the root's tensor into every rank's, unless it is empty."""
    options = dist.BroadcastOptions()
    options.rootRank = root
    if part.numel():
        run(lambda group: group.broadcast([part], options))


def reduce_part(run: Run, part: torch.Tensor, op: Op, root: int) -> None:
    """Reduce to the root in place, unless it is empty; elsewhere the tensor is left undefined."""
    options = dist.ReduceOptions()
    options.reduceOp = dist.ReduceOp(REDUCE_OPS[op])
    options.rootRank = root
    if part.numel():
        run(lambda group: group.reduce([part], options))

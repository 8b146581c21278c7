"""Call every name of `horovod_names.py`; run on two ranks by `kadril run --compat horovod`.

The functions of `horovod.torch` itself are called by the suites of `kadril.torch`, whose functions
they are; here they are looked up.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from pathlib import Path
from typing import Any

import horovod.torch as hvd
import horovod_names
import pytest
import torch
from horovod.common.basics import HorovodBasics
from horovod.torch import mpi_ops

directory = Path(sys.argv[1])


def look_up() -> None:
    """Every name exists."""
    for name in horovod_names.TORCH:
        assert hasattr(hvd, name), name
        assert name == "elastic" or hasattr(mpi_ops, name), name
    for name in horovod_names.MPI_OPS:
        assert hasattr(mpi_ops, name), name
    for module, names in horovod_names.TORCH_MODULES.items():
        for name in names:
            assert hasattr(importlib.import_module(module), name), (module, name)
    for name in horovod_names.BASICS:
        assert callable(vars(HorovodBasics)[name]), name  # a method of the class itself


def raises(kind: type[Exception], words: str, function: Any, *arguments: Any) -> None:
    """A call fails, and says why."""
    with pytest.raises(kind, match=words):
        function(*arguments)


def call_basics(basics: HorovodBasics) -> None:
    """The methods, before and after `init`; C and Python agree."""
    library = basics.MPI_LIB_CTYPES
    assert not basics.is_initialized()
    assert library.horovod_rank() == -1
    raises(ValueError, "not initialized", basics.rank)
    raises(ValueError, "not initialized", basics._process_set_size, 0)
    basics.init()
    assert basics.is_initialized()
    assert library.horovod_is_initialized()
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"):
        expected = getattr(hvd, name)()
        assert getattr(basics, name)() == getattr(library, f"horovod_{name}")() == expected, name
    assert basics.is_homogeneous() is True
    assert library.horovod_is_homogeneous() == 1
    built = [name for name in horovod_names.BASICS if name.endswith(("_built", "_enabled"))]
    for name in [*built, "mpi_threads_supported"]:
        expected = getattr(hvd, name)()
        assert getattr(basics, name)() == getattr(library, f"horovod_{name}")() == expected, name
    for name in ("average", "sum", "adasum", "min", "max", "product"):
        assert getattr(library, f"horovod_reduce_op_{name}")() == getattr(hvd, name.title())
    raises(ValueError, "cannot be a world of their own", basics.init, [0])
    ranks = (ctypes.c_int * 1)(0)
    assert not library.horovod_init(ranks, 1, None, None, 0)
    assert b"cannot be a world" in library.kadril_last_error()


def call_timeline(basics: HorovodBasics) -> None:
    """Both names write the file that was asked for."""
    path = directory / "basics.json"
    basics.start_timeline(str(path), mark_cycles=True)
    raises(ValueError, "is being written", basics.start_timeline, str(path))
    basics.stop_timeline()
    assert path.exists() or basics.rank() > 0
    other = str(directory / "library.json").encode()
    assert basics.MPI_LIB_CTYPES.horovod_start_timeline(other, False) == 0
    assert basics.MPI_LIB_CTYPES.horovod_stop_timeline() == 0


def call_process_sets(basics: HorovodBasics) -> None:
    """Sets that C adds are those that Python sees, and the other way round."""
    library = basics.MPI_LIB_CTYPES
    assert basics._add_process_set_impl([1]) == 1
    assert basics._add_process_set_impl([1]) is None
    assert library.horovod_add_process_set((ctypes.c_int * 1)(1), 1) == -6
    raises(ValueError, "within 0 to 1", basics._add_process_set_impl, [7])
    first = hvd.add_process_set([0])
    assert first.process_set_id == 2
    expected = {0: [0, 1], 1: [1], 2: [0]}
    assert basics._get_process_set_ids_and_ranks() == expected
    assert hvd.get_process_set_ids_and_ranks() == expected
    assert basics._process_set_size(1) == 1
    assert library.horovod_process_set_included(1) == basics.rank()
    if basics.rank() == 1:
        assert basics._process_set_rank(1) == 0
    else:
        assert library.horovod_process_set_rank(1) == -4
        raises(ValueError, "not in process set 1", basics._process_set_rank, 1)
    hvd.remove_process_set(first)
    assert basics._remove_process_set_impl(1) == 1
    assert basics._remove_process_set_impl(1) is None
    assert basics._remove_process_set_impl(0) is None
    assert library.horovod_process_set_size(2) == -3
    raises(ValueError, "no process set 2", basics._process_set_size, 2)
    assert basics._get_process_set_ids_and_ranks() == {0: [0, 1]}


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
def on_done(_context: int, _result: int) -> None:
    """The callback of an operation that was submitted to the C interface."""
    is_done.set()


is_done = threading.Event()


def call_operations(basics: HorovodBasics) -> None:
    """An operation of the C interface works in the world that Python opened, and not after it."""
    library = basics.MPI_LIB_CTYPES
    assert library.kadril_barrier_async(0, on_done, None) == 0
    assert is_done.wait(60)
    hvd.shutdown()
    assert library.kadril_barrier_async(0, on_done, None) == -1
    assert b"not initialized" in library.kadril_last_error()


class Communicator:
    """A communicator as `_comm_process_set_id` needs it; a real one is in `multi_comm.py`."""

    def allgather(self, value: int) -> list[int]:
        return list(hvd.allgather(torch.tensor([value])).tolist())


def call_allreduce() -> None:
    """The functions below `allreduce`, for every type of tensor."""
    rank = hvd.rank()
    world = hvd.global_process_set
    for dtype in (torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64):
        tensor = torch.tensor([rank + 1, 2]).to(dtype)
        output = torch.empty_like(tensor)
        handle = mpi_ops._allreduce_async(tensor, output, "low", hvd.Sum, 1.0, 1.0, world)
        kept = mpi_ops._handle_map[handle]
        assert kept[0] is tensor
        assert kept[-1] is output
        assert hvd.synchronize(handle) is output
        assert handle not in mpi_ops._handle_map
        assert output.tolist() == [3, 4]
        assert tensor.tolist() == [rank + 1, 2]
    spread = torch.ones(4)[::2]
    handle = mpi_ops._allreduce_async(spread, spread, None, hvd.Average, 1.0, 3.0, world)
    assert handle in mpi_ops._handle_map
    assert hvd.synchronize(handle) is spread
    assert spread.tolist() == [3, 3]
    function = mpi_ops._check_function(mpi_ops._allreduce_function_factory, torch.ones(1))
    assert function == "horovod_torch_allreduce_async_torch_FloatTensor"
    tensor = torch.tensor([6.0 + rank])
    arguments = (b"low", hvd.Sum, 1.0, 1.0, 0)
    handle = getattr(mpi_ops.mpi_lib, function)(tensor, tensor, 13, *arguments)
    mpi_ops._handle_map[handle] = (tensor, tensor)
    assert hvd.synchronize(handle) is tensor
    assert tensor.tolist() == [1]
    output = torch.ones(2)
    raises(
        ValueError,
        "the output is",
        getattr(mpi_ops.mpi_lib, function),
        tensor,
        output,
        1,
        *arguments,
    )
    sparse = torch.ones(2).to_sparse()
    raises(
        ValueError,
        "is not supported",
        mpi_ops._check_function,
        mpi_ops._allreduce_function_factory,
        sparse,
    )
    handle = hvd.allreduce_async(tensor, name="low", op=hvd.Sum)
    assert torch.equal(mpi_ops._handle_map[handle][0], tensor)
    assert hvd.synchronize(handle).tolist() == [2]
    handle = hvd.allgather_async(tensor)
    given, output = mpi_ops._handle_map[handle]
    assert torch.equal(given, tensor)
    assert output is None
    assert len(mpi_ops._handle_map) == 1
    hvd.synchronize(handle)
    assert not mpi_ops._handle_map
    assert mpi_ops.handle_average_backwards_compatibility(None, None) == hvd.Average


def call_autograd() -> None:
    """The first and the second derivative, of y = s = sum over ranks of x_r^2, and of y^2."""
    x = torch.tensor([hvd.rank() + 1.0], dtype=torch.float64, requires_grad=True)
    arguments = (None, "squares", hvd.Sum, 1.0, 1.0, hvd.global_process_set)
    y = mpi_ops.HorovodAllreduce.apply(x * x, *arguments)
    assert y.tolist() == [5]
    # Both ranks have the loss y^2: its gradient is 2x * (2y + 2y) = 8 x s.
    (gradient,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    assert gradient.tolist() == [8 * (hvd.rank() + 1) * 5]
    # The sum of both ranks' gradients is 8 s (x_0 + x_1), and by x: 8 s + 16 x (x_0 + x_1).
    (second,) = torch.autograd.grad(gradient.sum(), x)
    assert second.tolist() == [8 * 5 + 16 * (hvd.rank() + 1) * 3]


look_up()
made = HorovodBasics(__file__, "mpi_lib_v2")
call_basics(made)
call_timeline(made)
call_process_sets(made)
call_allreduce()
call_autograd()
assert made._comm_process_set_id(Communicator()) == 0
importlib.import_module("horovod.common.process_sets")._init_process_sets([hvd.ProcessSet([0])])
assert made._get_process_set_ids_and_ranks() == {0: [0, 1], 1: [0]}
made.shutdown()
assert not hvd.is_initialized()
assert not made.MPI_LIB_CTYPES.horovod_is_initialized()

# The other way round: what C opens, Python sees.
sets, sizes = (ctypes.c_int * 1)(1), (ctypes.c_int * 1)(1)
assert made.MPI_LIB_CTYPES.horovod_init(None, 0, sets, sizes, 1)
assert hvd.is_initialized()
assert hvd.get_process_set_ids_and_ranks() == {0: [0, 1], 1: [1]}
assert hvd.allreduce(torch.ones(1), op=hvd.Sum).tolist() == [2]
call_operations(made)
assert made.MPI_LIB_CTYPES.horovod_rank() == -1
sys.stdout.write("all well\n")

"""allreduce: every dtype and op, in its four forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from exact import same
from hvd_model import DTYPE_NAMES, INTEGERS, OPS, given, ops_of, reduced
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World

COUNT = 37


@everywhere
def test_every_dtype_and_op_at_once(world: World) -> None:
    # All are in flight together, so whatever is fused must be taken apart again in the right way.
    cases = [(name, op) for name in DTYPE_NAMES for op in ops_of(name)]
    tensors = [given(name, op, world.rank, COUNT) for name, op in cases]
    handles = [
        hvd.allreduce_async(tensor, name=f"{name}.{op}", op=OPS[op])
        for (name, op), tensor in zip(cases, tensors, strict=True)
    ]
    for (name, op), tensor, handle in zip(cases, tensors, handles, strict=True):
        assert isinstance(handle, int)
        result = hvd.synchronize(handle)
        assert same(result, reduced(name, op, range(world.size), COUNT)), (name, op)
        assert same(tensor, given(name, op, world.rank, COUNT)), (name, op, "the input")


@everywhere
def test_every_dtype_in_place_at_once(world: World) -> None:
    cases = [(name, op) for name in DTYPE_NAMES for op in ops_of(name)]
    tensors = [given(name, op, world.rank, 3, 5) for name, op in cases]
    handles = [
        hvd.allreduce_async_(tensor, name=f"{name}.{op}", op=OPS[op])
        for (name, op), tensor in zip(cases, tensors, strict=True)
    ]
    for (name, op), tensor, handle in zip(cases, tensors, handles, strict=True):
        assert hvd.synchronize(handle) is tensor
        assert same(tensor, reduced(name, op, range(world.size), 3, 5)), (name, op)


@everywhere
def test_blocking_forms(world: World) -> None:
    for name in ("float32", "bfloat16", "int64", "uint8", "complex64"):
        for op in ops_of(name):
            expected = reduced(name, op, range(world.size), 4, 3)
            tensor = given(name, op, world.rank, 4, 3)
            assert same(hvd.allreduce(tensor, op=OPS[op]), expected), (name, op)
            assert same(tensor, given(name, op, world.rank, 4, 3)), (name, op, "the input")
            assert hvd.allreduce_(tensor, op=OPS[op]) is tensor
            assert same(tensor, expected), (name, op, "in place")


@on_shm
def test_the_default_is_the_average(world: World) -> None:
    for name in ("float16", "float64", "int32", "complex128"):
        expected = reduced(name, "average", range(world.size), COUNT)
        tensor = given(name, "average", world.rank, COUNT)
        assert same(hvd.allreduce(tensor), expected)
        assert same(hvd.synchronize(hvd.allreduce_async(tensor)), expected)
        assert same(hvd.allreduce_(tensor.clone()), expected)
        assert same(hvd.synchronize(hvd.allreduce_async_(tensor)), expected)


@everywhere
def test_averages_of_integers_are_exact(world: World) -> None:
    """Horovod multiplies by 1/size, in floating point: off by one for some sizes, and above 2^53.

    Here it is the exact quotient, truncated toward zero.
    """
    size = world.size
    for name in INTEGERS:
        low = 0 if name.startswith("u") else -31
        # Rank 0 gives all the sums from low to 31, the others nothing.
        values = torch.arange(low, 32) if world.rank == 0 else torch.zeros(32 - low)
        result = hvd.allreduce(values.to(getattr(torch, name)), name=name)
        quotients = [abs(total) // size * (1 if total > 0 else -1) for total in range(low, 32)]
        assert result.tolist() == quotients, name
    for big in (2**60 + 1, -(2**60) - 1, 2**53 + 1):
        assert hvd.allreduce(torch.tensor([big])).tolist() == [big]


@everywhere
def test_an_average_fits_where_its_sum_does_not(world: World) -> None:
    """The mean of numbers is between them, so it has to be right in their own dtype."""
    for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32"):
        limits = torch.iinfo(getattr(torch, name))
        tensor = torch.tensor([limits.min, limits.max, limits.max - 1]).to(getattr(torch, name))
        assert hvd.allreduce(tensor, name=name).tolist() == tensor.tolist(), name


@on_shm
def test_an_average_of_flags_is_refused_or_right(world: World) -> None:
    """Flags that are true everywhere are not false on average."""
    try:
        result = hvd.allreduce(torch.tensor([True, False]))
    except (ValueError, hvd.HorovodInternalError) as error:
        assert "bool" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert result.tolist() == [True, False]


@on_shm
def test_average_argument_is_deprecated(world: World) -> None:
    tensor = torch.tensor([world.rank * 2.0])
    total = float(sum(range(world.size)) * 2)
    calls = (hvd.allreduce, hvd.allreduce_)
    for function in calls:
        with pytest.warns(DeprecationWarning, match="average"):
            assert function(tensor.clone(), average=True).tolist() == [total / world.size]
        with pytest.warns(DeprecationWarning, match="average"):
            assert function(tensor.clone(), average=False).tolist() == [total]
        with pytest.warns(DeprecationWarning, match="average"):
            assert function(tensor.clone(), False).tolist() == [total]  # its place is the second
    for start in (hvd.allreduce_async, hvd.allreduce_async_):
        with pytest.warns(DeprecationWarning, match="average"):
            assert hvd.synchronize(start(tensor.clone(), average=False)).tolist() == [total]
    for refused in (*calls, hvd.allreduce_async, hvd.allreduce_async_):
        with pytest.raises(ValueError, match="average"):
            refused(tensor, average=True, op=hvd.Sum)
    for group in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        with pytest.warns(DeprecationWarning, match="average"):
            assert group([tensor.clone()], average=False)[0].tolist() == [total]
        with pytest.raises(ValueError, match="average"):
            group([tensor], average=False, op=hvd.Sum)


@on_shm
def test_ops_without_a_meaning_are_refused(world: World) -> None:
    refusal = (ValueError, TypeError, hvd.HorovodInternalError)
    for name, op in (("complex64", hvd.Min), ("complex128", hvd.Max), ("int32", hvd.Adasum)):
        with pytest.raises(refusal, match=name):
            hvd.allreduce_async(torch.zeros(3, dtype=getattr(torch, name)), op=op)
    with pytest.raises(refusal, match="float8"):
        hvd.allreduce_async(torch.zeros(3, dtype=torch.float8_e4m3fn))
    unknown: list[Any] = [17, -1, "sum"]
    for other in unknown:
        with pytest.raises((ValueError, TypeError)):
            hvd.allreduce_async(torch.zeros(3), op=other)
    with pytest.raises((ValueError, TypeError)):
        hvd.allreduce_async([1.0, 2.0])  # type: ignore[arg-type]
    hvd.barrier()


@on_shm
def test_large_and_small_tensors_together(world: World) -> None:
    counts = [1, 300_001, 5, 0, 70_000, 2, 1_200_000, 3]
    tensors = [given("float32", "sum", world.rank, count) for count in counts]
    handles = [
        hvd.allreduce_async_(tensor, name=str(place), op=hvd.Sum)
        for place, tensor in enumerate(tensors)
    ]
    for handle, tensor, count in zip(handles, tensors, counts, strict=True):
        assert hvd.synchronize(handle) is tensor
        assert same(tensor, reduced("float32", "sum", range(world.size), count)), count


@on_shm
def test_shared_memory_of_the_world(world: World) -> None:
    shared = world.shared_empty((40, 50), torch.float32)
    shared.copy_(given("float32", "sum", world.rank, 40, 50))
    expected = reduced("float32", "sum", range(world.size), 40, 50)
    assert same(hvd.allreduce(shared, op=hvd.Sum), expected)
    # A part of it, between memory that is not given.
    part = shared[10:20]
    before = shared.clone()
    hvd.allreduce_(part, op=hvd.Sum)
    assert same(part, expected[10:20])
    assert same(shared[:10], before[:10])
    assert same(shared[20:], before[20:])


@on_shm
def test_special_floats(world: World) -> None:
    nan, inf = float("nan"), float("inf")
    for name in ("float16", "bfloat16", "float32", "float64"):
        for op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
            tensor = torch.ones(9, dtype=getattr(torch, name))
            tensor[world.rank] = nan
            result = hvd.allreduce(tensor, op=op)
            assert result.isnan().tolist() == [place < world.size for place in range(9)], (name, op)
        extremes = torch.tensor([inf, -inf, 1.0], dtype=getattr(torch, name))
        assert hvd.allreduce(extremes).tolist() == [inf, -inf, 1.0]

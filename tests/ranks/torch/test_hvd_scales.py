"""Scale factors: y = postscale * reduce_r(prescale * x_r), where the dtype rounds or truncates."""

from __future__ import annotations

from typing import Any

import torch
from exact import same
from hvd_model import DTYPE_NAMES, OPS, fits, given, ops_of, reduced
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World

SCALES = ((2.0, 0.5), (0.5, 2.0), (1.0, 0.5), (3.0, 1.0))
COUNT = 19


@everywhere
def test_every_dtype_scaled(world: World) -> None:
    cases = [
        (name, op, prescale, postscale)
        for name in DTYPE_NAMES
        for op in ops_of(name)
        for prescale, postscale in SCALES
        if name != "bool" and fits(name, op, world.size, COUNT, prescale)
    ]
    handles = [
        hvd.allreduce_async(
            given(name, op, world.rank, COUNT),
            name=f"{name}.{op}.{prescale}.{postscale}",
            op=OPS[op],
            prescale_factor=prescale,
            postscale_factor=postscale,
        )
        for name, op, prescale, postscale in cases
    ]
    for (name, op, prescale, postscale), handle in zip(cases, handles, strict=True):
        everyone = range(world.size)
        expected = reduced(name, op, everyone, COUNT, prescale=prescale, postscale=postscale)
        assert same(hvd.synchronize(handle), expected), (name, op, prescale, postscale)


@everywhere
def test_integers_are_scaled_in_float64_and_truncated(world: World) -> None:
    size = world.size
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        odd = torch.tensor([3, -3, 1, -1, 7], dtype=dtype)
        # Each input by itself: 1.5, -1.5, 0.5, -0.5, 3.5.
        result = hvd.allreduce(odd, op=hvd.Sum, prescale_factor=0.5)
        assert result.tolist() == [size, -size, 0, 0, 3 * size]
        result = hvd.allreduce(odd, op=hvd.Sum, postscale_factor=0.5)
        assert result.tolist() == [int(value * size * 0.5) for value in odd.tolist()]
        assert hvd.allreduce(odd, prescale_factor=0.5).tolist() == [1, -1, 0, 0, 3]
    # 2^24 + 1 is no float32.
    exact = torch.tensor([2**24 + 1], dtype=torch.int32)
    assert hvd.allreduce(exact, op=hvd.Max, prescale_factor=2.0).tolist() == [2**25 + 2]
    # Without a factor no integer goes through a float: 2^62 + 1 is no float64.
    for op in (hvd.Min, hvd.Max):
        assert hvd.allreduce(torch.tensor([2**62 + 1]), op=op).tolist() == [2**62 + 1]


@everywhere
def test_16_bit_floats_are_scaled_in_float32(world: World) -> None:
    size = world.size
    # As a float16 1/3 is 0.33325, which makes 999.5 of 3000. As a bfloat16 1.0035 is 1, which
    # leaves 200 as it is; 200.7 is rounded to 201.
    cases = (
        (torch.float16, 3000.0, 1.0 / 3.0, 1000.0),
        (torch.bfloat16, 200.0, 1.0035, 201.0),
    )
    for dtype, value, factor, expected in cases:
        tensor = torch.full((5,), value, dtype=dtype)
        result = hvd.allreduce(tensor, op=hvd.Max, prescale_factor=factor)
        assert result.tolist() == [expected] * 5
        result = hvd.allreduce(tensor, op=hvd.Max, postscale_factor=factor)
        assert result.tolist() == [expected] * 5
    # The sum of two of them is no float16; their average is.
    large = torch.full((5,), 60000.0, dtype=torch.float16)
    assert hvd.allreduce(large).tolist() == [60000.0] * 5
    assert hvd.allreduce(large, op=hvd.Sum, postscale_factor=0.5 / size).tolist() == [30000.0] * 5
    # 3 * 2^-30 is lost where it is rounded to float16 before it is multiplied back.
    small = torch.full((5,), 3.0, dtype=torch.float16)
    there: dict[str, Any] = {"prescale_factor": 2.0**-30, "postscale_factor": 2.0**30}
    assert hvd.allreduce(small, op=hvd.Max, **there).tolist() == [3.0] * 5


@on_shm
def test_in_place_and_grouped_forms_scale_too(world: World) -> None:
    size = world.size
    factors: dict[str, Any] = {"op": hvd.Sum, "prescale_factor": 2.0, "postscale_factor": 4.0}
    expected = [8.0 * size] * 3
    assert hvd.allreduce_(torch.ones(3), **factors).tolist() == expected
    assert hvd.synchronize(hvd.allreduce_async_(torch.ones(3), **factors)).tolist() == expected
    tensors = [torch.ones(3), torch.ones(3, dtype=torch.int64)]
    for group in (hvd.grouped_allreduce, hvd.grouped_allreduce_):
        results = group([tensor.clone() for tensor in tensors], **factors)
        assert [result.tolist() for result in results] == [expected, expected]
    rows = hvd.reducescatter(torch.ones(size, 3), **factors)
    assert rows.tolist() == [expected]
    grouped = hvd.grouped_reducescatter([torch.ones(size, 3)], **factors)
    assert grouped[0].tolist() == [expected]


@on_shm
def test_equal_requests_with_other_factors_do_not_mix(world: World) -> None:
    # Fused by dtype and op alone, they would be scaled alike.
    factors = [1.0, 2.0, 0.5, 2.0, 1.0, 4.0]
    handles = [
        hvd.allreduce_async(torch.ones(4), name=str(i), op=hvd.Sum, prescale_factor=factor)
        for i, factor in enumerate(factors)
    ]
    handles += [
        hvd.allreduce_async(torch.ones(4), name=f"post{i}", op=hvd.Sum, postscale_factor=factor)
        for i, factor in enumerate(factors)
    ]
    for factor, handle in zip(factors * 2, handles, strict=True):
        assert hvd.synchronize(handle).tolist() == [factor * world.size] * 4


@on_shm
def test_zero_is_a_factor(world: World) -> None:
    tensor = torch.ones(3)
    assert hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.0).tolist() == [0.0] * 3
    assert hvd.allreduce(tensor, op=hvd.Sum, postscale_factor=-1.0).tolist() == [-world.size] * 3


@on_shm
def test_results_of_reduced_fit_the_dtype(world: World) -> None:
    # The model itself: an expectation that wrapped around would hide a wrong result.
    for name in ("int8", "uint8"):
        for op in ops_of(name):
            wide = reduced("int64" if name == "int8" else "uint64", op, range(world.size), COUNT)
            assert wide.tolist() == reduced(name, op, range(world.size), COUNT).tolist(), (name, op)

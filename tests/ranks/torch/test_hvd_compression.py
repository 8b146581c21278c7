"""Compression: what goes over the wire is 16 bits wide, what comes back is not."""

from __future__ import annotations

import pytest
import torch
from hvd_stage import everywhere, on_shm

import kadril.torch as hvd
from kadril.world import World

WIRE = {"fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("method", ["none", "fp16", "bf16"])
def test_compress_and_decompress(method: str) -> None:
    compression = getattr(hvd.Compression, method)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool):
        tensor = torch.ones(5).to(dtype)
        small, context = compression.compress(tensor)
        if method != "none" and dtype.is_floating_point:
            assert small.dtype == WIRE[method]
        else:
            assert small.dtype == dtype
        back = compression.decompress(small, context)
        assert back.dtype == dtype
        assert torch.equal(back, tensor)


@everywhere
def test_sums_are_those_of_the_rounded_inputs(world: World) -> None:
    """The dtype of the result tells nothing: that it is rounded shows it went through 16 bits."""
    for method, dtype in WIRE.items():
        compression = getattr(hvd.Compression, method)
        fine = 1.0 + torch.finfo(dtype).eps / 8  # rounded to 1
        tensor = torch.full((7,), fine, dtype=torch.float32)
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=compression)
        assert result.dtype == torch.float32
        assert result.tolist() == [float(world.size)] * 7
        assert tensor.tolist() == [fine] * 7
        result = hvd.allreduce(tensor, op=hvd.Sum, compression=hvd.Compression.none)
        assert result.tolist() == [fine * world.size] * 7
        doubles, wholes = hvd.grouped_allreduce(
            [tensor.double(), torch.full((3,), 2**40 + 1)], op=hvd.Max, compression=compression
        )
        assert (doubles.dtype, doubles.tolist()) == (torch.float64, [1.0] * 7)
        assert wholes.tolist() == [2**40 + 1] * 3, "integers pass as they are"


@on_shm
def test_reducescatter(world: World) -> None:
    rows = world.size * 2
    tensor = torch.full((rows, 2), 1.0 + 2.0**-13)
    for compression, each in ((hvd.Compression.fp16, 1.0), (hvd.Compression.none, tensor[0, 0])):
        result = hvd.reducescatter(tensor, compression=compression)
        assert (result.dtype, result.tolist()) == (torch.float32, [[each] * 2] * 2)
        (grouped,) = hvd.grouped_reducescatter([tensor], compression=compression)
        assert (grouped.dtype, grouped.tolist()) == (torch.float32, [[each] * 2] * 2)


@on_shm
def test_what_does_not_fit_float16_is_infinite(world: World) -> None:
    tensor = torch.full((2,), 1e6)
    result = hvd.allreduce(tensor, compression=hvd.Compression.fp16)
    assert result.tolist() == [float("inf")] * 2
    result = hvd.allreduce(tensor, compression=hvd.Compression.bf16)
    assert result.tolist() == torch.full((2,), 1e6).bfloat16().float().tolist()

"""Interpolation on partitions gives what torch gives in one process.

The nearest inputs are the same ones, so these modes are compared with `==`; so are the others where
there are 2 or 4 outputs per input, and all weights are multiples of powers of two. Otherwise
weights are torch's, but compilers fuse multiplications and additions where we do not, so bounds are
derived: of n operations on numbers of size s, each is off by at most eps * s.

Gradients of the nearest modes are compared with the adjoint of torch's forward pass, taken column
by column: torch's own backward pass finds other inputs than its forward pass for a few sizes.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from box_kit import run, seeded, sequential
from partition_kit import LayerCase, block, draw_cases, grid
from upsample_cases import LARGEST_INPUT, check_upsample, matrix_of, some_upsample

from kadril.nn.interpolation.function import interpolate
from kadril.nn.interpolation.taps import AlongDim
from kadril.nn.interpolation.upsample import DistributedUpsample
from kadril.partition import Interval
from kadril.testing import check_autograd_adjoint, integer_valued, ranks
from kadril.world import World

Cases = dict[int, list[LayerCase]]


@pytest.fixture(scope="module")
def cases() -> Cases:
    return {
        size: draw_cases(seeded(partial(some_upsample, num_workers=size, is_exact=False)), 30)
        for size in (1, 2, 3, 4)
    }


@pytest.fixture(scope="module")
def exact_cases() -> Cases:
    return {
        size: draw_cases(seeded(partial(some_upsample, num_workers=size, is_exact=True)), 30)
        for size in (1, 2, 3, 4)
    }


@ranks(1, 2, 3, 4)
def test_interpolation_is_torchs(world: World, cases: Cases) -> None:
    for case in cases[world.size]:
        check_upsample(world, case, torch.float64)


@ranks(2, 4)
def test_interpolation_is_torchs_in_single_precision(world: World, cases: Cases) -> None:
    for case in cases[world.size][:30]:
        check_upsample(world, case, torch.float32)


@ranks(1, 2, 3, 4)
def test_powers_of_two_are_exact(world: World, exact_cases: Cases) -> None:
    """The way in which torch's own function interpolates boxes; bicubic on two dims included."""
    for case in exact_cases[world.size]:
        layer = torch.nn.Upsample(**case.settings)
        x = integer_valued(case.shape, seed=4)
        P_x = grid(world, case.partition)
        reference = sequential(layer, x)
        got, got_grad = run(
            DistributedUpsample.of(layer, P_x),
            block(x, P_x, case.blocks),
            block(reference.y_grad, P_x),
        )
        if P_x.active:
            assert torch.equal(got, block(reference.y, P_x)), case
            assert got.is_contiguous()
            assert torch.equal(got_grad, block(reference.x_grad, P_x, case.blocks)), case


@ranks(4, transports=["shm", "c10d", "mpi:openmpi"])
def test_backward_pass_is_the_adjoint(world: World, exact_cases: Cases, cases: Cases) -> None:
    for case in [*exact_cases[world.size][:8], *cases[world.size][:16]]:
        P_x = grid(world, case.partition)
        twin = DistributedUpsample(P_x, **case.settings)
        x = block(integer_valued(case.shape, seed=4), P_x, case.blocks)
        y = integer_valued(twin(x).shape, seed=5, rank=world.rank)
        is_exact = case in exact_cases[world.size]
        # Sums of up to 1000 products on either side.
        bound = None if is_exact else 2 * 1000 * torch.finfo(torch.float64).eps
        check_autograd_adjoint(world, twin, x, y, exact=is_exact, bound=bound)


@ranks(3)
def test_far_from_the_origin_weights_are_still_torchs(world: World) -> None:
    """Positions rounded in another way than torch's would be off by 1e-4 out there."""
    P_x = grid(world, (1, 1, 3))
    x = integer_valued((1, 1, 3000), torch.float32, seed=1)
    for layer in [
        torch.nn.Upsample(7001, mode="linear"),
        torch.nn.Upsample(scale_factor=2.3, mode="linear"),
        torch.nn.Upsample(7001, mode="linear", align_corners=True),
        torch.nn.Upsample(7001, mode="nearest"),
        torch.nn.Upsample(1234, mode="nearest-exact"),
    ]:
        got = DistributedUpsample.of(layer, P_x)(block(x, P_x))
        off = (got - block(layer(x), P_x)).abs().max()
        assert off <= 4 * LARGEST_INPUT * torch.finfo(torch.float32).eps, layer


@ranks(2)
def test_sizes_where_torch_has_several_rules(world: World) -> None:
    """Small images have a kernel of their own, whose nearest inputs are not always the same."""
    P_x = grid(world, (1, 1, 1, 2))
    for width, scale in [(5, 1.1), (33, 2.3), (3, 2.3), (100, 2.3), (257, 1.1)]:
        for mode in ("nearest", "nearest-exact"):
            x = integer_valued((1, 2, 3, width), seed=1)
            layer = torch.nn.Upsample(scale_factor=(2.0, scale), mode=mode)
            got = DistributedUpsample.of(layer, P_x)(block(x, P_x))
            assert torch.equal(got, block(layer(x), P_x)), (width, scale, mode)


def test_weights_are_torchs() -> None:
    """Weights are the same to the bit for linear interpolation, and to 3 eps for cubic."""
    for dtype, precision in ((torch.float32, np.float32), (torch.float64, np.float64)):
        for size, num, scale in [(257, 771, None), (100, 333, None), (64, 147, 2.3), (10, 7, 0.7)]:
            for kind, mode, bound in [("linear", "bilinear", 0), ("cubic", "bicubic", 3)]:
                for align in (False, True):
                    layer = torch.nn.Upsample(
                        (1, num) if scale is None else None,
                        None if scale is None else (1.0, scale),
                        mode,
                        align,
                    )
                    A = matrix_of(layer, (1, 1, 1, size), dtype)
                    along = AlongDim(kind, num, scale, align, precision)
                    taps = along.taps(Interval(0, num), size)
                    assert taps.weights is not None
                    got = torch.zeros_like(A)
                    for indices, weights in zip(taps.indices, taps.weights, strict=True):
                        got[torch.arange(num), indices] += torch.from_numpy(weights)
                    assert (got - A).abs().max() <= bound * torch.finfo(dtype).eps


@ranks(2)
def test_other_dtypes(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    x = (torch.arange(2 * 9) * 7 % 31).view(1, 2, 9)
    near = torch.nn.Upsample(14)
    got = DistributedUpsample.of(near, P_x)(block(x.to(torch.uint8), P_x))
    assert torch.equal(got, block(near(x.to(torch.uint8)), P_x))
    linear = torch.nn.Upsample(14, mode="linear")
    got = DistributedUpsample.of(linear, P_x)(block(x.to(torch.bfloat16), P_x))
    assert got.dtype == torch.bfloat16
    # torch rounds weights to 8 bits, we do not: two weights, and the result.
    off = (got - block(linear(x.to(torch.bfloat16)), P_x)).abs().max()
    assert off <= 3 * 31 * torch.finfo(torch.bfloat16).eps


@ranks(2)
def test_as_a_function(world: World) -> None:
    P_x = grid(world, (1, 1, 2, 1))
    x = integer_valued((1, 2, 5, 4), seed=1)
    got = interpolate(block(x, P_x), P_x, scale_factor=2, mode="bilinear")
    expected = torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")
    assert torch.equal(got, block(expected, P_x))


@ranks(2)
def test_bad_input(world: World) -> None:
    P_x = grid(world, (1, 1, 2))
    with pytest.raises(ValueError, match="either size or scale_factor"):
        DistributedUpsample(P_x)
    with pytest.raises(ValueError, match="either size or scale_factor"):
        DistributedUpsample(P_x, 4, 2.0)
    with pytest.raises(ValueError, match=r"mode must be one of nearest.*adaptive average pool"):
        DistributedUpsample(P_x, 4, mode="area")
    with pytest.raises(ValueError, match="bilinear needs 4 axes"):
        DistributedUpsample(P_x, 4, mode="bilinear")
    with pytest.raises(ValueError, match="align_corners is for"):
        DistributedUpsample(P_x, 4, align_corners=False)
    with pytest.raises(ValueError, match="recompute_scale_factor"):
        DistributedUpsample(P_x, 4, recompute_scale_factor=True)
    with pytest.raises(ValueError, match="size must be a positive number, or 1 of them"):
        DistributedUpsample(P_x, (4, 4))
    with pytest.raises(ValueError, match="scale_factor must be a positive number"):
        DistributedUpsample(P_x, scale_factor=-2.0)
    with pytest.raises(TypeError, match="got ReLU"):
        DistributedUpsample.of(torch.nn.ReLU(), P_x)
    with pytest.raises(ValueError, match=r"dim 2 of the output has 1 elements.*2 workers.*axis 2"):
        DistributedUpsample(P_x, 1)(torch.zeros(1, 1, 3))
    with pytest.raises(ValueError, match="floating-point"):
        DistributedUpsample(P_x, 4, mode="linear")(torch.zeros(1, 1, 3, dtype=torch.int64))
    assert DistributedUpsample(P_x, 5)(torch.zeros(1, 1, 3)).shape == (1, 1, 3 - world.rank)

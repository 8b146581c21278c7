"""Inputs for exact tests."""

from __future__ import annotations

import pytest
import torch

from kadril.testing import integer_valued

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_whole_and_of_many_kinds(dtype: torch.dtype) -> None:
    values = integer_valued((40, 25), dtype, seed=3)
    assert values.dtype == dtype
    assert values.shape == (40, 25)
    wide = torch.view_as_real(values) if dtype.is_complex else values.double()
    assert torch.equal(wide, wide.round())
    assert len(wide.unique()) >= (2 if dtype == torch.bool else 3)
    assert (wide.min() >= 0) == (not dtype.is_signed)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_sums_of_products_are_exact_in_the_type_itself(dtype: torch.dtype) -> None:
    """Products are added one by one in the narrow type, in any order."""
    count = 31 if dtype.itemsize == 1 else 64
    a, b = integer_valued(count, dtype, seed=1), integer_valued(count, dtype, seed=2)
    exact = (a.to(torch.complex128) * b.to(torch.complex128)).sum()
    products = a * b
    for order in (range(count), reversed(range(count))):
        total = torch.zeros((), dtype=dtype)
        for place in order:
            total = total + products[place]
        assert total.to(torch.complex128) == exact


def test_the_same_seed_and_rank_give_the_same_and_others_give_others() -> None:
    assert torch.equal(integer_valued(50, seed=1, rank=2), integer_valued(50, seed=1, rank=2))
    variants = [integer_valued(50, seed=seed, rank=rank) for seed in range(3) for rank in range(3)]
    assert len({tuple(variant.tolist()) for variant in variants}) == 9


def test_a_number_is_a_shape() -> None:
    assert integer_valued(0).shape == (0,)
    assert integer_valued(()).shape == ()

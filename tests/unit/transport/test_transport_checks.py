"""Overlap of memory, against a count of bytes; other checks are in the conformance tests."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kadril.transport.base import OPS
from kadril.transport.buffer import DTYPES, Buffer, address_of, as_buffer, as_bytes
from kadril.transport.checks import check_allreduce, check_apart, check_op, overlaps
from kadril.transport.operands import CheckedMessage

MEMORY = torch.zeros(60, dtype=torch.uint8)

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 12))


def buffer_at(span: tuple[int, int]) -> Buffer:
    begin, length = span
    return as_buffer(MEMORY[begin : begin + length])


def bytes_of(spans: Sequence[tuple[int, int]]) -> list[int]:
    return [byte for begin, length in spans for byte in range(begin, begin + length)]


@given(one=SPANS, other=SPANS)
def test_overlaps(one: tuple[int, int], other: tuple[int, int]) -> None:
    shared = set(bytes_of([one])) & set(bytes_of([other]))
    assert overlaps(buffer_at(one), buffer_at(other)) == bool(shared)


@given(sent=st.lists(SPANS, max_size=4), received=st.lists(SPANS, max_size=4))
def test_received_memory_must_be_apart(
    sent: list[tuple[int, int]], received: list[tuple[int, int]]
) -> None:
    into = bytes_of(received)
    is_apart = len(into) == len(set(into)) and not set(into) & set(bytes_of(sent))
    messages = [
        [CheckedMessage(0, buffer_at(span)) for span in spans] for spans in (sent, received)
    ]
    if is_apart:
        check_apart(*messages)
    else:
        with pytest.raises(ValueError, match="overlaps"):
            check_apart(*messages)


@given(one=SPANS, other=SPANS)
def test_out_may_be_the_array_but_not_overlap_it(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    array = MEMORY[one[0] : one[0] + 10]
    out = MEMORY[other[0] : other[0] + 10]
    if 0 < abs(one[0] - other[0]) < 10:
        with pytest.raises(ValueError, match="overlaps"):
            check_allreduce(array, "sum", out)
    else:
        check_allreduce(array, "sum", out)


def test_every_dtype_has_the_ops_that_make_sense() -> None:
    supported = {name: [op for op in OPS if is_supported(op, name)] for name in DTYPES}
    for name, ops in supported.items():
        if name.startswith("complex"):
            assert ops == ["sum", "product"]
        elif "float" in name:
            assert ops == ["sum", "product", "min", "max"]
        else:
            assert ops == list(OPS)


def is_supported(op: str, name: str) -> bool:
    from kadril.errors import UnsupportedError

    try:
        check_op(op, as_buffer(torch.zeros(1, dtype=getattr(torch, name))))
    except UnsupportedError:
        return False
    return True


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(0, 3, dtype=torch.int64),
        torch.arange(40.0)[::7][:1],  # one element, of a stride that no contiguous tensor has
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(3, dtype=torch.complex128),
        torch.tensor([True, False]),
    ],
)
def test_bytes_of_any_contiguous_tensor(tensor: torch.Tensor) -> None:
    view = as_bytes(tensor)
    assert view.shape == (tensor.numel() * tensor.element_size(),)
    assert tensor.numel() == 0 or address_of(view) == tensor.data_ptr()


def test_bytes_of_an_empty_numpy_array() -> None:
    # numpy gives an empty array strides of its own, which torch does not view as bytes.
    assert as_bytes(torch.zeros(0, dtype=torch.uint16).numpy()).shape == (0,)

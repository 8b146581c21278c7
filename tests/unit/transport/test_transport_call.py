"""The text of a call, and the error that shows the calls of all ranks."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kadril.transport.buffer import as_buffer
from kadril.transport.call import MAX_SHOWN, Call, counted, mismatch, reduction_call, shaped
from kadril.transport.operands import CheckedReduction


def test_text() -> None:
    buffer = as_buffer(torch.zeros(2, 3))
    plain = CheckedReduction(buffer, buffer, "sum", 0, 1.0, 1.0, "grad")
    call = reduction_call("allreduce", shaped(buffer), plain)
    assert call.text == "allreduce(float32[2, 3], sum, name='grad')"
    scaled = CheckedReduction(buffer, buffer, "max", 3, 0.5, 2.0, "")
    call = reduction_call("reduce", shaped(buffer), scaled, root=1)
    assert call.text == "reduce(float32[2, 3], max, root=1, prescale=0.5, postscale=2.0)"
    assert (
        Call("allgatherv", (counted(buffer, [4, 0, 2]),)).text == "allgatherv(float32[4 + 0 + 2])"
    )
    assert Call("barrier").text == "barrier()"
    assert shaped(as_buffer(torch.zeros(()))) == "float32[]"


def test_a_very_long_text_is_cut() -> None:
    text = Call("allgatherv", (counted(as_buffer(torch.zeros(3)), range(1000)),)).text
    assert len(text) == MAX_SHOWN
    assert text.endswith("...)")


@pytest.mark.parametrize(
    "other",
    [
        Call("reduce", ("float32[3]", "sum"), name="a"),
        Call("allreduce", ("float32[4]", "sum"), name="a"),
        Call("allreduce", ("float32[3]", "max"), name="a"),
        Call("allreduce", ("float32[3]", "sum"), name="b"),
        Call("allreduce", ("float32[3]", "sum", "root=0"), name="a"),
        Call("allreduce", ("float32[3], sum",), name="a"),
    ],
)
def test_digests_of_different_calls_differ(other: Call) -> None:
    assert Call("allreduce", ("float32[3]", "sum"), name="a").digest() != other.digest()


@given(own=st.lists(st.text(), max_size=3))
def test_what_may_differ_is_not_in_the_digest(own: list[str]) -> None:
    assert Call("exchange", (), tuple(own)).digest() == Call("exchange").digest()


def test_mismatch_groups_ranks_by_what_they_called() -> None:
    error = mismatch(["barrier()", "reduce(int8[1])", "barrier()"], [4, 7, 9], "look here")
    assert error.calls == {4: "barrier()", 7: "reduce(int8[1])", 9: "barrier()"}
    lines = str(error).splitlines()
    assert lines[1:4] == ["  ranks 4, 9: barrier()", "  rank 7: reduce(int8[1])", "  look here"]

"""Programs that hypothesis makes up: whatever the kinds, shapes and orders, the model's results."""

from __future__ import annotations

import pytest
from hvd_model import DTYPE_NAMES, ops_of
from hvd_program import KINDS, Program, Step, run_program
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kadril.testing import RankPool


@st.composite
def steps(draw: st.DrawFn) -> Step:
    dtype = draw(st.sampled_from(DTYPE_NAMES))
    return Step(
        kind=draw(st.sampled_from(KINDS)),
        dtype=dtype,
        op=draw(st.sampled_from([op for op in ops_of(dtype) if op != "average"])),
        shape=tuple(draw(st.lists(st.integers(0, 6), max_size=3))),
        members=draw(st.integers(0, 2)),
        seed=draw(st.integers(0, 1000)),
    )


programs = st.builds(
    Program,
    steps=st.lists(steps(), min_size=1, max_size=20).map(tuple),
    order=st.integers(0, 1000),
    num_turns=st.integers(1, 3),
)

# The same examples every time, so that a failure is a failure for everybody.
few = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize("size", [2, 3, 4])
@settings(few, max_examples=25)
@given(program=programs)
def test_programs_on_shm(rank_pool: RankPool, size: int, program: Program) -> None:
    rank_pool.run(size, run_program, program)


@pytest.mark.parametrize("transport", ["c10d", "mpi:openmpi"], indirect=True)
@pytest.mark.parametrize("size", [2, 3])
@few
@given(program=programs)
def test_programs_elsewhere(
    rank_pool: RankPool, transport: str, size: int, program: Program
) -> None:
    rank_pool.run(size, run_program, program, transport=transport)

"""Contract between Python and the native core: codes, names, and the stub."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kadril import _native
from kadril.observe.flight_record import OPERATIONS, read_record
from kadril.transport.base import OPS
from kadril.transport.buffer import DTYPES

STUB = Path(__file__).parents[2] / "src" / "kadril" / "_native.pyi"


def test_dtype_codes_are_positions_in_the_core_s_table() -> None:
    for dtype in DTYPES.values():
        assert _native.DTYPE_NAMES[dtype.code] == dtype.name
        assert _native.DTYPE_SIZES[dtype.code] == dtype.itemsize
        assert getattr(torch, dtype.name).itemsize == dtype.itemsize
    assert len(_native.DTYPE_NAMES) == len(DTYPES)


def test_op_codes_are_positions_in_the_core_s_table() -> None:
    assert tuple(_native.OP_NAMES) == OPS


def stub_names(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def public(thing: object) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_stub_names_what_the_module_has() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    assert stub_names(tree.body) == public(_native)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            assert stub_names(node.body) == public(getattr(_native, node.name)), node.name


def test_fault_points_cover_every_collective() -> None:
    collectives = {point.partition(".")[0] for point in _native.fault_points()}
    assert collectives == {
        "allgatherv",
        "allreduce",
        "alltoallv",
        "barrier",
        "broadcast",
        "exchange",
        "reduce",
        "reduce_scatterv",
    }


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("allreduce.enter", "expected point:action"),
        ("allreduce.nowhere:kill", "no such point"),
        ("barrier.mid_copy:kill", "no such point"),
        ("allreduce.enter:explode", "no such action"),
        ("allreduce.enter:kill#0", "count of 1 or more"),
    ],
)
def test_a_bad_fault_is_refused(spec: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        _native.set_fault(spec)
    _native.set_fault("")


def test_the_flight_record_is_read_as_the_core_writes_it(tmp_path: Path) -> None:
    """The file is read back; the recorder runs in a child, since it cannot be closed."""
    path = tmp_path / "rank-3.record"
    program = f"""
import os
from kadril import _native
assert _native.begin_record("barrier", "", 1, 1, 2) == 0  # not open yet
assert not _native.go_on_recording(2, 4)
descriptor = os.open({str(path)!r}, os.O_RDWR | os.O_CREAT, 0o600)
assert _native.open_recorder(descriptor, 2, 4, 47) == ""
assert _native.go_on_recording(3, 4)
if os.fork() == 0:
    os._exit(_native.go_on_recording(1, 4))
assert os.wait()[1] == 0
for number in range(1, 101):
    begun = _native.begin_record("alltoallv", f"call {{number}}", 7, number, 2)
    assert begun == number
    if number < 100:
        _native.end_record(begun)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    record = read_record(path)
    assert (record.rank, record.size, record.stack_signal, record.num_begun) == (3, 4, 47, 100)
    assert [call.name for call in record.calls] == [f"call {n}" for n in range(37, 101)]
    assert [call.sequence for call in record.under_way] == [100]
    assert {call.operation for call in record.calls} == {"alltoallv"}


def test_a_recorder_that_cannot_have_its_file_says_why() -> None:
    with open("/dev/null", "r+b") as file:  # noqa: PTH123
        assert "posix_fallocate" in _native.open_recorder(file.fileno(), 0, 2, 0)


def test_operations_of_flight_records_are_those_of_the_core() -> None:
    points = [point.partition(".")[0] for point in _native.fault_points()]
    assert tuple(dict.fromkeys(points)) == OPERATIONS

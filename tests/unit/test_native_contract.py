"""What Python and the native core must agree in: codes, names, and the stub."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from kadril import _native
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

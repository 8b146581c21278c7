"""Every fault of the matrix has tests that exist, and the page of promises shows the matrix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fault_comparison.page import PAGE, page_with_tables
from fault_matrix import MATRIX, Fault

TESTS = Path(__file__).parents[1]


def test_no_fault_is_missing() -> None:
    assert [fault.number for fault in MATRIX] == [f"F{number:02}" for number in range(1, 46)]


@pytest.mark.parametrize("fault", MATRIX, ids=[fault.number for fault in MATRIX])
def test_the_tests_of_a_fault_exist(fault: Fault) -> None:
    assert fault.tests
    for test in fault.tests:
        file, _, function = test.partition("::")
        text = (TESTS / file).read_text()
        pattern = rf"^(    )?def {function}\(" if function else r"^def test_\w+\("
        assert re.search(pattern, text, re.MULTILINE), f"{fault.number}: no test {test}"


def test_the_page_is_what_the_results_say() -> None:
    """Write it anew with `python benchmarks/fault_comparison/page.py`."""
    assert PAGE.read_text() == page_with_tables(PAGE.read_text())

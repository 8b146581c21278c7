"""The example of elastic training: a rank that is killed changes nothing in the result."""

from __future__ import annotations

import pytest
from example import launch_example


@pytest.mark.long
def test_a_killed_rank_changes_nothing() -> None:
    options = ("--min-np", "2")
    quiet = launch_example("elastic.py", "quiet", num_ranks=3, options=options)
    killed = launch_example("elastic.py", num_ranks=3, options=options)
    assert len(quiet) == 3
    assert sorted(quiet) == sorted(killed)

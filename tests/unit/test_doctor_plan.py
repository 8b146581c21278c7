"""`kadril doctor --plan`: the plan of an all-reduce over several hosts, as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from kadril.observe.doctor import main

UNEVEN = """\
all-reduce of 240 bytes of float32 over 5 ranks on 2 hosts, by shares

tier 0, inside each host: reduce-scatter, in shared memory
  host 0   rank 0: 80, rank 1: 80, rank 2: 80
  host 1   rank 3: 120, rank 4: 120

tier 1, between hosts: bytes, whose partial sums, who adds them
  [            0,            80)   0 + 3            all of them
  [           80,           120)   1 + 3            all of them
  [          120,           160)   1 + 4            all of them
  [          160,           240)   2 + 4            all of them

uplinks of hosts: bytes sent and received; 1.000 is 2 (H - 1) / H of the array
  host 0             240           240   1.000
  host 1             240           240   1.000

steps
  1  reduce-scatter inside hosts
  2  out across tier 1, and add
  3  all-gather inside hosts

measured: nothing yet on such hosts. kadril.ddl.init with `-mode p` measures them, and keeps it
"""


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_plan_of_uneven_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", "--hosts", "3,2", "--bytes", "240", "--way", "shares"]) == 0
    assert capsys.readouterr().out == UNEVEN


def test_the_plan_of_racks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", "--hosts", "2,2,2,2", "--tiers", "2x2x2", "--bytes", "64M"]) == 0
    printed = capsys.readouterr().out
    assert "all-reduce of 67,108,864 bytes of float32 over 8 ranks on 4 hosts, by shares" in printed
    assert "tier 2, between racks" in printed
    assert "  rack 1      67,108,864    67,108,864   1.000" in printed
    assert "  host 3     100,663,296   100,663,296   1.000" in printed
    assert "back across tier 1" in printed


def test_ranks_that_were_dealt_to_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--plan", "--hosts", "0-2-4,1-3", "--bytes", "1K"]) == 0
    printed = capsys.readouterr().out
    assert "by leaders" in printed
    assert "rank 2: 0" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hosts", "3;2"], "numbers of ranks, such as 3,2"),
        (["--hosts", "0-1,1-2"], "every rank is on one host"),
        (["--bytes", "much"], "such as 64M"),
        (["--hosts", "2,2", "--tiers", "2x3"], r"2 * 3 = 6 ranks, and there are 4"),
    ],
)
def test_what_makes_no_plan(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--plan", *words]) == 2
    assert message in capsys.readouterr().err

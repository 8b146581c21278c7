"""The report as JSON, as tables, as a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench_report import make_report

from kadril.bench.report import Report
from kadril.bench.rounds import Key
from kadril.bench.table import Table, format_seconds, make_tables, print_tables, three_digits
from kadril.errors import ConfigError

MIB = 1 << 20
REPORT = make_report(
    {
        Key("allreduce", 4, "pinned", "kadril"): [[1e-6, 2e-6, 1e-6]],
        Key("allreduce", 4, "pinned", "copy"): [[1e-7, 1e-7, 1e-7]],
        Key("allreduce", 4, "pinned", "gloo"): [[250e-6, 250e-6, 260e-6]],
        Key("allreduce", MIB, "pinned", "kadril"): [[1e-4], [2e-4], [1e-4]],
        Key("allreduce", MIB, "pinned", "copy"): [[5e-5], [1e-4], [1e-4]],
        Key("allreduce", MIB, "unpinned", "gloo"): [[2e-3], [2e-3], [2e-3]],
        Key("barrier", 0, "pinned", "kadril"): [[5e-7]],
        Key("barrier", 0, "pinned", "gloo"): [[2e-4]],
    }
)


def test_json_there_and_back() -> None:
    again = Report.from_json(REPORT.to_json())
    assert [result.key for result in again.results] == [result.key for result in REPORT.results]
    assert again.idle == REPORT.idle
    for ours, theirs in zip(REPORT.results, again.results, strict=True):
        assert theirs.p50 == pytest.approx(ours.p50, rel=1e-5)
        assert len(theirs.rounds) == len(ours.rounds)
    assert Report.from_json(again.to_json()) == again


def test_json_names_what_one_must_know() -> None:
    fields = json.loads(REPORT.to_json())
    assert {"date", "command", "machine", "load", "versions", "results"} <= fields.keys()
    assert REPORT.to_json().count("\n") < 50, "one line per result, not one per number"


def test_json_of_something_else() -> None:
    with pytest.raises(ConfigError, match="not a report of `kadril bench` in format 1"):
        Report.from_json('{"format": 99}')


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (88e-9, "88.0 ns"),
        (1.337e-6, "1.34 us"),
        (12.34e-6, "12.3 us"),
        (0.9999e-3, "1000 us"),
        (0.1234, "123 ms"),
        (2.0, "2.00 s"),
    ],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_numbers_for_people() -> None:
    shown = [three_digits(value) for value in (1234.6, 56.78, 1.0, 0.05, 0.001)]
    assert shown == ["1235", "56.8", "1.00", "0.05", "<0.01"]


def test_tables() -> None:
    times, ratios, *others = make_tables(REPORT)
    assert times.header == ("size", "", "kadril", "copy", "gloo")
    assert times.rows == (
        ("4 B", "pinned", "1.00 us (1.98 us)", "100 ns (100 ns)", "250 us (260 us)"),
        ("1 MiB", "pinned", "100 us (198 us)", "100 us (100 us)", "-"),
        ("1 MiB", "unpinned", "-", "-", "2.00 ms (2.00 ms)"),
    )
    assert ratios.header == ("size", "", "engine", "algbw", "busbw", "vs copy", "vs gloo")
    small, large = ratios.rows
    assert small[-2:] == ("-", "250x"), "a copy of four bytes says nothing about a call"
    assert large[-2:] == ("1.00x (0.50-0.90)", "20.0x (12.0-20.0)")
    assert large[3:5] == ("10.5", "10.5")
    assert [table.rows[0][:2] for table in others] == [("-", "pinned")] * 2


def test_plain_text_is_aligned() -> None:
    table = Table("title", ("size", "time"), (("4 B", "1 us"), ("64 MiB", "10 ms")))
    assert table.lines() == [
        "title",
        "  size   time",
        "------  -----",
        "   4 B   1 us",
        "64 MiB  10 ms",
    ]


def run_elsewhere(program: str) -> str:
    """Run a program that has REPORT in a process of its own, and give what it prints."""
    prelude = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tables_without_rich() -> None:
    # rich is an extra: where it is not installed, the tables are plain text.
    shown = run_elsewhere(
        "sys.modules['rich'] = None\n"
        "from kadril.bench.table import print_tables\n"
        "from test_bench_table import REPORT\n"
        "print_tables(REPORT)\n"
    )
    (row,) = [line for line in shown.splitlines() if "1.00 us (1.98 us)" in line]
    assert row.split()[:5] == ["4", "B", "pinned", "1.00", "us"]
    assert "barrier, 2 ranks, float32: time of a call" in shown


def test_tables_with_rich(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "200")
    print_tables(REPORT)
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    print_tables(REPORT)
    narrow = capsys.readouterr().out
    for shown in (wide, narrow):
        assert "1.00 us (1.98 us)" in shown, "cells are never cut"
    assert wide != narrow


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"bench.{suffix}"
    # In a process of its own: matplotlib keeps the files of its fonts open.
    run_elsewhere(
        "import dataclasses, pathlib\n"
        "from kadril.bench.plot import draw\n"
        "from test_bench_table import REPORT\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "draw(dataclasses.replace(REPORT, results=REPORT.results[-2:]), path)  # only a barrier\n"
        "draw(REPORT, path)\n"
    )
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG") if suffix == "png" else b"<svg" in picture


def test_no_picture_without_matplotlib() -> None:
    shown = run_elsewhere(
        "sys.modules['matplotlib'] = None\n"
        "from kadril.bench.main import main\n"
        "sys.stderr = sys.stdout\n"
        "print(main(['--plot', 'x.png']))\n"
    )
    assert shown == "kadril bench: --plot needs matplotlib; try: pip install 'kadril[plot]'\n2\n"

"""`kadril forecast`: table, picture, what is refused, and the page that shows its output."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kadril.cli import main
from kadril.errors import ConfigError
from kadril.observe.forecast_plot import host_counts
from kadril.observe.quantities import (
    format_bandwidth,
    format_duration,
    parse_bandwidth,
    parse_duration,
)

DOCS = Path(__file__).parents[2] / "docs"


def forecast(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["forecast", *words]) == 0
    return capsys.readouterr().out


def commands() -> list[tuple[str, str]]:
    """The commands of the page, and what it shows below them."""
    page = (DOCS / "forecast.md").read_text()
    blocks = re.findall(r"```console\n\$ kadril forecast (.*)\n((?:.*\n)*?)```", page)
    assert blocks
    return [(command, output) for command, output in blocks if "--plot" not in command]


@pytest.mark.parametrize(("command", "output"), commands())
def test_the_page_shows_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], command: str, output: str
) -> None:
    assert forecast(capsys, *shlex.split(command)) == output


def test_times_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    # 2 hosts of 1: all of 1 MiB in one exchange, at 1 MiB per ms; a step takes 1 ms.
    words = "--hosts 2 --bytes 1M --bandwidth 1048.576MB --latency 1ms --overhead 0us --step 3ms"
    lines = forecast(capsys, *words.split()).splitlines()
    (tiered,) = [line for line in lines if line.startswith("tiered")]
    assert tiered.split() == ["tiered", "2", "ms", "0.50", "1.00", "1", "60.0%"]


def test_16_bits_between_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    lines = forecast(capsys, "--hosts", "4", "--ranks", "2", "--wire-dtype", "bf16").splitlines()
    (tiered,) = [line for line in lines if line.startswith("tiered")]
    assert tiered.split()[4] == "0.75"


def test_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "forecast.svg"
    # In a process of its own: matplotlib keeps the files of its fonts open.
    words = [sys.executable, "-m", "kadril", "forecast", "--hosts", "6", "--plot", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.endswith(f"drawn to {path}\n")
    assert "<svg" in path.read_text()


def test_a_picture_has_powers_of_two() -> None:
    assert host_counts(6) == [2, 4, 6]
    assert host_counts(8) == [2, 4, 8]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--hosts 1", "2 hosts or more"),
        ("--hosts 4 --ranks 0", "2 hosts or more"),
        ("--hosts 100000 --ranks 8", "800000 workers"),
        ("--hosts 4 --bandwidth 10", "10Gbit or 1.25GB"),
        ("--hosts 4 --latency 50", "50us, 1.5ms or 2s"),
        ("--hosts 4 --bytes 0", "must not be 0"),
    ],
)
def test_refused(capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert main(["forecast", *words.split()]) == 2
    assert said in capsys.readouterr().err


def test_quantities() -> None:
    assert parse_bandwidth("10Gbit") == parse_bandwidth("1.25 GB/s") == 1.25e9
    assert parse_bandwidth("100mbit") == 12.5e6
    assert parse_duration("50us") == pytest.approx(50e-6)
    assert parse_duration("2s") == 2
    assert format_bandwidth(1.25e9) == "10 Gbit/s"
    assert format_bandwidth(12.5e6) == "100 Mbit/s"
    shown = [format_duration(value) for value in (2.0, 0.0125, 50e-6, 5e-9, 0.0)]
    assert shown == ["2 s", "12.5 ms", "50 us", "5 ns", "0 ns"]
    for text in ("", "fast", "1.2.3Gbit", "-1Gbit", "0Gbit"):
        with pytest.raises(ConfigError, match="bandwidth"):
            parse_bandwidth(text)
    for text in ("", "5", "1.2.3us", "5min"):
        with pytest.raises(ConfigError, match="duration"):
            parse_duration(text)

"""README is a promise: its Python runs as it stands, with the command it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [body for kind, body in fences if kind == language]


def test_the_first_program_runs(tmp_path: Path) -> None:
    program = "\n".join(blocks("python"))
    (tmp_path / "first.py").write_text(program, encoding="utf-8")
    (command,) = [block.strip() for block in blocks("") if "kadril run" in block]
    assert command == "kadril run -np 2 first.py"
    done = subprocess.run(
        [sys.executable, "-m", "kadril", *command.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] rank 0 has (1, 8, 32, 64) of (1, 8, 64, 64)",
        "[0] sum over 2 ranks: [3.0, 3.0, 3.0, 3.0]",
        "[1] rank 1 has (1, 8, 32, 64) of (1, 8, 64, 64)",
    ]


def test_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_figures_come_from_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if "| pinned |" in line]
    pages = (ROOT / "benchmarks" / "results").glob("collectives-*.md")
    measured = [set(page.read_text(encoding="utf-8").splitlines()) for page in pages]
    assert rows
    assert any(set(rows) <= page for page in measured), "not all rows are of one results file"


DYING = """
import os, signal
import kadril, torch

world = kadril.init()
for step in range(100):
    if world.rank == 1 and step == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    world.transport.allreduce(torch.ones(1_000_000), name="grad")
"""


def test_a_death_is_told_as_shown(tmp_path: Path) -> None:
    (tmp_path / "dying.py").write_text(DYING, encoding="utf-8")
    (shown,) = [block for block in blocks("") if "PeerLost" in block]
    error, summary = shown.splitlines()
    done = subprocess.run(
        [sys.executable, "-m", "kadril", "run", "-np", "2", "dying.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 128 + 9
    assert (
        error.partition(" after ")[0] in done.stderr
    )  # how long it took is not the same each time
    assert summary in done.stderr

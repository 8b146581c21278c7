"""docs/guides/sharded.md: its programs run as they stand, on the ranks it names, in order."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from forked_program import run_forked

import kadril.sharded
from kadril import errors

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "sharded.md").read_text("utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)
PROGRAMS = [body for kind, body in FENCES if kind == "python"]
COMMANDS = [line for kind, body in FENCES if not kind for line in body.splitlines()]

# In the order in which they need each other's files, with what they print.
PRINTED = {
    "kadril run -np 2 train.py": r"rank \d: \d{4} numbers of state for 4609 parameters\n" * 2,
    "kadril run -np 2 tour.py": (
        r"flat \{.*\}\ngreedy \{.*\}\nlargest_first \{.*\}\nbackward graph 1 of 1, rank 0 of 2: 4"
        r" gradients, 4 of them dropped here\n(.*\n)+"
    ),
    "kadril run -np 3 resume.py": r"step 3, the same from both: True\n",
    "python plain.py": r"torch.Size\(\[256, 16\]\)\n",
}


def lay_out(directory: Path) -> None:
    """Write the programs: three by themselves, the other blocks one after the other."""
    for name, words in (
        ("train", "for step in range(50)"),
        ("resume", "extra ="),
        ("plain", "whole ="),
    ):
        (program,) = [each for each in PROGRAMS if words in each]
        (directory / f"{name}.py").write_text(program, encoding="utf-8")
        PROGRAMS.remove(program)
    (directory / "tour.py").write_text("\n".join(PROGRAMS), encoding="utf-8")


def run(command: str, directory: Path) -> str:
    """Run a command of the page; return what it prints."""
    if command.startswith("python"):  # without kadril
        words = [sys.executable, *command.split()[1:]]
        done = subprocess.run(words, cwd=directory, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout
    match = re.fullmatch(r"kadril run -np (\d) (\w+\.py)", command)
    assert match is not None
    lines = run_forked(directory / match[2], num_ranks=int(match[1]))
    return "".join(f"{line}\n" for line in lines)


def test_every_command_runs(tmp_path: Path) -> None:
    lay_out(tmp_path)
    assert sorted(COMMANDS) == sorted(PRINTED)
    for command in PRINTED:
        printed = run(command, tmp_path)
        assert re.fullmatch(PRINTED[command], printed), f"{command}\n{printed}"
    assert (tmp_path / "graph.svg").stat().st_size > 0
    assert (tmp_path / "optimizer.pt").stat().st_size > 0


def test_every_name_exists() -> None:
    for name in re.findall(r"`(\w+Error|PeerLost)`", GUIDE):
        assert hasattr(errors, name), name
    trainer = re.findall(r"`trainer\.(\w+)", GUIDE)
    assert trainer
    for name in trainer:
        assert hasattr(kadril.sharded.POS_Trainer, name), name
    for name in re.findall(r"kadril\.sharded\.(\w+)", GUIDE):
        assert hasattr(kadril.sharded, name), name

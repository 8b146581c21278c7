"""docs/guides/horovod.md: each command in it runs, and its tables are those of the program.

The scripts of the page import torch, in every rank and for seconds. Commands that show flags of the
launcher have another script in place of `mean.py`, which tells what `kadril run` has told the rank;
except for the one that names a timeline, which has to be written.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from forked_program import run_forked
from launch_playground import Launched, Playground, Result

from kadril.config import variable
from kadril.horovod_variables import HONOURED, IDLE
from kadril.launch.request.horovod_flags import FLAGS

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "horovod.md").read_text(encoding="utf-8")
FENCES = re.findall(r"^```(\w*)\n(.*?)^```$", GUIDE, flags=re.DOTALL | re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [body for kind, body in FENCES if kind == language]


COMMANDS = [line for block in blocks("") for line in block.splitlines()]
# Run by other tests too: the program by forked ranks, below; the report by `test_build_report.py`.
RARE = ("kadril run -np 2 python train_kadril.py", "kadril run --check-build")
TIMELINE = "--timeline-filename trace.json"

MEAN_OF_ALL_RANKS = """
    import os
    size = int(os.environ["KADRIL_SIZE"])
    if os.environ["KADRIL_RANK"] == "0":
        print(f"{size} ranks, mean {(size - 1) / 2}")
        with open("timeline.txt", "w") as file:
            file.write(os.environ.get("KADRIL_TIMELINE", ""))
"""


def lay_out(playground: Playground, command: str = "") -> None:
    """Write the files that the page shows."""
    train, mean, squares = blocks("python")
    playground.write("mean.py", mean if TIMELINE in command else MEAN_OF_ALL_RANKS)
    playground.write("train.py", train)
    changed = train.replace("import horovod.torch as hvd", "import kadril.torch as hvd")
    assert changed != train
    playground.write("train_kadril.py", changed)
    playground.write("squares.py", squares)
    (hosts,) = blocks("hosts")
    playground.write("hosts.txt", hosts)
    (config,) = blocks("yaml")
    playground.write("config.yaml", config)


def run(playground: Playground, command: str) -> Result:
    """Run a command of the page as it stands, by the Python of this test."""
    words = shlex.split(command)
    # torch makes a directory for compiled code where temporary files are, and leaves it there.
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(playground.directory / "compiled")}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    words = [sys.executable if word == "python" else word for word in words]
    if words[0] == "kadril":
        assert words[1] == "run"
        return playground.start(*words[2:], env=variables).finish(timeout=60)
    process = subprocess.Popen(
        words,
        env=playground.environment(variables),
        cwd=playground.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    playground.launched.append(Launched(process))
    return playground.launched[-1].finish(timeout=60)


@pytest.mark.parametrize(
    "command",
    [pytest.param(line, marks=[pytest.mark.long] * (line in RARE)) for line in COMMANDS],
)
def test_command(playground: Playground, command: str) -> None:
    lay_out(playground, command)
    result = run(playground, command)
    assert result.code == 0, result.err.decode()
    if ".py" in command and "squares" not in command:
        time = r"[-0-9]+ [:0-9]+ " if "timestamp" in command else ""
        value = r"mean 0\.5" if "mean.py" in command else r"loss \d+\.\d+"
        assert re.fullmatch(rf"{time}\[0\] 2 ranks, {value}\n", result.out.decode())
    if "squares" in command:
        assert result.out == b"[9, 16]\n"
    if TIMELINE in command:
        assert (playground.directory / "trace.json").stat().st_size > 0
    elif "mean.py" in command:
        named = Path((playground.directory / "timeline.txt").read_text()).name
        assert named == ("trace.json" if "config.yaml" in command else "")
    if "--output-filename" in command:
        log = playground.directory / "logs" / "rank.0" / "stdout"
        assert log.read_text().startswith("2 ranks")
    for idle in ("--cycle-time-ms", "--autotune", "HOROVOD_CYCLE_TIME"):
        said = [line for line in result.report if line.startswith(f"{idle} has no effect")]
        assert len(said) == (idle in command)


def test_as_it_is_and_with_the_import_changed_is_the_same(playground: Playground) -> None:
    lay_out(playground)
    assert [line for line in COMMANDS if "train" in line] == [
        "kadril run --compat horovod -np 2 python train.py",
        "kadril run -np 2 python train_kadril.py",
    ]
    first = run_forked(playground.directory / "train.py", compat="horovod")
    second = run_forked(playground.directory / "train_kadril.py")
    assert first == second != []


def rows(title: str) -> dict[str, str]:
    """The second column of a table, by each name in its first."""
    (table,) = re.findall(rf"^\| {title} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", GUIDE, re.MULTILINE)
    cells = [line.strip("|").split(" | ", 1) for line in table.splitlines()]
    return {name: text.strip() for names, text in cells for name in re.findall(r"`([^`]+)`", names)}


def test_the_table_of_flags_is_that_of_the_program() -> None:
    told = rows("flag")
    for flag in FLAGS:
        text = told.pop(flag.name)
        if flag.refused:
            assert text.startswith("refused")
        elif flag.idle:
            assert text.startswith("no effect")
        elif flag.own:  # of the launcher itself
            assert "as in Horovod" in text
        else:
            assert f"sets `{variable(flag.option)}`" in text
    assert set(told) == {
        "-np",
        "--num-proc",
        "-cb",
        "--check-build",
        "--verbose",
        "--version",
        "--config-file",
        "--output-filename",
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        "-H",
        "--hosts",
        "-hostfile",
        "--hostfile",
        "-p",
        "--ssh-port",
        "-i",
        "--ssh-identity-file",
        "--network-interfaces",
        "--network-interface",
    }


def test_the_table_of_variables_is_that_of_the_program() -> None:
    told = rows("variable")
    for name, honoured in HONOURED.items():
        assert f"`{variable(honoured.option)}`" in told.pop(name)
    for name in IDLE:
        assert told.pop(name).startswith("no effect")
    assert told == {}

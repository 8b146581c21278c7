"""docs/troubleshooting.md: its programs end with the messages shown, and other messages are real.

Programs run on ranks of their own, where `kadril.init()` gives the world that is there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kadril.config import Config
from kadril.testing import Ranks, run_on_ranks
from kadril.world import World
from kadril.world.choice import choose_transport
from kadril.world.identity import find_identity
from kadril.world.layout import Layout
from kadril.world.session import lend

GUIDE = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text("utf-8")


class PageProgram(NamedTuple):
    """A program of the page, and how it ends; `...` stands for anything."""

    section: str
    program: str
    message: str

    @property
    def options(self) -> dict[str, str]:
        """The options of `# KADRIL_X=...` in its first line."""
        found = re.findall(r"KADRIL_(\w+)=(\S+)", self.program.splitlines()[0])
        return {name.lower(): value for name, value in found}


def cases() -> list[PageProgram]:
    """The messages of all sections, with the programs before them, where there are any."""
    found = []
    for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]:
        program = ""
        for language, body in re.findall(
            r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE
        ):
            if language == "":
                found.append(PageProgram(section.partition("\n")[0], program, body))
            program = body if language == "python" else ""
    return found


def matches(shown: str, real: str) -> bool:
    """Whether a message is the one shown, but for line breaks and what `...` stands for."""
    parts = [re.escape(" ".join(part.split())) for part in shown.split("...")]
    return re.fullmatch(" ?.* ?".join(parts), " ".join(real.split()), re.DOTALL) is not None


def told(error: BaseException) -> str:
    """An error as the last line of a traceback shows it."""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}: {error}"


def run_program(world: World, program: str) -> str:
    """Run a program on this rank, and return the text of the error that ends it."""
    try:
        exec(compile(program, "program.py", "exec"), {"__name__": "__main__"})  # noqa: S102
    except Exception as error:
        return told(error)
    return ""


def run_in_world(world: World, program: str) -> str:
    """Run a program whose `kadril.init()` gives this world, whatever its options are."""
    with lend(world):
        return run_program(world, program)


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.program], ids=lambda case: case.section
)
def test_programs_end_as_shown(case: PageProgram) -> None:
    # Not on the standing ranks: a deadlock is proven only of ranks without other threads, and
    # there a test before this one may have left some, such as the monitor of a progress bar.
    with Ranks(2, **convert(case.options)) as ranks:
        outcomes = ranks.start(run_in_world, case.program).wait(60.0)
    ends = [outcome.value for outcome in outcomes]
    assert any(matches(case.message, end) for end in ends), outcomes


def convert(options: dict[str, str]) -> dict[str, object]:
    """Options as `Config` reads them."""
    variables = {f"KADRIL_{name.upper()}": value for name, value in options.items()}
    config = Config.from_environment(variables)
    return {name: getattr(config, name) for name in options}


def in_a_child(world: World) -> str:
    """Return the error that a child by fork of a rank gets."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, run_program(world, "import kadril; kadril.rank()").encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        message = stream.read()
    os.wait()
    return message


def forked() -> str:
    return run_on_ranks(1, in_a_child)[0]


def not_initialized() -> str:
    # In a process of its own: in this one a world may have been opened and closed before.
    ended = subprocess.run(
        [sys.executable, "-c", "import kadril; kadril.rank()"], stderr=subprocess.PIPE, text=True
    )
    return ended.stderr.splitlines()[-1]


def half_a_launcher() -> str:
    return error_of(lambda: find_identity({"RANK": "1"}))


def mpi_without_mpirun() -> str:
    layout = Layout.of(["here", "here"])
    return error_of(lambda: choose_transport(Config(transport="mpi"), layout, "hub"))


def misspelt() -> str:
    with pytest.warns(UserWarning, match="PATIENSE") as caught:
        Config.from_environment({"KADRIL_PATIENSE": "1"})
    return f"UserWarning: {caught[0].message}"


def error_of(action: Callable[[], object]) -> str:
    with pytest.raises(Exception) as caught:
        action()
    return told(caught.value)


OTHERS = {
    "The wrong number of ranks": half_a_launcher,
    "No world": not_initialized,
    "A process that is not a rank": forked,
    "MPI": mpi_without_mpirun,
    "A variable has no effect": misspelt,
}


def test_every_message_is_tested() -> None:
    assert sorted(OTHERS) == sorted(case.section for case in cases() if not case.program)


@pytest.mark.parametrize(("section", "produce"), OTHERS.items(), ids=OTHERS)
def test_other_messages_are_real(section: str, produce: Callable[[], str]) -> None:
    (case,) = [case for case in cases() if case.section == section and not case.program]
    real = produce()
    assert matches(case.message, real), real


def test_every_section_is_in_the_table() -> None:
    sections = re.findall(r"^## (.*)$", GUIDE, flags=re.MULTILINE)
    for section in sections[:-1]:
        assert f"(#{section.lower().replace(' ', '-')})" in GUIDE, section

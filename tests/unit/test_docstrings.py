"""Docstrings read as plain English: they begin with a verb or a noun phrase."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("src/kadril", "tests", "benchmarks")

# A docstring that begins with one of these is a clause or a fragment: "What a frame says.", "Of all
# parcels.", "That it holds.". Say what the thing is ("Kind of a frame."), or what it does. One that
# begins with a pronoun leaves out its subject: "It was refused.".
CLAUSES = {"That", "What", "Who", "Whose", "Whom", "Which", "Where", "When", "Why", "How"}
FRAGMENTS = {"As", "Of", "In", "To", "By", "For", "From", "Also", "And", "So"}
PRONOUNS = {"It", "Its", "They", "Their", "These", "Those"}

# Names that are spelled with a small letter, also where they begin a sentence. So are paths, dotted
# and called names ("docs/a.md", "gb.GB", "f(x)"), and headings before a colon ("join: ranks that").
SMALL_NAMES = {"bfloat16", "float16", "gloo", "kadril", "mpi4py", "torch"}
SMALL_NAME_MARKS = re.compile(r"[/(\[]|\w\.\w|:$")

# Phrases that do not say in English what they are meant to say, and what to write instead.
PHRASES = {
    "as of `": "see `X`; `as of` is for dates",
    "fits to": "matches, fits",
    "}. time": "for the {n}th time",
}

# Descriptions of an argument or attribute that do not say what it is: "what: for errors." is rather
# "what: name of the layer in errors.", and what "likewise" stands for is said again.
NO_DESCRIPTION = re.compile(r"(?m)^ +[*\w, ]+: (?:for errors|likewise)\.$")


@cache
def sources() -> dict[str, str]:
    """Return the text of each file, by its path within the repository; but for this one."""
    found = [path for each in FOLDERS for path in (ROOT / each).rglob("*.py*")]
    paths = sorted(each for each in found if each.suffix in (".py", ".pyi"))
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    del texts[str(Path(__file__).resolve().relative_to(ROOT))]  # it quotes what others must not say
    return texts


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring


def is_fragment(docstring: str) -> bool:
    """Whether a docstring begins neither with a verb nor with a noun phrase, as far as is known."""
    line = docstring.splitlines()[0]
    start = line.split()[0]
    word = start.strip(",.:;")
    if word in CLAUSES | FRAGMENTS | PRONOUNS:
        return True
    is_equation = " = " in line  # "y = F x."
    is_name = word in SMALL_NAMES or SMALL_NAME_MARKS.search(start) is not None
    return word[0].islower() and not is_equation and not is_name


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    found = [
        f"{name}:{line}: {docstring.splitlines()[0]}"
        for name, text in sources().items()
        for line, docstring in docstrings(text)
        if is_fragment(docstring)
    ]
    assert found == []


@pytest.mark.parametrize("phrase", PHRASES)
def test_phrases_that_are_not_english(phrase: str) -> None:
    found = [
        f"{name}:{number}: {line.strip()}; write: {PHRASES[phrase]}"
        for name, text in sources().items()
        for number, line in enumerate(text.splitlines(), 1)
        if phrase in line
    ]
    assert found == []


def test_descriptions_of_arguments_say_what_they_are() -> None:
    found = [
        f"{name}:{line}: {each.strip()}"
        for name, text in sources().items()
        for line, docstring in docstrings(text)
        for each in NO_DESCRIPTION.findall(docstring)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ("    what: for errors.", True),
        ("    args, kwargs: likewise.", True),
        ("    what: name of the layer in errors.", False),
        ('    padding: likewise, or "same".', False),
    ],
)
def test_the_check_of_descriptions(description: str, expected: bool) -> None:
    docstring = f"Convolve.\n\nArgs:\n{description}"
    assert (NO_DESCRIPTION.search(docstring) is not None) is expected


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("That it holds.", True),
        ("What a frame says.", True),
        ("Of all parcels.", True),
        ("for errors.", True),
        ("It was refused.", True),
        ("Also on one rank only.", True),
        ("Whether the outbox still has room.", False),
        ("Number of cached plans.", False),
        ("y[i, j] = x[j, i].", False),
        ("mpi4py, and the MPI library that it finds.", False),
        ("torch.distributed as a transport.", False),
        ("join: ranks that have run out of data wait for the others.", False),
        ("docs/index.md: its links lead somewhere.", False),
        ("zero_grad() in the middle of a round.", False),
    ],
)
def test_the_check_itself(docstring: str, expected: bool) -> None:
    assert is_fragment(docstring) is expected

"""Docstrings of the package read as plain English: they begin with a verb or a noun phrase."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import kadril

ROOT = Path(kadril.__file__).parent

# A docstring that begins with one of these is a clause or a fragment: "What a frame says.", "Of all
# parcels.", "That it holds.". Say what the thing is ("Kind of a frame."), or what it does.
CLAUSES = {"That", "What", "Who", "Whose", "Whom", "Which", "Where", "When", "Why", "How"}
FRAGMENTS = {"As", "Of", "In"}

# Names that are spelled with a small letter, also where they begin a sentence; dotted ones count by
# their first part.
SMALL_NAMES = {"bfloat16", "float16", "gloo", "kadril", "mpi4py", "torch"}

# Phrases that do not say in English what they are meant to say, and what to write instead.
PHRASES = {
    "as of `": "see `X`; `as of` is for dates",
    "fits to": "matches, fits",
    "}. time": "for the {n}th time",
}


@cache
def sources() -> dict[str, str]:
    """Return the text of each file of the package, by its path within it."""
    paths = sorted([*ROOT.rglob("*.py"), *ROOT.rglob("*.pyi")])
    return {str(path.relative_to(ROOT)): path.read_text() for path in paths}


def docstrings(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            yield node.body[0].lineno, docstring


def is_fragment(docstring: str) -> bool:
    """Whether a docstring begins neither with a verb nor with a noun phrase, as far as is known."""
    line = docstring.splitlines()[0]
    word = line.split()[0].strip(",.:;")
    if word in CLAUSES | FRAGMENTS:
        return True
    is_equation = " = " in line  # "y = F x."
    return word[0].islower() and not is_equation and word.split(".")[0] not in SMALL_NAMES


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


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("That it holds.", True),
        ("What a frame says.", True),
        ("Of all parcels.", True),
        ("for errors.", True),
        ("Whether the outbox still has room.", False),
        ("Number of cached plans.", False),
        ("y[i, j] = x[j, i].", False),
        ("mpi4py, and the MPI library that it finds.", False),
        ("torch.distributed as a carrier.", False),
    ],
)
def test_the_check_itself(docstring: str, expected: bool) -> None:
    assert is_fragment(docstring) is expected

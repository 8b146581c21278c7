"""Pages by which a reader finds the way name what there is: every file, and each word once."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import kadril
from kadril.config import TRANSPORTS

PACKAGE = Path(kadril.__file__).parent
ROOT = PACKAGE.parents[1]

# Listed elsewhere: the packages of kadril in README.md, and modules that stand for those of others.
ELSEWHERE = {"."} | {
    str(path.relative_to(PACKAGE)) for path in PACKAGE.glob("compat/*_path/**") if path.is_dir()
}

# A path in a page, in backquotes: it has a slash or one of these endings. What has a placeholder in
# it, such as `transport/<name>.py`, is not one.
PATH = re.compile(r"`([\w./*-]+(?:/|\.py|\.cc|\.h|\.md|\.pyi)[\w./*-]*)`")


def packages() -> list[str]:
    """Return the packages whose docstring lists files, by their path within kadril."""
    found = {str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")}
    return sorted(found - ELSEWHERE)


def modules_of(folder: Path) -> set[str]:
    """Return the names of modules and packages that lie in a folder."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


def exists(path: str) -> bool:
    """Whether a path of a page leads anywhere: from the repository, the package, or deeper."""
    path = path.rstrip("/")
    folders = (ROOT, PACKAGE, PACKAGE / "torch", ROOT / "tests" / "ranks" / "sharded")
    return any(any(folder.glob(path)) for folder in folders) or (
        "/" not in path and any(PACKAGE.rglob(path))
    )


@pytest.mark.parametrize("name", packages())
def test_the_docstring_of_a_package_lists_its_files(name: str) -> None:
    folder = PACKAGE / name
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert modules_of(folder) - set(re.findall(r"\w+", docstring)) == set()


def test_there_are_packages_to_look_at() -> None:
    assert {"nn", "sharded/checkpoint", "transport/tiers"} <= set(packages())


def test_contributing_names_files_that_exist() -> None:
    paths = PATH.findall((ROOT / "CONTRIBUTING.md").read_text())
    assert len(paths) > 100
    assert [path for path in paths if not exists(path)] == []


def test_the_glossary_has_one_row_for_each_word() -> None:
    """The words of what means two things on purpose are in the last table, after its heading."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    rows = glossary.partition("## Words that meant two things")[0].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| ")]
    words = Counter(word.strip() for cell in cells for word in cell.split(","))
    assert [word for word, count in words.items() if count > 1 and word != "word"] == []


def test_readme_and_glossary_name_every_transport() -> None:
    readme = (ROOT / "README.md").read_text().splitlines()
    drawn = next(line for line in readme if line.startswith("transport "))
    glossary = (ROOT / "docs" / "glossary.md").read_text().splitlines()
    told = next(line for line in glossary if line.startswith("| transport |"))
    assert set(TRANSPORTS) <= set(re.findall(r"\w+", drawn)) & set(re.findall(r"\w+", told))

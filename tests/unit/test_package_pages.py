"""The docstring of each package lists its files, so that a reader finds a file by its purpose."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kadril

ROOT = Path(kadril.__file__).parent

# Listed elsewhere: the packages of kadril in README.md, and modules that stand for those of others.
ELSEWHERE = {"."} | {
    str(path.relative_to(ROOT)) for path in ROOT.glob("compat/*_path/**") if path.is_dir()
}


def packages() -> list[str]:
    """Return the packages whose docstring lists files, by their path within kadril."""
    found = {str(path.parent.relative_to(ROOT)) for path in ROOT.rglob("__init__.py")}
    return sorted(found - ELSEWHERE)


def modules_of(folder: Path) -> set[str]:
    """Return the names of modules and packages that lie in a folder."""
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    return files | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("name", packages())
def test_the_docstring_of_a_package_lists_its_files(name: str) -> None:
    folder = ROOT / name
    docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    assert modules_of(folder) - set(re.findall(r"\w+", docstring)) == set()


def test_there_are_packages_to_look_at() -> None:
    assert {"nn", "sharded/checkpoint", "transport/tiers"} <= set(packages())

"""What `import kadril` shows: the same names to programs, to type checkers and to `dir`."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kadril
import kadril.errors

FACADE = Path(kadril.__file__)


def names_for_type_checkers() -> set[str]:
    """The names that the facade imports under TYPE_CHECKING."""
    tree = ast.parse(FACADE.read_text())
    (block,) = [
        node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)
    ]
    return {
        alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_every_name_can_be_had() -> None:
    for name in kadril.__all__:
        assert getattr(kadril, name) is not None
        assert name in dir(kadril)


def test_type_checkers_see_the_same_names() -> None:
    assert names_for_type_checkers() == set(kadril.__all__) - {"__version__"}


def test_every_error_is_shown() -> None:
    assert set(kadril.errors.__all__) <= set(kadril.__all__)
    for name in kadril.errors.__all__:
        assert getattr(kadril, name) is getattr(kadril.errors, name)


def test_the_promised_names() -> None:
    assert set(kadril.__all__) - set(kadril.errors.__all__) == {
        "Config",
        "LaunchError",
        "World",
        "__version__",
        "cross_rank",
        "cross_size",
        "current",
        "init",
        "is_initialized",
        "is_main",
        "local_rank",
        "local_size",
        "rank",
        "run",
        "shared_empty",
        "shutdown",
        "size",
    }


@pytest.mark.parametrize("name", ["rnak", "_private", "__path__x"])
def test_other_names_are_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'kadril' has no attribute '{name}'"):
        getattr(kadril, name)


@pytest.mark.parametrize(
    "name", ["kadril", "kadril.config", "kadril.errors", "kadril.world", "kadril.world.hub"]
)
def test_all_is_sorted_and_true(name: str) -> None:
    module = importlib.import_module(name)
    assert list(module.__all__) == sorted(set(module.__all__))
    for each in module.__all__:
        assert hasattr(module, each)


def test_the_version_is_that_of_the_package() -> None:
    project = FACADE.parents[2] / "pyproject.toml"
    if not project.exists():
        pytest.skip("an installed package without its sources")
    (version,) = re.findall(r'^version = "(.*)"$', project.read_text(), re.MULTILINE)
    assert kadril.__version__ == version


def test_the_package_is_typed() -> None:
    assert (FACADE.parent / "py.typed").exists()


def test_importing_takes_next_to_nothing() -> None:
    """The launcher pays for it at every start; torch alone would cost seconds."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import kadril; kadril.__version__"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    loaded = [line.split("|")[-1].strip() for line in done.stderr.splitlines() if "|" in line]
    assert "kadril" in loaded
    assert [name for name in loaded if name.startswith("kadril.")] == [], "names load lazily"
    assert not {"torch", "numpy"} & set(loaded)

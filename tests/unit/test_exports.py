"""Names that `import kadril` shows: the same to programs, to type checkers and to `dir`."""

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


PACKAGES = {
    "ddl",
    "elastic",
    "errors",
    "experiment",
    "nn",
    "ops",
    "partition",
    "sharded",
    "testing",
    "torch",
}
# They need a framework that these tests do without; tests/tensorflow has it.
MORE_PACKAGES = {"keras", "tensorflow"}


def test_every_name_can_be_had() -> None:
    for name in kadril.__all__:
        assert getattr(kadril, name) is not None
        assert name in dir(kadril)


def test_type_checkers_see_the_same_names() -> None:
    assert (
        names_for_type_checkers()
        == (set(kadril.__all__) - {"__version__"}) | PACKAGES | MORE_PACKAGES
    )


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
        "allgather",
        "allreduce",
        "allreduce_",
        "alltoall",
        "barrier",
        "broadcast",
        "broadcast_",
        "cross_rank",
        "cross_size",
        "current",
        "grid",
        "init",
        "is_initialized",
        "is_main",
        "local_rank",
        "local_size",
        "rank",
        "reduce",
        "reduce_scatter",
        "run",
        "shared_empty",
        "shutdown",
        "size",
    }


def test_packages_are_loaded_at_their_first_use() -> None:
    """`import kadril` alone makes `kadril.nn.Conv2d` work, and `dir` shows what there is."""
    program = (
        "import sys, kadril\n"
        f"names = {sorted(PACKAGES)}\n"
        "assert set(names) <= set(dir(kadril))\n"
        "assert not [name for name in names if f'kadril.{name}' in sys.modules]\n"
        "assert kadril.nn.Conv2d is kadril.nn.DistributedConv2d\n"
        "for name in names:\n"
        "    assert getattr(kadril, name) is sys.modules[f'kadril.{name}'], name\n"
        "assert kadril.torch.allreduce is not kadril.allreduce\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_packages_of_missing_frameworks_say_what_to_install() -> None:
    """`kadril.tensorflow` was an AttributeError. Tools that list names pass such packages by."""
    program = (
        "import inspect, sys\n"
        "hidden = dict.fromkeys(('torch', 'tensorflow', 'keras'))\n"
        "sys.modules.update(hidden)\n"
        "import kadril\n"
        "needs = {'tensorflow': 'TensorFlow', 'keras': 'Keras 3', 'nn': 'torch'}\n"
        "for name, needed in needs.items():\n"
        "    assert name not in dir(kadril)\n"
        "    try:\n"
        "        getattr(kadril, name)\n"
        "    except ImportError as error:\n"
        "        assert f'needs {needed}, which is not installed' in str(error)\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
        "assert dict(inspect.getmembers(kadril))['World'] is kadril.World\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_a_star_import_leaves_torch_alone() -> None:
    """`from kadril import *` in a program must not put `kadril.torch` in the place of torch."""
    assert not (PACKAGES | MORE_PACKAGES) & set(kadril.__all__)


def test_layers_have_the_names_of_torch_too() -> None:
    """Whatever torch.nn has a layer for is there under torch's name and under DistDL's."""
    import torch

    long_names = [name for name in kadril.nn.__all__ if name.startswith("Distributed")]
    both = [name.removeprefix("Distributed") for name in long_names]
    short_names = [name for name in both if hasattr(torch.nn, name)]
    assert len(short_names) > 40
    for name in short_names:
        assert name in kadril.nn.__all__
        assert getattr(kadril.nn, name) is getattr(kadril.nn, f"Distributed{name}")
    ours = {"LocalContrastNorm2d", "LocallyConnected2d"}  # layers that torch has not
    assert {name for name in both if name in kadril.nn.__all__} == set(short_names) | ours


def test_words_that_meant_two_things() -> None:
    """`split` makes groups of ranks, `join` is Horovod's; the old names of blocks still work."""
    assert kadril.nn.split is kadril.nn.block_of
    assert kadril.nn.join is kadril.nn.whole_of
    assert kadril.nn.DistributedModel.scatter is kadril.nn.DistributedModel.block_of
    assert kadril.nn.DistributedModel.gather is kadril.nn.DistributedModel.whole_of


# The same thing, asked of kadril, of its world, or in Horovod's way.
SAME = {
    *("init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"),
    *("cross_rank", "cross_size", "allgather", "alltoall", "barrier", "reduce_scatter"),
    *("allreduce_", "broadcast_"),
}


def test_a_word_means_one_thing() -> None:
    """A public name that stands for different things in two packages is told in the glossary."""
    homes: dict[str, list[object]] = {}
    for package in [kadril, *(getattr(kadril, name) for name in sorted(PACKAGES))]:
        for name in package.__all__:
            homes.setdefault(name, []).append(getattr(package, name))
    shared = {name for name, found in homes.items() if len({id(each) for each in found}) > 1}
    glossary = (FACADE.parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")
    told = glossary.partition("## Words that meant two things")[2]
    assert [name for name in sorted(shared - SAME) if name not in told] == []
    assert shared >= SAME, "a word that is in one package only"


@pytest.mark.parametrize("name", ["rnak", "_private", "__path__x"])
def test_other_names_are_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'kadril' has no attribute '{name}'"):
        getattr(kadril, name)


@pytest.mark.parametrize(
    "name",
    [
        "kadril",
        "kadril.collectives",
        "kadril.config",
        "kadril.errors",
        "kadril.partition",
        "kadril.world",
        "kadril.world.hub",
    ],
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

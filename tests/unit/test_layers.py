"""Imports go only downwards, and what must start fast does not load torch.

The layers are those of the design; a module may import its own package and the layers below it, not
what stands on the same one. Beside the layers are the parts that may use everything and that
nothing below may use.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import kadril
from kadril.config import TRANSPORTS

ROOT = Path(kadril.__file__).parent

LAYERS = (
    {"errors", "frameworks", "needs_torch"},
    {"horovod_variables"},
    {"config"},
    {"_native"},
    {"transport"},
    {"world"},
    {"partition"},
    {"ops", "engine", "collectives"},
    {"shared_engine"},
    {"shared_keras"},
    {"elastic", "tensorflow", "nn", "sharded", "ddl"},
    {"torch", "experiment"},
    {"keras"},
)
# In the drawing of README.md: a line by themselves.
BELOW_ALL = ("config", "horovod_variables", "errors", "frameworks", "needs_torch")
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# They may use all layers and each other; no layer may use them.
BESIDE = {
    "capi",
    "compat",
    "function_job",
    "launch",
    "observe",
    "testing",
    "bench",
    "cli",
    "__main__",
}

# Loaded by every `kadril` command, and by `import kadril`: neither torch nor numpy, not even by way
# of another module.
LIGHT = ("kadril", "kadril.errors", "kadril.config", "kadril.cli", "kadril.launch", "kadril.world")
HEAVY = {"torch", "numpy", "mpi4py", "tensorflow"}


class Import(NamedTuple):
    """One imported module: by whom, and whether it is loaded with the importer itself."""

    importer: str
    imported: str
    line: int
    at_load: bool


def module_name(path: Path) -> str:
    parts = ["kadril", *path.relative_to(ROOT).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


class Collector(ast.NodeVisitor):
    """Finds every import of a module, inside functions and under TYPE_CHECKING too."""

    def __init__(self, importer: str, package: str) -> None:
        self.importer = importer
        self.package = package
        self.found: list[Import] = []
        self._depth = 0

    def add(self, name: str, node: ast.stmt) -> None:
        self.found.append(Import(self.importer, name, node.lineno, self._depth == 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parents = self.package.split(".")
            base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            # `from kadril.world import unix` names a module, `... import Hub` does not.
            full = f"{base}.{alias.name}"
            self.add(full if full in modules() or base == "kadril" else base, node)

    def deeper(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = deeper  # noqa: N815
    visit_AsyncFunctionDef = deeper  # noqa: N815
    visit_Lambda = deeper  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        is_for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        (self.deeper if is_for_types else self.generic_visit)(node)


@cache
def imports_of(name: str) -> tuple[Import, ...]:
    path = modules()[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    collector = Collector(name, package)
    collector.visit(ast.parse(path.read_text(), str(path)))
    return tuple(collector.found)


def part(name: str) -> str:
    """`kadril.world.hub` belongs to `world`; `kadril` itself to nothing."""
    return name.split(".")[1] if name.count(".") else ""


def internal_imports() -> Iterator[Import]:
    for name in modules():
        for each in imports_of(name):
            if each.imported.split(".")[0] == "kadril":
                yield each


def test_every_part_has_its_place() -> None:
    found = {part(name) for name in modules()} - {""}
    unknown = found - LEVEL.keys() - BESIDE
    assert not unknown, f"say in this test where {unknown} belong among the layers"
    assert found == (LEVEL.keys() | BESIDE) - {"_native"}, "a layer that does not exist"


def test_imports_go_only_downwards() -> None:
    others = []
    for each in internal_imports():
        if each.importer == "kadril" or part(each.importer) in BESIDE:
            continue  # the facade shows all layers, lazily; those beside may use all
        if each.imported == "kadril.__version__":
            continue  # a word of text in the facade
        above, below = part(each.importer), part(each.imported)
        if above != below and LEVEL.get(below, len(LAYERS)) >= LEVEL[above]:
            others.append(f"{each.importer}:{each.line} imports {each.imported}")
    assert others == [], "neither upwards nor sideways"


# Modules that import each other, and why they still do.
CYCLES = {
    # Loaded when the first tensor comes, so that a program without torch never loads it.
    "transport.buffer transport.tensor",
    # The gradients of Min, Max, Product and Adasum are made of all-reduces and gathers themselves.
    "torch.ops.allgather torch.ops.allreduce torch.ops.grouped_allreduce torch.ops.nonlinear",
    # The derivatives of operations, which are operations.
    "tensorflow.collectives tensorflow.gradients tensorflow.python_ops",
    # A context holds the registry of process sets, which asks for the context.
    "shared_engine.context shared_engine.process_sets",
    # The modules of DistDL, which its programs import, have this one too.
    "compat.distdl_path.distdl.backends.mpi.common_group"
    " compat.distdl_path.distdl.backends.mpi.partition",
}


def module_imports() -> dict[str, set[str]]:
    """Return the modules that each one imports, inside functions and for types too.

    The facade is left out: it loads every package when its name is asked for.
    """
    found: dict[str, set[str]] = {name: set() for name in modules() if name != "kadril"}
    for each in internal_imports():
        if each.importer in found and each.imported in found and each.importer != each.imported:
            found[each.importer].add(each.imported)
    return found


def reachable(imports: dict[str, set[str]], start: str) -> set[str]:
    """Return the modules that one imports, by way of others too."""
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = imports[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def cycles(imports: dict[str, set[str]]) -> set[str]:
    """Return groups of modules of which each imports all others, by way of each other."""
    reached = {name: reachable(imports, name) for name in imports}
    groups = {
        frozenset(other for other in seen if name in reached[other])
        for name, seen in reached.items()
        if name in seen
    }
    return {" ".join(sorted(name.removeprefix("kadril.") for name in group)) for group in groups}


def test_modules_do_not_import_each_other() -> None:
    """None of two that do can be read, or tested, without the other."""
    assert cycles(module_imports()) == CYCLES


def test_cycles_are_found() -> None:
    imports = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set[str]()}
    assert cycles(imports) == {"a b c"}


class Row(NamedTuple):
    """A line of the drawing in README.md: a package, and what it imports."""

    name: str
    imports: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} -> {'  '.join(self.imports)}"


def drawn_layers() -> list[list[str]]:
    """The lines of the drawing in README.md between its rules, from top to bottom."""
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (drawing,) = re.findall(r"^```\n(beside .*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [
        part.strip("\n").splitlines() for part in re.split(r"^-+$", drawing, flags=re.MULTILINE)
    ]


def drawn_row(line: str) -> Row:
    """A package, an arrow, and names that are two spaces apart; more spaces before the rest."""
    match = re.match(r"(\w+) +(?:-> (\w+(?:  \w+)*) {3,})?\S", line)
    assert match is not None, line
    return Row(match[1], tuple(sorted((match[2] or "").split())))


def test_the_drawing_shows_the_layers() -> None:
    top, *middle, bottom = drawn_layers()
    assert set(re.findall(r"\w+", top[0].rpartition("   ")[0])) == (BESIDE - {"__main__"}) | {
        "beside"
    }
    basics = list(BELOW_ALL)
    assert bottom == [f"{'below all':<15}{'  '.join(basics)}"]
    drawn = [{drawn_row(line).name for line in lines} for lines in reversed(middle)]
    layers = [{name.removeprefix("_") for name in layer} for layer in LAYERS]
    assert [set(basics), *drawn] == [set().union(*layers[:3]), *layers[3:]]


def test_the_drawing_shows_who_imports_whom() -> None:
    """README.md is read first: what it shows is what the code does."""
    found: dict[str, set[str]] = {}
    shown = LEVEL.keys() - {*BELOW_ALL}
    for each in internal_imports():
        importer, imported = part(each.importer), part(each.imported)
        if importer in shown and imported in shown and importer != imported:
            found.setdefault(importer, set()).add(imported.removeprefix("_"))
    real = [str(Row(name.removeprefix("_"), tuple(sorted(found.get(name, ()))))) for name in shown]
    drawn = [str(drawn_row(line)) for lines in drawn_layers()[1:-1] for line in lines]
    assert sorted(drawn) == sorted(real)


def loaded_with(name: str) -> dict[str, str]:
    """Every module that is loaded by `import name`, and which one asked for it."""
    loaded: dict[str, str] = {}
    waiting = [(name, "")]
    while waiting:
        current, importer = waiting.pop()
        if current in loaded:
            continue
        loaded[current] = importer
        if current not in modules():
            continue
        parents = current.split(".")
        for end in range(1, len(parents)):
            waiting.append((".".join(parents[:end]), current))
        waiting += [(each.imported, current) for each in imports_of(current) if each.at_load]
    return loaded


@pytest.mark.parametrize("name", LIGHT)
def test_light_modules_load_nothing_heavy(name: str) -> None:
    names = [each for each in modules() if each == name or each.startswith(f"{name}.")]
    if name == "kadril":
        names = ["kadril"]
    for each in names:
        heavy = {
            module: importer
            for module, importer in loaded_with(each).items()
            if module.split(".")[0] in HEAVY
        }
        assert not heavy, f"import {each} loads {heavy}"


def test_light_modules_load_nothing_heavy_for_real() -> None:
    names = [name for name in LIGHT if name in modules()]
    code = f"import sys, {', '.join(names)}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    output = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ).stdout
    assert output.strip() == ""


def test_the_control_plane_has_no_pickle() -> None:
    """Data from other processes is read as structs or JSON, so that it cannot run code."""
    forbidden = {"pickle", "cloudpickle", "marshal", "shelve", "dill"}
    users = [
        f"{name}:{each.line} imports {each.imported}"
        for name in modules()
        if part(name) in {"world", "launch", "transport", "config", "errors"}
        for each in imports_of(name)
        if each.imported.split(".")[0] in forbidden
    ]
    assert users == []


def transport_classes() -> set[str]:
    """Names of the classes that are transports: what `split` of one may give."""
    return {
        node.name
        for name, path in modules().items()
        if part(name) == "transport"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Transport")
    } - {"Transport"}


def asks_which_transport(node: ast.AST, classes: set[str]) -> bool:
    """Whether it names a class of transport, or compares `transport.kind`."""
    if isinstance(node, ast.alias | ast.ClassDef):
        return node.name in classes
    if isinstance(node, ast.Name):
        return node.id in classes
    if isinstance(node, ast.Compare):
        return any("transport.kind" in ast.unparse(each) for each in [node.left, *node.comparators])
    return False


def compares_with_a_transport_s_name(node: ast.AST) -> bool:
    """Whether it compares anything with the name of a transport: `kind in ("shm", "mpi")`."""
    return isinstance(node, ast.Compare) and any(
        isinstance(each, ast.Constant) and each.value in TRANSPORTS for each in ast.walk(node)
    )


def test_only_the_transports_know_which_one_it_is() -> None:
    """The layers above ask what a transport can, so that a new one is one file.

    What opens the one of a world is told which.
    """
    classes = transport_classes()
    assert {"ShmTransport", "C10dTransport", "MpiTransport"} <= classes, "nothing was checked"
    users = [
        f"{name}:{getattr(node, 'lineno', '')} {ast.unparse(node)}"
        for name, path in modules().items()
        if part(name) != "transport" and name != "kadril.world.transport_opening"
        for node in ast.walk(ast.parse(path.read_text(), str(path)))
        if asks_which_transport(node, classes)
        # `kadril.torch` once asked `transport_kind() == "mpi"`. Only layers are held to this: the
        # launcher and others beside them read such names from their users.
        or (LEVEL.get(part(name), 0) > LEVEL["world"] and compares_with_a_transport_s_name(node))
    ]
    assert users == []

"""Find a function in another process: by the file, module and name it was defined under.

A test module is loaded from its file under the name pytest gave it, with the session's `sys.path`,
so helpers next to the tests import as they do in the session; its `assert`s show their operands as
under pytest.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from kadril.testing.messages import Target

__all__ = ["load", "load_module", "locate"]

logger = logging.getLogger("kadril")


def locate(function: Callable[..., Any]) -> Target:
    """Say where a function lives.

    Raises:
        TypeError: another process could not find it: a lambda, a nested function, one typed at a
            prompt.
    """
    name = getattr(function, "__qualname__", repr(function))
    module_name = getattr(function, "__module__", None) or ""
    path = getattr(sys.modules.get(module_name), "__file__", None)
    if "<" in name or path is None or module_name == "__main__":
        raise TypeError(
            f"ranks are other processes and cannot find {name} of module {module_name!r} there;"
            " define it at the top level of a module that has a file"
        )
    return Target(str(Path(path).resolve()), module_name, name)


def load(target: Target) -> Callable[..., Any]:
    """Import the module of a target and return the function, bound to an instance if a method."""
    found: Any = load_module(target.path, target.module)
    for part in target.qualname.split("."):
        found = getattr(found() if isinstance(found, type) else found, part)
    function: Callable[..., Any] = found
    return function


def load_module(path: str, name: str) -> ModuleType:
    """Import the module that lives at `path` under `name`, once per process."""
    loaded = sys.modules.get(name)
    if loaded is not None and same_file(loaded, path):
        return loaded
    stem = Path(path).stem
    if not (stem.startswith("test_") or stem.endswith("_test") or stem == "conftest"):
        module = importlib.import_module(name)
        if same_file(module, path):
            return module
    return load_test_module(path, name)


def same_file(module: ModuleType, path: str) -> bool:
    """Whether a module was loaded from this file."""
    return bool(module.__file__) and str(Path(module.__file__ or "").resolve()) == path


def load_test_module(path: str, name: str) -> ModuleType:
    """Load a test file with asserts that explain themselves."""
    parent, _, _ = name.rpartition(".")
    if parent:
        importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, path, loader=ExplainingLoader(name, path))
    if spec is None or spec.loader is None:
        raise ImportError(f"cannot load {path} as module {name!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


class ExplainingLoader(importlib.machinery.SourceFileLoader):
    """Compiles a test file with pytest's assertion rewriting.

    It reads and writes no bytecode cache: the cache of the plain loader has plain asserts.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the source each time; a rank loads a test file once."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        tree = ast.parse(source, path)
        explain_asserts(tree, source, path)
        return compile(tree, path, "exec", dont_inherit=True)


def explain_asserts(tree: ast.Module, source: bytes, path: str) -> None:
    """Rewrite the asserts of a module as pytest does, where pytest is there and lets us."""
    try:
        from _pytest.assertion.rewrite import rewrite_asserts
    except ImportError as error:
        # pytest keeps this function to itself; without it asserts still fail, with less to say.
        logger.info("asserts in ranks are not explained: %s", error)
        return
    rewrite_asserts(tree, source, path)

"""Finding a function in another process."""

from __future__ import annotations

import os
import py_compile
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kadril.testing.messages import Target
from kadril.testing.target import load, load_module, locate


class Holder:
    def __init__(self) -> None:
        self.calls = 0

    def method(self) -> int:
        self.calls += 1
        return self.calls


@pytest.fixture
def clean_imports() -> Iterator[None]:
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - set(modules):
        del sys.modules[name]


def write(path: Path, text: str) -> str:
    path.write_text(textwrap.dedent(text))
    return os.fspath(path)


def test_a_function_is_found_where_it_was_located() -> None:
    target = locate(write)
    assert target == Target(str(Path(__file__).resolve()), __name__, "write")
    assert load(target) is write


def test_a_method_comes_bound_to_a_fresh_instance() -> None:
    target = locate(Holder.method)
    assert target.qualname == "Holder.method"
    assert [load(target)(), load(target)()] == [1, 1]


def test_what_another_process_cannot_find_is_refused() -> None:
    def nested() -> None: ...

    for function in (lambda: None, nested):
        with pytest.raises(TypeError, match="at the top level of a module"):
            locate(function)


@pytest.mark.usefixtures("clean_imports")
def test_a_test_file_is_loaded_once_and_explains_its_asserts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "test_loaded.py",
        """
        def check():
            left = 3
            assert left + 1 == 5
        """,
    )
    module = load_module(path, "test_loaded")
    assert load_module(path, "test_loaded") is module
    with pytest.raises(AssertionError, match=r"assert \(3 \+ 1\) == 5"):
        module.check()


@pytest.mark.usefixtures("clean_imports")
def test_loading_leaves_the_bytecode_cache_alone(tmp_path: Path) -> None:
    """The cache of the plain loader must neither be taken for ours nor be overwritten by it."""
    path = write(tmp_path / "test_cached.py", "def check():\n    assert 1 == 2\n")
    cache = Path(py_compile.compile(path, doraise=True))
    before = cache.read_bytes()
    module = load_module(path, "test_cached")
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        module.check()
    assert cache.read_bytes() == before


@pytest.mark.usefixtures("clean_imports")
def test_two_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        paths.append(write(tmp_path / str(number) / "test_twin.py", f"NUMBER = {number}\n"))
    assert [load_module(path, "test_twin").NUMBER for path in paths] == [1, 2]


@pytest.mark.usefixtures("clean_imports")
def test_a_file_that_fails_to_load_is_tried_again(tmp_path: Path) -> None:
    path = write(tmp_path / "test_broken.py", "raise RuntimeError('no')\n")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            load_module(path, "test_broken")
    assert "test_broken" not in sys.modules


@pytest.mark.usefixtures("clean_imports")
def test_a_test_in_a_package_keeps_its_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "boxed"
    package.mkdir()
    write(package / "__init__.py", "")
    write(package / "helper.py", "ANSWER = 42\n")
    path = write(package / "test_inside.py", "from .helper import ANSWER\n")
    sys.path.insert(0, os.fspath(tmp_path))
    assert load_module(path, "boxed.test_inside").ANSWER == 42

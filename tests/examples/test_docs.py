"""docs/: links lead somewhere, paths and names exist, and generated pages are up to date."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import kadril
from kadril.frameworks import is_installed
from kadril.launch.verbs.option_table import page

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
)

# Where a path in a text may begin: a page names the files of one package without their folder.
FOLDERS = (ROOT, ROOT / "src", ROOT / "src" / "kadril", ROOT / "native", ROOT / "tests")

# Files of others, or of a run; none is in the repository.
ELSEWHERE = {"ds_to_universal.py", "zero_to_fp32.py", "kadril.py", "torch.py"}


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def quoted(path: Path) -> list[str]:
    """Return the texts in backticks."""
    return re.findall(r"`([^`\n]+)`", prose(path))


def exists(token: str, page: Path) -> bool:
    """Whether a file or folder of that name is there; a name without a folder may be anywhere."""
    if any((folder / token).exists() for folder in (*FOLDERS, page.parent)):
        return True
    if "*" in token:
        return any(any(folder.glob(token)) for folder in FOLDERS)
    return "/" not in token and any(
        next((ROOT / folder).rglob(token), None)
        for folder in ("src", "tests", "native", "docs", "examples", "benchmarks")
    )


def is_path(token: str) -> bool:
    if token.startswith("DIR/"):  # a directory that the reader chooses
        return False
    return bool(re.fullmatch(r"[\w.*/-]+\.(py|pyi|cc|h|md|svg)|[\w.-]+/[\w./-]*/?", token))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", prose(page)):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page", [each for each in PAGES if each.name != "CHANGELOG.md"], ids=name_of
)
def test_files_that_are_named_exist(page: Path) -> None:
    """Files move; a page that sends its reader to one that has gone is worse than none."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    # A program that a command of the page runs is one that the page shows, and the reader writes.
    mine = ELSEWHERE | {word for block in blocks for word in block.split()}
    paths = [token for token in quoted(page) if is_path(token) and token not in mine]
    missing = [path for path in paths if not exists(path, page)]
    assert missing == []


def resolve(name: str) -> object:
    """Return what a dotted name stands for.

    Raises:
        AttributeError: nothing.
    """
    value: object = importlib.import_module("kadril")
    parts = name.split(".")
    if parts[1] in ("tensorflow", "keras") and not is_installed(parts[1]):
        path = Path(kadril.__file__).parent.joinpath(*parts[1:])
        if path.is_dir() or path.with_suffix(".py").exists():
            return path  # what it holds is tested where TensorFlow is
        raise AttributeError(name)
    for i, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[:i]))
            except ImportError:
                raise AttributeError(name) from None
    return value


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_package_exist(page: Path) -> None:
    names = {
        match
        for token in quoted(page)
        for match in re.findall(r"(?<![\w/.-])kadril(?:\.[A-Za-z_]\w*)+", token)
        if match not in ("kadril.h", "kadril.py")
    }
    missing = []
    for name in sorted(names):
        try:
            resolve(name)
        except AttributeError:
            missing.append(name)
    assert missing == []


def test_the_page_of_options_is_that_of_the_code() -> None:
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    assert text == page(), "run: kadril env --markdown > docs/options.md"


def test_every_page_is_in_the_index() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        if path.name != "index.md":
            assert f"]({path.relative_to(ROOT / 'docs')})" in text, path.name

"""`kadril experiment new`: writes the skeleton of a dataset, a layer or a model, which runs."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import kadril

__all__ = ["write_recipe"]

KINDS = ("dataset", "layer", "model")
RECIPES = Path(kadril.__file__).parent / "experiment" / "recipes"


def write_recipe(argv: list[str]) -> int:
    """Write `NAME.py` and `NAME.yaml`; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="kadril experiment new",
        description="Write the skeleton of a dataset, layer or model, and a file that runs it.",
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("name", metavar="NAME", help="of the class, such as Faces")
    parser.add_argument("--directory", default=".", metavar="DIR", help="where to write")
    words = parser.parse_args(argv)
    name = words.name[:1].upper() + words.name[1:]
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", name):
        return refuse(f"{words.name!r} is no name of a class: letters and digits, such as Faces")
    folder = Path(words.directory)
    file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    targets = {suffix: folder / f"{file}{suffix}" for suffix in (".py", ".yaml")}
    existing = [str(path) for path in targets.values() if path.exists()]
    if existing:
        return refuse(f"{' and '.join(existing)} is there already, and stays as it is")
    folder.mkdir(parents=True, exist_ok=True)
    for suffix, target in targets.items():
        recipe = (RECIPES / f"{words.kind}{suffix}.txt").read_text(encoding="utf-8")
        target.write_text(recipe.replace("@NAME@", name).replace("@FILE@", file), encoding="utf-8")
    python, yaml = targets[".py"], targets[".yaml"]
    print(f"wrote {python} and {yaml}; run them with")
    print(f"  kadril experiment {yaml} --with {python} -np 4")
    return 0


def refuse(message: str) -> int:
    """Say why nothing was written; return the exit code."""
    print(f"kadril experiment new: {message}", file=sys.stderr)
    return 2

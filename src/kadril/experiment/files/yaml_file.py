"""Reading an experiment's file: YAML with `!obj:` tags, safely, with the place of every mistake.

    !obj:module.Class {key: value}       an object of a registered class (`registry.py`)
    &name, *name                         the same object, or value, again

Objects are made in the order of the file: weights are drawn in the order of the layers.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import msgspec

from kadril.experiment.errors import (
    BadValueError,
    ExperimentError,
    ExperimentFileError,
    UnknownClassError,
    UnknownKeyError,
)
from kadril.experiment.files.checked_call import checked, keys_of
from kadril.experiment.files.registry import nearest, plain_twin, registered

__all__ = ["load_file", "load_text"]

TAG = "!obj:"


def load_file(
    path: str | Path, overrides: dict[str, Any] | None = None, plain: bool = False
) -> Any:
    """Read a file, and make what it describes.

    Args:
        path: of the file.
        overrides: values for keys of whatever object takes them, instead of those of the file.
        plain: whether distributed classes are replaced by their plain twins, where all have one.

    Raises:
        ExperimentFileError: something is wrong in the file; with its line.
        ExperimentError: it cannot be read.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ExperimentError(f"{path} cannot be read: {error}") from error
    return load_text(text, str(path), overrides, plain)


def load_text(
    text: str, name: str = "<text>", overrides: dict[str, Any] | None = None, plain: bool = False
) -> Any:
    """Read a text, and make what it describes; see `load_file`."""
    try:
        import yaml
    except ImportError as error:
        raise ExperimentError(
            "reading experiments needs PyYAML: pip install 'kadril[experiment]'"
        ) from error
    try:
        loader = make_loader(yaml)(text)
    except yaml.YAMLError as error:  # a character that YAML does not allow
        raise ExperimentFileError(f"this is no YAML: {error}", name, 0, 0) from error
    loader.name = name
    loader.overrides = overrides or {}
    loader.plain = plain and all(plain_twin(cls) for cls in dist_classes(text))
    try:
        found = loader.get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error)
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        raise ExperimentFileError(f"this is no YAML: {problem}", name, line, column) from error
    except ExperimentFileError:
        raise
    except RecursionError as error:
        raise ExperimentFileError("this is nested too deeply", name, 0, 0) from error
    except ValueError as error:  # such as a date with a month 99
        raise ExperimentFileError(f"this is no YAML: {error}", name, 0, 0) from error
    finally:
        loader.dispose()
    return found


def dist_classes(text: str) -> list[type[Any]]:
    """Return the distributed classes that a text names."""
    found = [registered(path) for path in re.findall(rf"{TAG}([\w.]+)", text)]
    return [cls for cls in found if cls is not None and cls.__name__.endswith("Dist")]


def make_loader(yaml: Any) -> Any:
    """Return the class of loaders: PyYAML's safe one, and objects of registered classes."""

    class ExperimentLoader(yaml.SafeLoader):  # type: ignore[misc]
        """PyYAML's safe loader, with `!obj:` tags."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            """Refuse keys that are there twice: the first one would be ignored."""
            seen: set[str] = set()
            for key, _ in node.value:
                if not isinstance(key.value, str):
                    continue  # a list as a key: PyYAML refuses it below
                if key.value in seen:
                    raise BadValueError(f"the key {key.value!r} is there twice", *place(self, key))
                seen.add(key.value)
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    def construct(loader: Any, path: str, node: Any) -> Any:
        if not isinstance(node, yaml.MappingNode):
            raise BadValueError(f"{TAG}{path} is followed by keys: {{...}}", *place(loader, node))
        return make_object(loader, path, node)

    ExperimentLoader.add_multi_constructor(TAG, construct)
    return ExperimentLoader


def place(loader: Any, node: Any) -> tuple[str, int, int]:
    """Return file, line and column of a node."""
    mark = node.start_mark
    return loader.name, mark.line + 1, mark.column + 1


def make_object(loader: Any, path: str, node: Any) -> Any:
    """Make the object that a tag and its keys describe.

    Raises:
        ExperimentFileError: the class or a key is unknown, or a value is wrong; with the line.
    """
    cls = registered(path)
    if cls is None:
        near = nearest(path)
        hint = f"; did you mean {near}?" if near else "."
        raise UnknownClassError(
            f"there is no class {path} for experiments{hint} Only registered classes can be named:"
            " a file imports nothing (kadril.experiment.register adds one)",
            *place(loader, node),
        )
    given = loader.construct_mapping(node, deep=True)
    if loader.plain:
        twin = plain_twin(cls) if cls.__name__.endswith("Dist") else None
        if twin is not None:
            dropped = keys_of(cls).keys() - keys_of(twin).keys()
            given = {key: value for key, value in given.items() if key not in dropped}
            cls = twin
        if "dist_flag" in given:
            given["dist_flag"] = False
    for key, value in loader.overrides.get(cls.__name__, loader.overrides.get("*", {})).items():
        if key in keys_of(cls):
            given[key] = value
    marks = {key.value: key for key, _ in node.value}
    try:
        return cls(**checked(cls, given))
    except msgspec.ValidationError as error:
        raise explain(loader, cls, node, marks, str(error)) from error
    except ExperimentFileError:
        raise
    except (TypeError, ValueError) as error:
        raise BadValueError(f"{cls.__name__}: {error}", *place(loader, node)) from error


def explain(
    loader: Any, cls: type[Any], node: Any, marks: dict[str, Any], message: str
) -> ExperimentFileError:
    """Return the error for what msgspec says, at the line of the key that it is about."""
    unknown = re.search(r"unknown field `(.+?)`(?: - at `\$\.?(\w+)?)?", message)
    if unknown:
        key, within = unknown.group(1), unknown.group(2)
        known = list(keys_of(cls)) if within is None else []
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        where = f"{within} of {cls.__name__}" if within else cls.__name__
        takes = f" It takes {', '.join(sorted(known))}" if known else ""
        at = marks.get(within or key, node)
        return UnknownKeyError(f"{where} takes no key {key!r}{hint}{takes}", *place(loader, at))
    field = re.search(r"at `\$\.(\w+)", message)
    at = marks.get(field.group(1), node) if field else node
    missing = re.search(r"missing required field `(.+?)`", message)
    if missing:
        return BadValueError(
            f"{cls.__name__} needs the key {missing.group(1)!r}", *place(loader, at)
        )
    return BadValueError(f"{cls.__name__}: {message.replace('`$.', '`')}", *place(loader, at))

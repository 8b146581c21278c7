"""Making an object of the keys of a file: every key is known, every value of the right kind.

What a class takes is what its `__init__` is annotated with, and that of its bases where it passes
on the rest; msgspec compares.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections import abc
from collections.abc import Mapping
from typing import Any

import msgspec

__all__ = ["checked", "keys_of"]


def keys_of(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return what a class takes: for each key its annotation and its default."""
    found: dict[str, tuple[Any, Any]] = {}
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if init is None or base is object:
            continue
        hints = typing.get_type_hints(init, include_extras=True)
        parameters = inspect.signature(init).parameters.values()
        for parameter in list(parameters)[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            hint = simplified(hints.get(parameter.name, Any))
            found.setdefault(parameter.name, (hint, parameter.default))
        if not any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters):
            break
    return found


def simplified(hint: Any) -> Any:
    """Return an annotation that msgspec takes: of a record or a mapping, the record."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = typing.get_args(hint)
    if any(isinstance(each, type) and issubclass(each, msgspec.Struct) for each in members):
        members = tuple(each for each in members if typing.get_origin(each) is not abc.Mapping)
    return typing.Union[members]  # noqa: UP007 - members are known at run time only


def record_of(cls: type[Any]) -> type[msgspec.Struct]:
    """Return a record with a field for each key of a class; those that must be there first."""
    needed: list[Any] = []
    optional: list[Any] = []
    for key, (hint, default) in keys_of(cls).items():
        if default is inspect.Parameter.empty:
            needed.append((key, hint))
        else:
            optional.append((key, hint, msgspec.field(default=default)))
    return msgspec.defstruct(cls.__name__, [*needed, *optional], forbid_unknown_fields=True)


def checked(cls: type[Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for a class, checked and converted.

    Raises:
        msgspec.ValidationError: an unknown key, a missing one, or a value of the wrong kind.
    """
    record = msgspec.convert(dict(keys), record_of(cls), dec_hook=take_object)
    return {key: getattr(record, key) for key in keys}


def take_object(wanted: type[Any], value: Any) -> Any:
    """Take an object that the file has made before, if it is of the right class.

    Raises:
        TypeError: it is of another one.
    """
    if isinstance(value, wanted):
        return value
    raise TypeError(f"Expected `{wanted.__name__}`, got `{type(value).__name__}`")

"""The exception tree is the one that is drawn at the top of its file."""

from __future__ import annotations

import inspect
import re

from kadril import errors


def test_the_drawing_shows_every_class_and_its_place() -> None:
    drawing = inspect.getdoc(errors) or ""
    parents: dict[int, str] = {}
    drawn: dict[str, str] = {}
    for line in drawing.splitlines():
        match = re.match(r"^( *(?:[|`](?:--|   )? *)*)([A-Z]\w+)(?: |$)", line.removeprefix("    "))
        if not match or match.group(2) not in errors.__all__:
            continue
        depth = len(match.group(1)) // 4
        parents[depth] = match.group(2)
        if depth:
            drawn[match.group(2)] = parents[depth - 1]
    real = {
        name: getattr(errors, name).__mro__[1].__name__
        for name in errors.__all__
        if name != "KadrilError"
    }
    assert drawn == real
    assert issubclass(errors.KadrilError, RuntimeError)
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.NoRoomError, MemoryError)


def test_fields_say_what_happened() -> None:
    error = errors.Stalled(
        "late", rank=2, operation="allreduce", name="grad", elapsed=3.0, state="stopped"
    )
    assert (error.rank, error.operation, error.name, error.state) == (
        2,
        "allreduce",
        "grad",
        "stopped",
    )
    mismatch = errors.MismatchError("differ", {0: "barrier()", 1: "allreduce()"})
    assert mismatch.calls == {0: "barrier()", 1: "allreduce()"}

"""The exception tree is the one that is drawn at the top of its file."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import kadril
from kadril import errors
from kadril.transport.call import Call
from kadril.transport.failures import to_exception
from kadril.transport.peer_errors import FailedCall


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


REQUEST = "allreduce(float32[2], sum, name='grad')"


def failure(reason: str, **fields: Any) -> Any:
    """Make a failure as the native engine gives it for a request."""
    usual = {"detail": REQUEST, "member": 1, "elapsed": 1.5, "stopped": False, "late": [1]}
    usual |= {"calls": [], "num_common": 0, "last_common": ""}
    return SimpleNamespace(reason=reason, **(usual | fields))


BELOW = FailedCall(
    Call("allgatherv", ("uint8[1024 + 1024]",), name="engine"), 1.5, "gloo says: gone", number=57
)
CAUSES = [
    BELOW.lost([5]),
    BELOW.closed(5),
    BELOW.abandoned(5, BELOW.lost([4]).event),
    BELOW.late([5], 300.0),
    BELOW.revoked(5, "interrupted"),
]


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: type(cause).__name__)
def test_what_the_engine_calls_below_is_not_told(cause: errors.PeerError) -> None:
    """The message was "allreduce(...): allgatherv(uint8[...], name='engine'): rank 5 is gone"."""
    error = to_exception(failure("foreign", cause=cause), [4, 5])
    assert isinstance(error, type(cause))
    assert str(error).startswith(f"{REQUEST}: rank 5 ")
    assert "engine" not in str(error)
    assert "57" not in str(error)
    retold = cast("errors.PeerError", error)
    assert (retold.rank, retold.operation, retold.name) == (5, "allreduce", "grad")


@pytest.mark.parametrize("reason", ["peer_lost", "peer_left", "stalled", "revoked"])
def test_errors_about_a_peer_name_it_and_the_request(reason: str) -> None:
    error = to_exception(failure(reason), [4, 5])
    assert isinstance(error, errors.PeerError)
    assert str(error).startswith("rank 5 ")
    assert f"in {REQUEST} after 1.500 s" in str(error)
    assert (error.rank, error.operation, error.name, error.elapsed) == (5, "allreduce", "grad", 1.5)


@pytest.mark.parametrize("text", [str(to_exception(failure("peer_left"), [4, 5])), str(CAUSES[1])])
def test_a_rank_that_left_may_just_have_ended(text: str) -> None:
    """The error said that it called close() or shutdown(), of a program that called neither."""
    assert "has left the group" in text
    assert "program ended, or it called close()" in text


def test_the_root_is_raised_by_programs_alone() -> None:
    """Elastic training goes on after it, as after a rank that is lost: it would do so for ever."""
    root = {"KadrilError", "HorovodInternalError"}
    package = Path(kadril.__file__).parent
    made = [
        f"{path.relative_to(package)}:{node.lineno}"
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for called in [getattr(node, "func", None) or getattr(node, "exc", None)]
        if (getattr(called, "id", None) or getattr(called, "attr", None)) in root
    ]
    assert made == []

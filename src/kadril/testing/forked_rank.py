"""A disposable rank: what its process does from the fork to its end, whatever end that is."""

from __future__ import annotations

import atexit
import dataclasses
import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING, Any

from kadril.errors import StateError
from kadril.launch.local.parent_death import die_with_parent
from kadril.testing.messages import Open, Target
from kadril.testing.namespaces import enter_namespaces
from kadril.testing.outcome import ErrorReport
from kadril.testing.target import load
from kadril.testing.worker import STACK_SIGNAL, output_path, redirect_output, stack_path

if TYPE_CHECKING:
    from kadril.world import World

__all__ = ["Assignment", "Finished", "Gate", "Mark", "pass_gate", "run_forked_rank", "set_mark"]


@dataclasses.dataclass(frozen=True)
class Assignment:
    """Work of one rank. `payload` holds the pickled arguments."""

    target: Target
    payload: bytes
    rank: int
    size: int
    open: Open | None  # how to get a world; None if the function takes rank and size instead
    fault_at_open: str
    fault: str


@dataclasses.dataclass(frozen=True)
class Finished:
    """The function has returned or raised."""

    value: bytes
    error: ErrorReport | None
    at: float


@dataclasses.dataclass(frozen=True)
class Mark:
    """The rank has reached a mark."""

    label: str


@dataclasses.dataclass(frozen=True)
class Gate:
    """The rank waits at a gate (to the session), or may pass it (from the session)."""

    label: str


class ForkedRank:
    """One rank: does its assignments until the session closes the connection."""

    def __init__(self, connection: Connection[Any, Any], listener: socket | None) -> None:
        self.connection = connection
        self.listener = listener
        self.lock = threading.Lock()
        self.world: World | None = None

    def send(self, message: object) -> None:
        """Tell the session; the function under test may have several threads."""
        with self.lock:
            self.connection.send(message)

    def serve(self) -> None:
        """Do assignments; returns when the session has no more."""
        while True:
            try:
                assignment = self.connection.recv()
            except EOFError:
                return
            self.send(self.carry_out(assignment))

    def carry_out(self, assignment: Assignment) -> Finished:
        """Call the function; what it raises is its result, but for SystemExit, which is obeyed."""
        try:
            value = pickle.dumps(self.call(assignment))
        except SystemExit as error:
            leave(error)
        except BaseException as error:
            return Finished(b"", report_error(error), time.monotonic())
        return Finished(value, None, time.monotonic())

    def call(self, assignment: Assignment) -> object:
        """Open the world if that is asked for, arm the fault, call the function."""
        function = load(assignment.target)
        arguments = pickle.loads(assignment.payload)
        if assignment.open is None:
            arm(assignment.fault_at_open or assignment.fault)
            return function(assignment.rank, assignment.size, *arguments)
        if self.world is None:
            self.world = self.open(assignment)
        arm(assignment.fault)
        return function(self.world, *arguments)

    def open(self, assignment: Assignment) -> World:
        """Open the world."""
        from kadril.testing.worlds import open_world
        from kadril.world import make_current

        arm(assignment.fault_at_open)
        assert assignment.open is not None
        world = open_world(assignment.open, self.listener)
        make_current(world)
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        return world


_rank: ForkedRank | None = None


def run_forked_rank(
    connection: Connection[Any, Any],
    listener: socket | None,
    rank: int,
    directory: Path,
    namespaces: Sequence[str],
) -> None:
    """Run a rank in a process that was just forked; does not return."""
    global _rank  # noqa: PLW0603 - a process is one rank
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with_parent(os.getppid())
        redirect_output(output_path(directory, rank))
        faulthandler.enable()
        # Not closed, so that it can be written to until the last moment.
        stacks = os.open(stack_path(directory, rank), os.O_WRONLY | os.O_CREAT, 0o600)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        enter_namespaces(namespaces)
        _rank = ForkedRank(connection, listener)
        _rank.serve()
        if _rank.world is not None:
            _rank.world.close()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        flush()
        os._exit(code)


def leave(error: SystemExit) -> None:
    """Exit as the interpreter does on SystemExit, with what was registered for the exit."""
    atexit._run_exitfuncs()
    flush()
    code = error.code
    os._exit(code if isinstance(code, int) else int(code is not None))


def flush() -> None:
    """Let what was printed be seen."""
    sys.stdout.flush()
    sys.stderr.flush()


def arm(fault: str) -> None:
    """Arm a point of the native core."""
    if fault:
        from kadril import _native

        _native.set_fault(fault)


def report_error(error: BaseException) -> ErrorReport:
    """Put an exception into a form that another process can read without its class."""
    from kadril.testing.request_handler import format_failure

    fields = {name: value for name, value in vars(error).items() if is_plain(value)}
    bases = tuple(base.__name__ for base in type(error).__mro__)
    return ErrorReport(type(error).__name__, bases, str(error), fields, format_failure(error))


def is_plain(value: object) -> bool:
    """Whether a value is built of numbers and text alone."""
    if isinstance(value, dict):
        return all(is_plain(item) for pair in value.items() for item in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str | bytes)


def set_mark(label: str) -> None:
    """Tell the session that this rank has reached a mark."""
    current_rank().send(Mark(label))


def pass_gate(label: str) -> None:
    """Tell the session that this rank is at a gate, and wait until it is opened."""
    rank = current_rank()
    rank.send(Gate(label))
    while rank.connection.recv() != Gate(label):
        pass


def current_rank() -> ForkedRank:
    """Return the rank that this process is.

    Raises:
        StateError: it is not a disposable rank.
    """
    if _rank is None:
        raise StateError("marks and gates are for functions that kadril.testing.Ranks has started")
    return _rank

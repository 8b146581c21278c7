"""The request handler of a standing rank: keeps its worlds, answers requests of the session."""

from __future__ import annotations

import contextlib
import gc
import logging
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from socket import socket
from typing import TYPE_CHECKING, Any

from kadril.testing.messages import Abandon, Barrier, Close, Open, Reply, Request, Run, WorldKey
from kadril.testing.target import load
from kadril.testing.worlds import open_mpi_world, open_world

if TYPE_CHECKING:
    from kadril.world import World

__all__ = ["RequestHandler", "format_failure"]

logger = logging.getLogger("kadril")


class RequestHandler:
    """Handles the requests of a session, one after the other."""

    def __init__(self, connection: Connection[Any, Any], communicator: Any = None) -> None:
        self.connection = connection
        self.communicator = communicator
        self.worlds: dict[WorldKey, World] = {}
        self.num_frozen_modules = 0

    def answer(self, number: int, request: Request) -> Reply:
        """Do what is asked; whatever goes wrong is part of the answer."""
        try:
            value = pickle.dumps(self.act(request))
        except BaseException as error:
            return failure_reply(number, error)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return Reply(number, "passed", value, at=time.monotonic())

    def act(self, request: Request) -> object:
        """Dispatch by kind of request; only a function that was run has something to say."""
        if isinstance(request, Run):
            return self.run(request)
        if isinstance(request, Open):
            self.open(request)
        elif isinstance(request, Barrier):
            self.worlds[request.key].transport.barrier(name="kadril.testing: end of test")
        elif isinstance(request, Abandon):
            self.abandon(request)
        elif isinstance(request, Close):
            self.close_world(request.key)
        else:
            raise TypeError(f"a rank cannot answer {request!r}")
        return None

    def open(self, request: Open) -> None:
        """Open a world, instead of any of the same kind that was open."""
        # The socket comes right behind its request: take it before anything can fail.
        listener = socket(fileno=recv_handle(self.connection)) if request.listen else None
        with listener or contextlib.nullcontext():
            self.close_world(request.key)
            if self.communicator is not None:
                world = open_mpi_world(request, self.communicator)
            else:
                world = open_world(request, listener)
        self.worlds[request.key] = world

    def run(self, request: Run) -> object:
        """Call the function of a test with its world."""
        sys.path[:] = request.import_path
        function = load(request.target)
        self.freeze_modules()
        positional, keywords, filters = pickle.loads(request.payload)
        world = self.worlds[request.key]
        with warning_filters(filters), lent(world):
            return function(world, *positional, **keywords)

    def freeze_modules(self) -> None:
        """Take what was imported since the last test out of garbage collection.

        A collection looks at all objects of torch and its compiler, which takes 0.2 s; tests, and
        trainers under test, ask for many.
        """
        if len(sys.modules) > self.num_frozen_modules:
            gc.collect()  # what is garbage now would stay for ever
            gc.freeze()
            self.num_frozen_modules = len(sys.modules)

    def abandon(self, request: Abandon) -> None:
        """Give a world up for those who still wait in it."""
        world = self.worlds.get(request.key)
        if world is not None:
            with contextlib.suppress(
                Exception
            ):  # an engine that cannot revoke says so; closing must follow
                world.transport.revoke(request.reason)
            self.close_world(request.key)

    def close_world(self, key: WorldKey) -> None:
        """Close a world; one that a test has broken is forgotten."""
        world = self.worlds.pop(key, None)
        if world is not None:
            try:
                world.close()
            except Exception as error:
                logger.warning("closing the world %s: %s", key, error)

    def close(self) -> None:
        """Close all worlds."""
        for key in list(self.worlds):
            self.close_world(key)


@contextlib.contextmanager
def lent(world: World) -> Iterator[None]:
    """Let a test use its world as the one of this process; what it opens on it is closed."""
    from kadril.world.session import lend

    with lend(world):
        try:
            yield
        finally:
            world.close_dependents()


def failure_reply(number: int, error: BaseException) -> Reply:
    """Return the reply about a function that raised."""
    at = time.monotonic()
    # Only a module that has imported pytest can have raised its outcomes.
    outcomes = sys.modules.get("_pytest.outcomes")
    if outcomes is not None:
        if isinstance(error, outcomes.XFailed):
            return Reply(number, "xfailed", text=str(error), at=at)
        if isinstance(error, outcomes.Skipped):
            return Reply(number, "skipped", text=str(error), at=at)
    kind, message = type(error).__name__, str(error).partition("\n")[0]
    return Reply(
        number,
        "failed",
        text=format_failure(error),
        kind=kind,
        summary=f"{kind}: {message}" if message else kind,
        at=at,
    )


def format_failure(error: BaseException) -> str:
    """Return the traceback of a failure, from the function of the test on."""
    story = traceback.TracebackException.from_exception(error)
    kit = {__file__, load.__code__.co_filename}
    while len(story.stack) > 1 and story.stack[0].filename in kit:
        del story.stack[0]
    return "".join(story.format())


@contextlib.contextmanager
def warning_filters(filters: list[tuple[Any, ...]]) -> Iterator[None]:
    """Warn, ignore and raise as the session does at this test."""
    with warnings.catch_warnings():
        warnings.resetwarnings()
        for action, message, category, module, line in reversed(filters):
            warnings.filterwarnings(
                action, pattern_of(message), category, pattern_of(module), lineno=line
            )
        yield


def pattern_of(compiled: Any) -> str:
    """Return the text of a compiled pattern; None matches everything."""
    if compiled is None:
        return ""
    return compiled if isinstance(compiled, str) else str(compiled.pattern)

"""Saves that run beside the training: one at a time, each awaited before its world closes."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["Background", "background_of"]

logger = logging.getLogger("kadril")


class Background:
    """The save that runs beside the training of one world.

    Of two saves to one directory each would remove the other's files as left behind, so there is
    one at a time. The world waits for it before it closes, and so does the interpreter at its end.
    """

    def __init__(self) -> None:
        self._last: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the last save has ended; its future has what it raised."""
        if self._last is not None:
            wait([self._last])
            self._last = None

    def run(self, transport: Transport, work: Callable[[], None]) -> Future[None]:
        """Run the rest of a save in a thread of its own, and then close its transport.

        If the transport can be used only by the thread that made it, the save runs at once.
        """

        def work_and_close() -> None:
            try:
                work()
            except Exception:
                # Logged as well, since nobody may ask for the result.
                logger.exception("a checkpoint could not be written beside the training")
                raise
            finally:
                transport.close()

        if not transport.takes_any_thread:
            logger.info(
                "this MPI was initialized for one thread only: the checkpoint is written while"
                " nothing is computed; set mpi4py.rc.thread_level = 'multiple' before mpi4py.MPI is"
                " imported"
            )
            return done_at_once(work_and_close)
        executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kadril.dcp")
        self._last = executor.submit(work_and_close)
        executor.shutdown(wait=False)
        return self._last


def done_at_once(work: Callable[[], None]) -> Future[None]:
    """Run something now, and return its result as a future."""
    future: Future[None] = Future()
    try:
        work()
        future.set_result(None)
    except Exception as error:
        future.set_exception(error)
    return future


backgrounds: weakref.WeakKeyDictionary[World, Background] = weakref.WeakKeyDictionary()


def background_of(world: World) -> Background:
    """Return the background of a world."""
    background = backgrounds.get(world)
    if background is None:
        background = backgrounds[world] = Background()
        reference, made = weakref.ref(world), background

        def close() -> None:
            closing = reference()
            if closing is not None:
                backgrounds.pop(closing, None)
            made.wait()

        world.on_close(close)
    return background

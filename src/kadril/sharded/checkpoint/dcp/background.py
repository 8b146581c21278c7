"""Saves that go on beside the training: one at a time, and none is left behind."""

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
    """What is under way beside the training of one world.

    Two saves to one directory would each remove the files of the other as left behind: so there is
    one at a time. The world waits for it before it closes, the interpreter before it ends.
    """

    def __init__(self) -> None:
        self._last: Future[None] | None = None

    def wait(self) -> None:
        """Wait until the last save has ended; what it raised is in its future."""
        if self._last is not None:
            wait([self._last])
            self._last = None

    def run(self, transport: Transport, work: Callable[[], None]) -> Future[None]:
        """Do the rest of a save in a thread of its own, and close its transport.

        Where a transport takes only the thread that made it, it is done at once.
        """

        def work_and_close() -> None:
            try:
                work()
            except Exception:
                # Also where nobody asks for the result.
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
    """A future of something that is done now."""
    future: Future[None] = Future()
    try:
        work()
        future.set_result(None)
    except Exception as error:
        future.set_exception(error)
    return future


backgrounds: weakref.WeakKeyDictionary[World, Background] = weakref.WeakKeyDictionary()


def background_of(world: World) -> Background:
    """That of a world."""
    background = backgrounds.get(world)
    if background is None:
        background = backgrounds[world] = Background()
        reference, found = weakref.ref(world), background

        def close() -> None:
            closing = reference()
            if closing is not None:
                backgrounds.pop(closing, None)
            found.wait()

        world.on_close(close)
    return background

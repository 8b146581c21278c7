"""Data loaders that read ahead in a thread of their own.

    class Loader(AsyncDataLoaderMixin, MyLoader): ...

    thread:  MyLoader._iterate() --> `async_loader_queue_size` batches at most --> your loop

An epoch is read by a thread that ends with it, so that a loop that is left early, or raises, leaves
no reader behind that is an epoch ahead.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

__all__ = ["AsyncDataLoaderMixin", "BaseDataLoader"]

END = object()  # behind the last batch of an epoch


class BaseDataLoader:
    """Base of the loaders, which have a length, and `_iterate` that yields batches."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)

    def _process_batch(self, batch: Any) -> Any:
        # For trainers that give batches another shape.
        return batch


class AsyncDataLoaderMixin:
    """Mixin that lets a loader read ahead; it stands before the loader among the base classes.

    Args:
        async_loader_queue_size: how many batches are read ahead; 0 reads none.
        args: for the loader.
        kwargs: for the loader.
    """

    def __init__(self, async_loader_queue_size: int = 5, *args: Any, **kwargs: Any) -> None:
        self.async_loader_queue_size = async_loader_queue_size
        self._readers: list[Reader] = []
        super().__init__(*args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        if self.async_loader_queue_size <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        reader = Reader(self, self.async_loader_queue_size)
        self._readers.append(reader)
        try:
            for batch in reader:
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            reader.close()
            self._readers.remove(reader)

    def close_async_loader(self) -> None:
        """Stop reading ahead, and end loops that are under way."""
        for reader in list(self._readers):
            reader.close()


class Reader:
    """A thread that reads one epoch."""

    def __init__(self, loader: Any, size: int) -> None:
        self._loader = loader
        self._batches: queue.Queue[Any] = queue.Queue(size)
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="read ahead", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        while (batch := self._batches.get()) is not END:
            yield batch
        if self._error is not None and not self._is_closed:
            raise self._error

    def close(self) -> None:
        """End the thread, which may be in the middle of a batch, and the loop over it."""
        self._is_closed = True
        while self._thread.is_alive():
            self._make_room()
            self._thread.join(0.01)
        self._make_room()
        self._batches.put(END)  # another thread may be waiting for a batch

    def _make_room(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._batches.get_nowait()

    def _read(self) -> None:
        try:
            for batch in self._loader._iterate():
                if self._is_closed:
                    return
                self._batches.put(batch)
        except BaseException as error:  # raised again in the loop
            self._error = error
        self._batches.put(END)

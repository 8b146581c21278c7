"""Functions in threads: one in the background, many at once, one that waits for an event."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

__all__ = ["execute_function_multithreaded", "in_thread", "on_event"]


def in_thread(
    target: Callable[..., Any],
    args: tuple[Any, ...] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function in a thread of its own; return the thread.

    Args:
        target: the function.
        args: its arguments, as a tuple.
        name: of the thread.
        daemon: whether the process may end while it runs.
        silent: whether exceptions of the function are dropped rather than reported.

    Raises:
        ValueError: `args` is not a tuple.
    """
    check_tuple(args)

    def call() -> None:
        with contextlib.suppress(*((Exception,) if silent else ())):
            target(*args)

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(
    event: threading.Event,
    func: Callable[..., Any],
    args: tuple[Any, ...] = (),
    stop: threading.Event | None = None,
    check_stop_interval_s: float = 1.0,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function in a thread of its own once an event is set; return the thread.

    Args:
        event: what to wait for.
        func: the function.
        args: its arguments, as a tuple.
        stop: ends the thread without the call where it is set first.
        check_stop_interval_s: how often `stop` is looked at, in seconds.
        daemon: see `in_thread`.
        silent: see `in_thread`.

    Raises:
        ValueError: no event; `args` is not a tuple; neither a daemon nor a way to stop it.
    """
    if event is None:
        raise ValueError("on_event needs an event to wait for, got None")
    check_tuple(args)
    if stop is None and not daemon:
        raise ValueError("a thread that is no daemon keeps the process alive: give a stop event")

    def wait_and_call() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        if stop is None or not stop.is_set():
            func(*args)

    return in_thread(wait_and_call, daemon=daemon, silent=silent)


def execute_function_multithreaded(
    fn: Callable[..., Any],
    args_list: Sequence[Sequence[Any]],
    block_until_all_done: bool = True,
    max_concurrent_executions: int = 1000,
) -> dict[int, Any] | None:
    """Call a function once for each list of arguments, in several threads.

    Args:
        fn: the function.
        args_list: the arguments of each call.
        block_until_all_done: whether to wait for the calls. Otherwise they run in the background,
            and their results are dropped.
        max_concurrent_executions: number of threads at most.

    Returns:
        The results by their place in `args_list`; None without waiting.

    Raises:
        RuntimeError: a call failed; its exception is the cause.
    """
    calls = [tuple(args) for args in args_list]
    num_threads = max(1, min(max_concurrent_executions, len(calls)))
    if not block_until_all_done:
        # In a daemon, which starts the others: a pool would hold up the end of the process.
        for number in range(num_threads):
            in_thread(lambda share: [fn(*args) for args in share], (calls[number::num_threads],))
        return None
    with futures.ThreadPoolExecutor(num_threads) as pool:
        submitted = [pool.submit(fn, *args) for args in calls]
    results = {}
    for place, future in enumerate(submitted):
        error = future.exception()
        if error is not None:
            raise RuntimeError(
                f"call {place} of {len(calls)} of {getattr(fn, '__name__', fn)} failed: {error!r}"
            ) from error
        results[place] = future.result()
    return results


def check_tuple(args: object) -> None:
    """Raise `ValueError` for arguments that are not a tuple, such as a string."""
    if not isinstance(args, tuple):
        raise ValueError(  # noqa: TRY004 - as Horovod raises it
            f"args must be a tuple, such as (value,), got a {type(args).__name__}"
        )

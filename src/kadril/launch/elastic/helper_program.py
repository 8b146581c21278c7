"""A program that the launcher runs beside its event loop, to hear what it prints."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from kadril.launch.local.leftovers import kill_group
from kadril.launch.local.parent_death import die_with_parent

__all__ = ["MAX_OUTPUT_BYTES", "HelperProgram"]

MAX_OUTPUT_BYTES = 1 << 20
READ_BYTES = 1 << 16


class HelperProgram:
    """Runs a program, one at a time.

    Attributes:
        output: what it has printed so far.
    """

    def __init__(
        self,
        job: str,
        selector: selectors.BaseSelector,
        on_end: Callable[[int], None],
        on_excess: Callable[[], None],
    ) -> None:
        """Run nothing yet.

        Args:
            job: name of the job, by which what a program leaves behind is known.
            selector: of the event loop.
            on_end: called with its exit code when it has ended.
            on_excess: called when it was ended, since it printed more than `MAX_OUTPUT_BYTES`.
        """
        self.output = b""
        self._job = job
        self._selector = selector
        self._on_end = on_end
        self._on_excess = on_excess
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1

    @property
    def is_running(self) -> bool:
        """Whether there is a program that has not ended."""
        return self._process is not None

    def start(self, command: Sequence[str]) -> None:
        """Run a program.

        Raises:
            OSError: it cannot be run.
        """
        self.output = b""
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            # It ends with the launcher, and what it has started is found by the variable.
            env={**os.environ, "KADRIL_JOB": self._job},
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one thread here
        )
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            end_group(process)
            if process.stdout is not None:
                process.stdout.close()
            raise
        assert process.stdout is not None  # noqa: S101 - asked for above
        self._process = process
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, self._read)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._finish)

    def _read(self) -> None:
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        try:
            data = os.read(process.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        self.output += data
        if not data:
            self._selector.unregister(process.stdout)
            process.stdout.close()
        elif len(self.output) > MAX_OUTPUT_BYTES:
            self.end()
            self._on_excess()

    def _finish(self) -> None:
        """Take the output of a program that has ended; what it has started may hold it open."""
        process = self._process
        # All that fits in a pipe, unless it is too much.
        num_read = -1
        while self._process is not None and num_read < len(self.output):
            num_read = len(self.output)
            self._read()
        if process is None or self._process is not process:
            return
        self._let_go(process)
        self._on_end(process.wait())

    def end(self) -> None:
        """End the program, should one run, with what it has started. May be called again."""
        process = self._process
        if process is not None:
            self._let_go(process)
            end_group(process)

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        if process.stdout is not None and not process.stdout.closed:
            self._selector.unregister(process.stdout)
            process.stdout.close()
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it has started, as far as that is in its process group."""
    kill_group(process.pid, signal.SIGKILL)
    # It may be in a call of the kernel that does not end, and then it is reaped later.
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)

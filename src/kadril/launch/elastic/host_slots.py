"""Number of workers that there may be: fixed, or what a discovery script says again and again.

    ./hosts.sh prints   localhost:4        four slots on this host; a name alone has one
                        other:2            another host: told once, and left out

A host on which workers fail again and again before they have joined is set aside for a while: no
worker is started there, and those that live stay. A rank that has joined, and fails again and
again, is replaced later each time.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kadril.errors import ConfigError
from kadril.launch.local.leftovers import kill_group
from kadril.launch.local.parent_death import die_with_parent
from kadril.launch.mapping.hosts import Host, is_this_host, parse_host
from kadril.launch.options import LaunchError

__all__ = ["Backoff", "Cooldown", "Discovery", "read_listing"]

POLL_SECONDS = 1.0
SCRIPT_SECONDS = 30.0
MAX_LISTING_BYTES = 1 << 20
READ_BYTES = 1 << 16

# Failures in a row after which a host is set aside, if the workers never joined; or after which a
# rank is not replaced at once.
MAX_FAILURES = 3

# A rank that has lived for so long fails for the first time again.
QUIET_SECONDS = 60.0


class Cooldown:
    """Time for which a host is set aside.

    Args:
        shortest: seconds of the first time; each further time is twice as long.
        longest: seconds at most.
    """

    def __init__(self, shortest: float, longest: float) -> None:
        self._shortest = shortest
        self._longest = longest
        self._num_failures = 0
        self._num_times = 0
        self.until = -math.inf

    def note_failure(self, now: float) -> float:
        """Note that a worker failed before it had joined.

        Returns:
            seconds for which the host is set aside now; 0 where it is not.
        """
        self._num_failures += 1
        if self._num_failures < MAX_FAILURES:
            return 0.0
        seconds = min(self._shortest * 2.0**self._num_times, self._longest)
        self._num_failures = 0
        self._num_times += 1
        self.until = now + seconds
        return seconds

    def note_success(self) -> None:
        """Note that a worker has joined."""
        self._num_failures = 0
        self._num_times = 0


class Backoff:
    """Pause before a rank that fails again and again is replaced.

        failures of one rank     1   2   3   4   5   ...    each less than a minute after the pause
        pause, in seconds        0   0   1   2   4   ...    of the last one

    Args:
        longest: seconds of a pause at most.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        # How many in a row, and the end of the last pause, by rank.
        self._failures: dict[int, tuple[int, float]] = {}
        self.until = -math.inf

    def note_failure(self, rank: int, now: float) -> tuple[int, float]:
        """Note that a rank failed.

        Returns:
            how often it did so in a row, and seconds for which no process is started.
        """
        count, until = self._failures.get(rank, (0, -math.inf))
        count = count + 1 if now < until + QUIET_SECONDS else 1
        # Bounded, since a power of a large number is none.
        pause = min(2.0 ** min(count - MAX_FAILURES, 30), self._longest)
        pause = pause if count >= MAX_FAILURES else 0.0
        self._failures[rank] = count, now + pause
        self.until = max(self.until, now + pause)
        return count, pause


class Discovery:
    """A discovery script, run once a second; its output is read as it comes.

    Attributes:
        num_slots: on this host, by the last listing; None before the first.
        wake_at: when `tick` should be called next.
    """

    def __init__(
        self,
        job: str,
        script: str,
        slots_per_host: int,
        selector: selectors.BaseSelector,
        notice: Callable[[str], None],
    ) -> None:
        """Prepare to run a script.

        Args:
            job: name of the job, by which what the script leaves behind is known.
            script: path of the program.
            slots_per_host: of a host that is listed without a number.
            selector: of the event loop.
            notice: prints a line.
        """
        self._job = job
        self._script = script
        self._slots_per_host = slots_per_host
        self._selector = selector
        self._notice = notice
        self._told: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd = -1
        self._has_run = False
        self._data = b""
        self._started_at = -math.inf
        self.num_slots: int | None = None
        self.wake_at = -math.inf

    def tick(self, now: float) -> None:
        """Start the script where it is time to.

        Raises:
            LaunchError: it cannot be run, and never was.
        """
        if now < self.wake_at:
            return
        if self._process is not None:
            self._tell_once(f"{self._script} takes longer than {SCRIPT_SECONDS:g} s, and was ended")
            self._end()
        self._start(now)

    def _start(self, now: float) -> None:
        self._started_at = now
        self._data = b""
        process = None
        try:
            process = subprocess.Popen(
                [self._script],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,
                # It ends with the launcher, and what it has started is found by the variable.
                env={**os.environ, "KADRIL_JOB": self._job},
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - one thread here
            )
            self._pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            if process is not None:
                end_group(process)
            self._tell_why_not(error, now)
            return
        self._process, self._has_run = process, True
        assert process.stdout is not None  # noqa: S101 - asked for above
        os.set_blocking(process.stdout.fileno(), False)
        self._selector.register(process.stdout, selectors.EVENT_READ, self._read)
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._finish)
        self.wake_at = now + SCRIPT_SECONDS

    def _tell_why_not(self, error: OSError, now: float) -> None:
        # It may be about to be written, or to be replaced by another one.
        problem = f"cannot run --host-discovery-script {self._script}: {error.strerror}"
        if not self._has_run:
            raise LaunchError(
                f"{problem}; is it executable (chmod +x), with a first line such as #!/bin/sh?"
            ) from error
        self._tell_once(f"{problem}; the hosts stay as they are")
        self.wake_at = now + POLL_SECONDS

    def _read(self) -> None:
        process = self._process
        if process is None or process.stdout is None or process.stdout.closed:
            return
        try:
            data = os.read(process.stdout.fileno(), READ_BYTES)
        except BlockingIOError:
            return
        self._data += data
        if not data:
            self._selector.unregister(process.stdout)
            process.stdout.close()
        elif len(self._data) > MAX_LISTING_BYTES:
            self._tell_once(
                f"{self._script} prints more than {MAX_LISTING_BYTES >> 20} MiB, and was ended; the"
                " hosts stay as they are"
            )
            self._end()
            self.wake_at = self._started_at + POLL_SECONDS

    def _finish(self) -> None:
        """Take the listing of a script that has ended; what it has started may hold its output."""
        process = self._process
        if process is None:
            return
        # All that fits in a pipe, unless it is too much; or else its end.
        num_read = -1
        while self._process is process and num_read < len(self._data):
            num_read = len(self._data)
            self._read()
        if self._process is not process:
            return
        self._let_go(process)
        code = process.wait()
        self.wake_at = self._started_at + POLL_SECONDS
        if code:
            self._tell_once(f"{self._script} failed with code {code}; the hosts stay as they are")
            return
        try:
            hosts = read_listing(self._data.decode(), self._slots_per_host)
        except (ConfigError, UnicodeDecodeError) as error:
            self._tell_once(f"{self._script}: {error}; the hosts stay as they are")
            return
        here = [host for host in hosts if is_this_host(host.name)]
        for host in hosts:
            if host not in here:
                self._tell_once(
                    f"{self._script} names {host.name}, which is not this host: elastic jobs are"
                    " of one host, and it is left out"
                )
        self.num_slots = sum(host.num_slots for host in here)

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def _end(self) -> None:
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

    def close(self) -> None:
        """End the script, should it run. May be called again; no script is started any more."""
        self._end()
        self.wake_at = math.inf


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it has started, as far as that is in its process group."""
    kill_group(process.pid, signal.SIGKILL)
    # It may be in a call of the kernel that does not end, and then it is reaped later.
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1.0)


def read_listing(text: str, slots_per_host: int = 1) -> list[Host]:
    """Read what a discovery script prints: NAME:SLOTS, one to a line; 0 slots are none.

    Args:
        text: the lines.
        slots_per_host: of a name alone.

    Raises:
        ConfigError: a line has another form.
    """
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    words = [line if ":" in line else f"{line}:{slots_per_host}" for line in lines if line]
    return [parse_host(word) for word in words if not word.endswith(":0")]

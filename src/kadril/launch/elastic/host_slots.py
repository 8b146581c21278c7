"""Number of workers that there may be: fixed, or what a discovery script says again and again.

    ./hosts.sh prints   localhost:4        four slots on this host; a name alone has one
                        other:2            another host: told once, and left out

A host on which workers fail again and again before they have joined is set aside for a while: no
worker is started there, and those that live stay. A rank that has joined, and fails again and
again, is replaced later each time.
"""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Callable

from kadril.errors import ConfigError
from kadril.launch.elastic.helper_program import MAX_OUTPUT_BYTES, HelperProgram
from kadril.launch.elastic.host_names import HostNames
from kadril.launch.mapping.hosts import Host, parse_host
from kadril.launch.options import LaunchError

__all__ = ["Backoff", "Cooldown", "Discovery", "read_listing"]

POLL_SECONDS = 1.0
SCRIPT_SECONDS = 30.0

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
        self._script = script
        self._slots_per_host = slots_per_host
        self._notice = notice
        self._told: set[str] = set()
        self._program = HelperProgram(job, selector, self._finish, self._refuse_output)
        self._names = HostNames(job, selector, self._count)
        self._hosts: list[Host] = []
        self._has_run = False
        self._started_at = -math.inf
        self._run_at = -math.inf
        self.num_slots: int | None = None

    @property
    def wake_at(self) -> float:
        """Return when `tick` should be called next."""
        return min(self._run_at, self._names.wake_at)

    def tick(self, now: float) -> None:
        """Start the script where it is time to.

        Raises:
            LaunchError: it cannot be run, and never was.
        """
        self._names.tick(now)
        if now < self._run_at:
            return
        if self._program.is_running:
            self._tell_once(f"{self._script} takes longer than {SCRIPT_SECONDS:g} s, and was ended")
            self._program.end()
        self._started_at = now
        try:
            self._program.start([self._script])
        except OSError as error:
            self._tell_why_not(error, now)
            return
        self._has_run = True
        self._run_at = now + SCRIPT_SECONDS

    def _tell_why_not(self, error: OSError, now: float) -> None:
        # It may be about to be written, or to be replaced by another one.
        problem = f"cannot run --host-discovery-script {self._script}: {error.strerror}"
        if not self._has_run:
            raise LaunchError(
                f"{problem}; is it executable (chmod +x), with a first line such as #!/bin/sh?"
            ) from error
        self._tell_once(f"{problem}; the hosts stay as they are")
        self._run_at = now + POLL_SECONDS

    def _refuse_output(self) -> None:
        self._run_at = self._started_at + POLL_SECONDS
        self._tell_once(
            f"{self._script} prints more than {MAX_OUTPUT_BYTES >> 20} MiB, and was ended; the"
            " hosts stay as they are"
        )

    def _finish(self, code: int) -> None:
        """Take the listing of a script that has ended."""
        self._run_at = self._started_at + POLL_SECONDS
        if code:
            self._tell_once(f"{self._script} failed with code {code}; the hosts stay as they are")
            return
        try:
            self._hosts = read_listing(self._program.output.decode(), self._slots_per_host)
        except (ConfigError, UnicodeDecodeError) as error:
            self._tell_once(f"{self._script}: {error}; the hosts stay as they are")
            return
        self._names.ask([host.name for host in self._hosts], time.monotonic())
        self._count()

    def _count(self) -> None:
        """Count the slots of this host in the last listing."""
        answers = [(host, self._names.leads_here(host.name)) for host in self._hosts]
        num_sure = sum(host.num_slots for host, is_here in answers if is_here)
        num_unsure = sum(host.num_slots for host, is_here in answers if is_here is None)
        if num_unsure and self._names.is_asking and self.num_slots is None:
            return  # a part of the first ranks would be started
        # Of a name that is not known some slots may be here: as many as before, if that can be.
        self.num_slots = min(max(self.num_slots or 0, num_sure), num_sure + num_unsure)
        for host, is_here in answers:
            if is_here is False:
                self._tell_once(
                    f"{self._script} names {host.name}, which is not this host: elastic jobs are"
                    " of one host, and it is left out"
                )
            elif is_here is None and not self._names.is_asking:
                self._tell_once(
                    f"{self._script} names {host.name}, and the resolver does not say whether that"
                    " is this host; the slots stay as they are"
                )

    def _tell_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._notice(text)

    def close(self) -> None:
        """End the script, should it run. May be called again; no script is started any more."""
        self._program.end()
        self._names.close()
        self._run_at = math.inf


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

"""The event loop of the launcher: exits, output, signals and deadlines, all in one thread.

    running --- a rank fails ------------------> stopping --- kill_grace over --> killed
       |        (and after a moment)             SIGTERM to all                   SIGKILL to all
       |                                                                             ^
       `------- SIGINT, SIGTERM to launcher --> interrupted --- grace over ----------'
                                                passed on       or a second Ctrl-C

In the end all ranks are dead. Then come what they left behind, the rest of their output, and the
report.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from functools import partial

from kadril.launch.guardian import Guardian
from kadril.launch.job import Job
from kadril.launch.leftovers import end_leftovers, find_leftovers
from kadril.launch.options import RunOptions
from kadril.launch.output import Output
from kadril.launch.rank_environment import RankEnvironment
from kadril.launch.rank_process import RankProcess
from kadril.launch.signal_inbox import SignalInbox
from kadril.launch.summary import Outcome, RankExit, summarize

__all__ = ["Supervisor"]

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

# Ranks notice the failure of a peer by themselves, and say where they were; and a rank that raised
# may still be closing down when a peer has already left because of it. So long we let them end by
# themselves before we end them.
LAST_WORDS = 1.0

# Helpers of a rank (resource trackers, data loaders) notice its end and leave by themselves.
LINGER = 1.0

# Ctrl-C may arrive twice, from the terminal and from a wrapper such as `timeout` that passes it on.
SAME_INTERRUPT = 0.1


class Supervisor:
    """Starts the ranks of a job, watches them to the end, and reports."""

    def __init__(
        self, options: RunOptions, job: Job, guardian: Guardian, inbox: SignalInbox
    ) -> None:
        self._options = options
        self._job = job
        self._guardian = guardian
        self._inbox = inbox
        self._selector = selectors.DefaultSelector()
        self._output = Output(self._selector, options)
        self._ranks: list[RankProcess] = []
        self._exited: list[RankProcess] = []  # seen in this turn of the loop
        self._exits: list[RankExit] = []
        self._num_batches = 0
        self._forwarded: set[int] = set()
        self._interrupted_by = 0
        self._interrupt_time = -math.inf
        self._failed = False
        self._stopping = False
        self._killed = False
        self._stop_at = math.inf
        self._kill_at = math.inf

    def __enter__(self) -> Supervisor:
        self._selector.register(self._inbox, selectors.EVENT_READ, lambda: None)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            # Something went wrong on the way, and nobody has ended what was started.
            self._kill_ranks()
            end_leftovers(self._job.id, [rank.pid for rank in self._ranks])
        for rank in self._ranks:
            rank.close()
        self._output.close()
        self._selector.close()

    def start(self, command: Sequence[str], environment: RankEnvironment) -> None:
        """Start the ranks.

        Raises:
            LaunchError: one of them cannot be started.
        """
        for warning in environment.warnings:
            self._output.notice(warning)
        self._tell(f"job {self._job.id} in {self._job.directory}")
        for note in environment.notes:
            self._tell(note)
        cores = sorted(os.sched_getaffinity(0))
        listener = self._job.listener
        for number in range(self._options.num_ranks):
            first = number == 0
            core = cores[number % len(cores)] if self._options.bind else None
            rank = RankProcess.start(
                number,
                command,
                environment.variables | environment.of_rank[number] | self._job.identity(number),
                stdin=None if first and self._options.stdin else subprocess.DEVNULL,
                inherit=[listener.fileno()] if first and listener is not None else [],
                core=core,
            )
            self._guardian.watch(rank.pid)
            self._ranks.append(rank)
            self._output.add(rank)
            note_exit = partial(self._exited.append, rank)
            self._selector.register(rank.pidfd, selectors.EVENT_READ, note_exit)
            place = "" if core is None else f" on core {core}"
            self._tell(f"rank {number} is process {rank.pid}{place}")
        self._job.release_listener()

    def run(self) -> Outcome:
        """Watch the ranks to the end and print the report."""
        while any(rank.alive for rank in self._ranks):
            self._turn()
        self._end_leftovers()
        self._output.finish_reading()
        outcome = Outcome(tuple(self._exits), self._interrupted_by, frozenset(self._forwarded))
        self._output.print_error(summarize(outcome))
        last_interrupt = self._interrupt_time
        while not self._output.all_written:
            self._turn()
            if self._interrupt_time != last_interrupt:
                # Nobody reads our output, and the user has had enough of waiting.
                self._output.drop()
        return outcome

    def _turn(self, until: float = math.inf) -> None:
        # One round of the loop, which ends at the latest at `until`.
        due = self._output.progress_due
        wake_at = min(until, self._stop_at, self._kill_at, math.inf if due is None else due)
        timeout = None if wake_at == math.inf else max(0.0, wake_at - time.monotonic())
        for key, _ in self._selector.select(timeout):
            key.data()
        if self._exited:
            self._note_exits()
        for signum in self._inbox.take():
            self._forward(signum)
        now = time.monotonic()
        if now >= self._stop_at:
            self._stop_ranks()
        if now >= self._kill_at:
            self._kill_ranks()
        self._output.show_progress()
        self._output.balance()

    def _note_exits(self) -> None:
        now = time.monotonic()
        for rank in self._exited:
            self._selector.unregister(rank.pidfd)
            self._exits.append(
                RankExit(
                    rank=rank.rank,
                    status=rank.note_exit(),
                    batch=self._num_batches,
                    time=now,
                    stopped_by=rank.stopped_by,
                    tail=tuple(self._output.error_tail(rank.rank)),
                )
            )
        self._exited.clear()
        self._num_batches += 1
        failures = [ended for ended in self._exits if ended.failed_by_itself]
        if not failures or self._stopping or self._interrupted_by:
            return
        self._failed = True
        self._stop_at = min(self._stop_at, now + LAST_WORDS)

    def _forward(self, signum: int) -> None:
        if signum in INTERRUPTS:
            now = time.monotonic()
            if signum in self._forwarded and now - self._interrupt_time < SAME_INTERRUPT:
                return
            self._interrupt_time = now
            if not self._failed and not self._interrupted_by:
                self._interrupted_by = signum
                self._kill_at = now + self._options.grace
            elif signum == signal.SIGINT:
                # The end is under way, and Ctrl-C says that it takes too long.
                self._kill_ranks()
                return
        self._forwarded.add(signum)
        for rank in self._ranks:
            rank.signal_group(signum)

    def _stop_ranks(self) -> None:
        self._stopping = True
        self._stop_at = math.inf
        self._kill_at = time.monotonic() + self._options.kill_grace
        for rank in self._ranks:
            rank.stop(signal.SIGTERM)

    def _kill_ranks(self) -> None:
        self._stopping = self._killed = True
        self._stop_at = self._kill_at = math.inf
        for rank in self._ranks:
            rank.stop(signal.SIGKILL)

    def _end_leftovers(self) -> None:
        # All ranks are dead; what they have started may not be.
        sessions = [rank.pid for rank in self._ranks]
        deadline = time.monotonic() + LINGER
        pause = 0.01
        while find_leftovers(self._job.id, sessions):
            now = time.monotonic()
            if self._killed or now >= deadline:
                for leftover in end_leftovers(self._job.id, sessions):
                    owner = f" by rank {leftover.rank}" if leftover.rank else ""
                    self._output.notice(
                        f"ended process {leftover.pid} left behind{owner}: {leftover.command}"
                    )
                break
            pause = min(2 * pause, 0.1)
            self._turn(min(deadline, now + pause))
        # Nobody holds the other ends of the pipes, except a process that hides from the search.
        deadline = time.monotonic() + LINGER / 2
        while not self._output.all_read and time.monotonic() < deadline:
            self._turn(deadline)

    def _tell(self, text: str) -> None:
        if self._options.verbose:
            self._output.notice(text)

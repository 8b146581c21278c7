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
import selectors
import signal
import time
from collections.abc import Callable
from typing import TypeVar

from kadril.launch.local.rank_host import RankHost
from kadril.launch.options import LaunchError, RunOptions
from kadril.launch.supervision.output import Output
from kadril.launch.supervision.signal_inbox import SignalInbox
from kadril.launch.supervision.summary import Outcome, RankExit, signal_name, summarize

__all__ = ["Supervisor"]

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)

# Ranks notice the failure of a peer by themselves, and say where they were; and a rank that raised
# may still be closing down when a peer has already left because of it. So long we let them end by
# themselves before we end them.
LAST_WORDS = 1.0

# Ctrl-C may arrive twice, from the terminal and from a wrapper such as `timeout` that passes it on.
SAME_INTERRUPT = 0.1

SupervisorT = TypeVar("SupervisorT", bound="Supervisor")


class Supervisor:
    """Watches the ranks of all hosts to their end, and reports.

    Attributes:
        selector: of the event loop; its data are functions without arguments.
        output: what the ranks write, and the launcher's own lines.
    """

    def __init__(self, options: RunOptions, inbox: SignalInbox) -> None:
        self.selector = selectors.DefaultSelector()
        self.output = Output(self.selector, options)
        self._options = options
        self._inbox = inbox
        self._hosts: list[RankHost] = []
        self._exits: list[RankExit] = []
        self._num_batches = 0
        self._forwarded: set[int] = set()
        self._interrupted_by = 0
        self._interrupt_time = -math.inf
        self._failed = False
        self._reason = ""  # why the job ends, where that is not the exit of a rank
        self._stopping = False
        self._killed = False
        self._stop_at = math.inf
        self._kill_at = math.inf

    def __enter__(self: SupervisorT) -> SupervisorT:
        self.selector.register(self._inbox, selectors.EVENT_READ, lambda: None)
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            # Something went wrong on the way, and nobody has ended what was started.
            for host in self._hosts:
                host.abort()
        for host in self._hosts:
            host.close()
        self.output.close()
        self.selector.close()

    def add(self, host: RankHost) -> None:
        """Watch the ranks of a host, those that it has and those that it will have."""
        self._hosts.append(host)

    def tell(self, text: str) -> None:
        """Print what the launcher does, for users who want to know."""
        if self._options.verbose:
            self.output.notice(text)

    def wait(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Run the loop until a condition holds; False if it does not in time.

        Raises:
            LaunchError: the launcher was interrupted.
        """
        while not condition():
            if self._interrupted_by:
                name = signal_name(self._interrupted_by)
                raise LaunchError(
                    f"interrupted by {name} before the ranks were started",
                    exit_code=128 + self._interrupted_by,
                )
            if time.monotonic() >= deadline:
                return False
            self._turn(deadline)
        return True

    def run(self) -> Outcome:
        """Watch the ranks to the end and print the report."""
        while any(host.is_alive for host in self._hosts):
            self._turn()
        self._note_exits()
        self._finish_hosts()
        self.output.finish()
        outcome = Outcome(
            tuple(self._exits), self._interrupted_by, frozenset(self._forwarded), self._reason
        )
        self.output.print_error(summarize(outcome))
        last_exit = max((ended.time for ended in self._exits), default=-math.inf)
        while not self.output.all_written:
            if self._interrupt_time >= last_exit:
                # Nobody reads our output, and the user has had enough of waiting.
                self.output.drop()
                break
            self._turn()
        return outcome

    def _turn(self, until: float = math.inf) -> None:
        # One round of the loop, which ends at the latest at `until`.
        due = self.output.progress_due
        times = [until, self._stop_at, self._kill_at, math.inf if due is None else due]
        wake_at = min(*times, *(host.wake_at for host in self._hosts), self._next_work())
        timeout = None if wake_at == math.inf else max(0.0, wake_at - time.monotonic())
        for key, _ in self.selector.select(timeout):
            key.data()
        for host in self._hosts:
            host.tick()
        self._note_exits()
        for signum in self._inbox.take():
            self._forward(signum)
        now = time.monotonic()
        self._work(now)
        if now >= self._stop_at:
            self._stop_ranks()
        if now >= self._kill_at:
            self._kill_ranks()
        self.output.show_progress()
        for host in self._hosts:
            host.balance()

    def _note_exits(self) -> None:
        ended = [(host.name, each) for host in self._hosts for each in host.take_ended()]
        if not ended:
            return
        now = time.monotonic()
        fresh = [
            RankExit(
                rank=each.rank,
                status=each.status,
                batch=self._num_batches,
                time=now,
                stopped_by=each.stopped_by,
                tail=tuple(self.output.error_tail(each.rank)),
                host=host_name,
                lost=each.lost,
                last_call=each.last_call,
            )
            for host_name, each in ended
        ]
        self._num_batches += 1
        self._judge(fresh, now)

    def _judge(self, fresh: list[RankExit], now: float) -> None:
        """Decide what exits mean for the job: the first failure ends it."""
        self._exits += fresh
        failures = [ended for ended in self._exits if ended.failed_by_itself]
        if not failures or self._stopping or self._interrupted_by:
            return
        self._failed = True
        self._stop_at = min(self._stop_at, now + LAST_WORDS)

    def _next_work(self) -> float:
        """Return when `_work` should be called next."""
        return math.inf

    def _work(self, now: float) -> None:
        """Do what is due by now for the job as a whole."""

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
        for host in self._hosts:
            host.signal(signum)

    def _stop_ranks(self) -> None:
        self._stopping = True
        self._stop_at = math.inf
        self._kill_at = time.monotonic() + self._options.kill_grace
        for host in self._hosts:
            host.stop(signal.SIGTERM)

    def _kill_ranks(self) -> None:
        self._stopping = self._killed = True
        self._stop_at = self._kill_at = math.inf
        for host in self._hosts:
            host.stop(signal.SIGKILL)

    def _finish_hosts(self) -> None:
        # All ranks are dead; what they have started may not be.
        was_killed = self._killed
        for host in self._hosts:
            host.finish(at_once=was_killed)
        while not all(host.has_ended for host in self._hosts):
            self._turn()
            if self._killed and not was_killed:
                was_killed = True
                for host in self._hosts:
                    host.finish(at_once=True)

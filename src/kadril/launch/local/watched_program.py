"""A program that starts ranks by itself, such as mpirun, and a watch over these.

It runs as if it had been started directly: its stdin, stdout and stderr are the launcher's, signals
to the launcher reach it, and its exit code is the launcher's.

    foreground job of a terminal    the program stays in the launcher's process group: Ctrl-C goes
                                    to both, and is not passed on; the shell's job control and
                                    reading from the terminal work as ever
    otherwise                       the program leads a group of its own: what is sent to the
                                    launcher, or to its group, is passed on once
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kadril.config import Config
from kadril.launch.local.parent_death import die_with_parent
from kadril.launch.local.stall_watch import StallWatch
from kadril.launch.supervision.signal_inbox import FORWARDED

if TYPE_CHECKING:
    from kadril.observe.running_jobs import FoundRank

__all__ = ["run_watched"]

SI_KERNEL = 128  # of a signal that the kernel sent, such as the terminal's


def run_watched(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a program to its end, and tell when the ranks that descend from it do not move.

    Returns:
        its exit code; 128 and its number for a signal that ended it, as a shell has it.

    Raises:
        ConfigError: a variable of kadril makes no sense.
        OSError: it cannot be started.
    """
    watches = Config.from_environment(environment).stall_check
    in_foreground = is_foreground()
    with blocked_signals() as (signals, mask):
        launcher = os.getpid()

        def prepare() -> None:
            # Not SIGKILL: an mpirun has ranks to end, also on other hosts.
            die_with_parent(launcher, signal.SIGTERM)
            if not in_foreground:
                os.setpgid(0, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        program = subprocess.Popen(
            command,
            env=environment,
            preexec_fn=prepare,  # noqa: PLW1509 - one thread here
        )
        watch = StallWatch("", notice, make_search(program.pid)) if watches else None
        while program.poll() is None:
            told = await_signal(signals, watch)
            # The terminal has sent it to the program, too.
            if told and not (in_foreground and told.si_code == SI_KERNEL):
                program.send_signal(told.si_signo)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def is_foreground() -> bool:
    """Whether stdin is a terminal, and this process is of its foreground job."""
    with suppress(OSError):
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    return False


@contextmanager
def blocked_signals() -> Iterator[tuple[set[int], set[int]]]:
    """Keep signals from having an effect, so that they can be waited for.

    Yields:
        the signals to wait for, and the mask without them. What was ignored stays ignored: that is
        how `nohup` asks to be left alone.
    """
    child = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, children leave no status
    signals = {signum for signum in FORWARDED if signal.getsignal(signum) != signal.SIG_IGN}
    signals.add(signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield set(signals), set(mask)
    finally:
        # What comes now comes too late for anybody.
        while signal.sigtimedwait(signals, 0):
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if child is None else child)


def await_signal(signals: set[int], watch: StallWatch | None) -> signal.struct_siginfo | None:
    """Wait for a signal to pass on; None where a child has changed or it was time for a look."""
    if watch is None:
        found: signal.struct_siginfo | None = signal.sigwaitinfo(signals)
    else:
        now = time.monotonic()
        found = signal.sigtimedwait(signals, max(0.0, watch.tick(now) - now))
    return None if found is None or found.si_signo == signal.SIGCHLD else found


def make_search(program: int) -> Callable[[], Iterable[FoundRank]]:
    """Return what finds the ranks that descend from a program."""

    def search() -> Iterable[FoundRank]:
        # Imported here: most jobs end before the first look.
        from kadril.observe.running_jobs import find_ranks_below

        return find_ranks_below(program)

    return search


def notice(text: str) -> None:
    """Print a line of the launcher's own; a reader of stderr that has left must not end the job."""
    with suppress(OSError):
        print(f"kadril: {text}", file=sys.stderr, flush=True)

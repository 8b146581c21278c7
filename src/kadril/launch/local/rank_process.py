"""One rank: how it is started, how it is signalled, and how it ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn, Protocol

from kadril.launch.local.leftovers import kill_group
from kadril.launch.local.parent_death import die_with_parent
from kadril.launch.options import LaunchError

__all__ = ["RankForks", "RankProcess"]


class RankForks(Protocol):
    """Source of forked ranks, where no program is to be started; see `ForkClient.fork`."""

    def fork(
        self,
        variables: Mapping[str, str],
        *,
        stdout: int,
        stderr: int,
        inherit: Collection[int],
        processors: Collection[int],
    ) -> int:
        """Fork a rank and return its process id; it is a child of this process."""


class RankProcess:
    """A started rank, leader of its own session and process group.

    The launcher does not reap a rank before the job is over, or before the children of a rank that
    the job goes on without have been ended. Until then the dead rank keeps its pid, so that signals
    to its process group reach its children or nobody, never a stranger with that number.

    Attributes:
        rank: its number.
        pid: its process id, which names its process group and its session too.
        pidfd: readable when the rank has exited.
        stdout: read end of its output, not blocking; belongs to who takes it.
        stderr: read end of its error output, as `stdout`.
        stopped_by: the last signal that the launcher sent to end it, or 0.
    """

    def __init__(
        self, rank: int, pid: int, reap: Callable[[], object], stdout: int, stderr: int
    ) -> None:
        self.rank = rank
        self.pid = pid
        self.stdout = stdout
        self.stderr = stderr
        self.stopped_by = 0
        self.alive = True
        self._reap = reap
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError as error:
            self.signal_group(signal.SIGKILL)
            reap()
            cause = "kadril needs Linux 5.3 and a sandbox that allows this call"
            if error.errno == errno.EMFILE:
                cause = "the limit on descriptors (ulimit -n) is reached"
            raise LaunchError(
                f"cannot watch rank {rank}: pidfd_open: {error.strerror}; {cause}"
            ) from None

    @classmethod
    def start(
        cls,
        rank: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdin: int | None,
        inherit: Collection[int] = (),
        processors: Collection[int] = (),
        directory: str | None = None,
        forks: RankForks | None = None,
    ) -> RankProcess:
        """Start a rank.

        Args:
            rank: its number.
            command: the program and its arguments.
            environment: all its variables.
            stdin: its stdin as `subprocess.Popen` takes it; None is the launcher's own.
            inherit: descriptors that it gets under the same numbers.
            processors: those to bind it to; none leaves it free.
            directory: its working directory; None is the launcher's.
            forks: what forks the rank; then `command`, `stdin` and `directory` are those that it
                was made for. None starts the program.

        Raises:
            LaunchError: it cannot be started.
        """
        with ExitStack() as on_failure, ExitStack() as write_ends:
            ends = []
            for _ in range(2):
                try:
                    read_end, write_end = os.pipe()
                except OSError as error:
                    raise LaunchError(
                        f"no pipe for the output of rank {rank}: {error.strerror}; is the limit on"
                        " descriptors (ulimit -n) reached?"
                    ) from error
                on_failure.callback(os.close, read_end)
                write_ends.callback(os.close, write_end)
                # The flag is of this end only: the rank's writes still block, as they should.
                os.set_blocking(read_end, False)
                ends.append((read_end, write_end))
            stdout, stderr = (write_end for _, write_end in ends)
            reap: Callable[[], object]
            if forks is not None:
                pid = forks.fork(
                    environment,
                    stdout=stdout,
                    stderr=stderr,
                    inherit=inherit,
                    processors=processors,
                )
                reap = partial(os.waitpid, pid, 0)
            else:
                try:
                    process = subprocess.Popen(
                        command,
                        env=environment,
                        stdin=stdin,
                        stdout=stdout,
                        stderr=stderr,
                        pass_fds=tuple(inherit),
                        start_new_session=True,
                        cwd=directory,
                        preexec_fn=make_preparation(processors),  # noqa: PLW1509 - one thread here
                    )
                except (OSError, subprocess.SubprocessError) as error:
                    refuse(command[0], error, rank, processors)
                pid, reap = process.pid, process.wait
            started = cls(rank, pid, reap, ends[0][0], ends[1][0])
            on_failure.pop_all()
            return started

    def signal_group(self, signum: int) -> None:
        """Send a signal to the rank and to all its children that stayed in its process group."""
        kill_group(self.pid, signum)

    def stop(self, signum: int) -> None:
        """Send a signal that is meant to end the rank."""
        if self.alive:
            self.stopped_by = signum
        self.signal_group(signum)
        # A rank held by SIGSTOP would not see the signal before somebody continues it.
        self.signal_group(signal.SIGCONT)

    def note_exit(self) -> int:
        """Read how the rank ended, once its pidfd is readable, without reaping it.

        Returns:
            its exit code, or minus the signal that killed it.
        """
        self.alive = False
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if ended is None:
            raise RuntimeError(
                f"rank {self.rank} (pid {self.pid}) was said to have exited and has not"
            )
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

    def close(self) -> None:
        """Make sure that the rank is dead, and reap it."""
        if self.alive:
            self.signal_group(signal.SIGKILL)
        self._reap()
        os.close(self.pidfd)


def make_preparation(processors: Collection[int]) -> Callable[[], None]:
    """Return what the child does between fork and exec."""
    launcher = os.getpid()
    wanted = set(processors)

    def prepare() -> None:
        die_with_parent(launcher)
        if wanted:
            os.sched_setaffinity(0, wanted)

    return prepare


def refuse(
    program: str,
    error: OSError | subprocess.SubprocessError,
    rank: int,
    processors: Collection[int],
) -> NoReturn:
    """Say why a program could not be started, with the exit code that shells use for it."""
    if isinstance(error, subprocess.SubprocessError):
        names = ", ".join(map(str, sorted(processors)))
        raise LaunchError(f"cannot bind rank {rank} to core {names}: {error}") from error
    if error.errno == errno.ENOENT:
        message = f"cannot start {program!r}: no such program, or none that its first line names"
        beside = Path(sys.executable).parent / program
        if program.startswith("python"):
            message += "; give `python`, or the .py file alone, for the Python of kadril"
        elif "/" not in program and beside.exists():
            message += f"; there is one beside the Python of kadril: {beside}"
        raise LaunchError(message, exit_code=127) from None
    if error.errno in (errno.EACCES, errno.ENOEXEC):
        raise LaunchError(
            f"cannot start {program!r}: {error.strerror}; is it executable (chmod +x)?",
            exit_code=126,
        ) from None
    raise LaunchError(
        f"cannot start {program!r}: {error.strerror}; are the limits on processes (ulimit -u), "
        f"descriptors (ulimit -n) or memory reached?",
        exit_code=126,
    ) from None

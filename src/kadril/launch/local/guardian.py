"""The guardian: a tiny process that cleans up after a launcher that was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress

from kadril.launch.local import leftovers
from kadril.launch.local.job import Job
from kadril.launch.options import LaunchError

__all__ = ["Guardian"]


class Guardian:
    """Starts the guardian of a job, tells it of ranks, and dismisses it when all is clean.

    The launcher alone holds the write end of a pipe that the guardian reads, so its end, however it
    comes, is the end of that pipe. The guardian needs no answer time at the start: what is written
    waits in the pipe until it reads.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._pipe = -1
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Guardian:
        read_end, self._pipe = os.pipe()
        # Without KADRIL_*, so that it is not taken for a process of a job that this launcher is
        # itself a part of. Isolated (-I -S): nothing the user installs can slow or break it.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KADRIL_")}
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", leftovers.__file__, self._job.id, self._job.directory],
                stdin=read_end,
                # Nobody who reads the launcher's output to its end must wait for the guardian.
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # out of reach of the terminal's Ctrl-C
                cwd="/",
                env=environment,
            )
        except OSError as error:
            os.close(self._pipe)
            raise LaunchError(
                f"cannot start the guardian process ({sys.executable}): {error}; "
                f"are the limits on processes (ulimit -u) or memory reached?"
            ) from error
        finally:
            os.close(read_end)
        return self

    def watch(self, group: int) -> None:
        """Report a rank by its process group, which is its session too."""
        # A guardian that was killed is no reason to end the job: ranks also die with their parent.
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"%d\n" % group)

    def forget(self, group: int) -> None:
        """Take back a report: the rank is about to be reaped, and its number may be given anew."""
        with suppress(BrokenPipeError):
            os.write(self._pipe, b"-%d\n" % group)

    def __exit__(self, *_: object) -> None:
        # All is clean by this time. A launcher that is killed on this line leaves a guardian that
        # finds nothing to do.
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        os.close(self._pipe)

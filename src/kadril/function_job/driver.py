"""The launcher of a function, in a process of its own.

It gets the packed call on stdin, and writes to a pipe what came of it: a line of JSON with the
lengths of what follows, and then the packed results. It copies bytes and never unpacks them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from kadril.errors import ConfigError
from kadril.function_job.worker import CALL, failure_name, result_name
from kadril.launch import LaunchError, run
from kadril.launch.command import parse
from kadril.launch.local.parent_death import die_with_parent
from kadril.launch.supervision.summary import Outcome, describe_status, find_cause

__all__ = ["FunctionFiles", "main"]


class FunctionFiles:
    """The call on its way to the ranks, and the results on their way back; see `JobFiles`.

    Attributes:
        report: what is told to the caller of how the ranks ended.
        results: the packed result of each rank; None where it left none.
    """

    def __init__(self, call: bytes, num_ranks: int) -> None:
        self.report: dict[str, object] = {}
        self.results: list[bytes | None] = [None] * num_ranks
        self._call = call

    def write(self, directory: Path) -> None:
        """Put the call where the ranks look for it."""
        descriptor = os.open(directory / CALL, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self._call)

    def read(self, directory: Path, outcome: Outcome) -> None:
        """Take the results, or what the rank that failed first has to say."""
        cause = find_cause(outcome)
        if cause is not None:
            tail = b"\n".join(cause.tail).decode(errors="replace")
            with contextlib.suppress(FileNotFoundError):
                tail = (directory / failure_name(cause.rank)).read_text(errors="replace")
            self.report = {
                "rank": cause.rank,
                "status": describe_status(cause.status),
                "tail": tail,
            }
        self.report["interrupted_by"] = outcome.interrupted_by
        for rank in range(len(self.results)):
            with contextlib.suppress(FileNotFoundError):
                self.results[rank] = (directory / result_name(rank)).read_bytes()

    def send(self, descriptor: int, exit_code: int) -> None:
        """Write everything to the caller."""
        lengths = [-1 if result is None else len(result) for result in self.results]
        head = {"exit_code": exit_code, "lengths": lengths, **self.report}
        # A caller that was killed reads no more, and nobody is left to tell.
        with contextlib.suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
            pipe.write(json.dumps(head).encode() + b"\n")
            for result in self.results:
                pipe.write(result or b"")


def main() -> int:
    """Run a job; the words are the caller's process id, a descriptor, -np, and more flags."""
    caller, descriptor, num_ranks, *words = sys.argv[1:]
    die_with_parent(int(caller), signal.SIGTERM)
    os.set_inheritable(int(descriptor), False)
    files = FunctionFiles(sys.stdin.buffer.read(), int(num_ranks))
    try:
        code = run(parse(["-np", num_ranks, *words]), files)
    except ConfigError as error:
        code = 2
        files.report["bad_option"] = str(error)
    except LaunchError as error:
        code = error.exit_code
        files.report["not_started"] = str(error)
    files.send(int(descriptor), code)
    return code

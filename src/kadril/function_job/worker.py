"""The program of the ranks: take the call from the job's directory, and leave the result there.

The function calls `kadril.init()` or `hvd.init()` itself, as a script would.
"""

from __future__ import annotations

import os
import stat
import sys
import traceback
from pathlib import Path

from kadril.errors import ConfigError
from kadril.function_job import serialization

__all__ = ["CALL", "failure_name", "main", "result_name"]

CALL = "call"


def result_name(rank: int) -> str:
    """Return the name of the file with the result of a rank, in the job's directory."""
    return f"result.{rank}"


def failure_name(rank: int) -> str:
    """Return the name of the file with the traceback of a rank that raised, as text."""
    return f"failure.{rank}"


def job_directory() -> Path:
    """Return the private directory of the job that this process is a rank of.

    Raises:
        ConfigError: it is not private, so that what is in it cannot be trusted.
    """
    directory = Path(os.environ["KADRIL_SECRET_FILE"]).parent
    status = directory.stat()
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise ConfigError(
            f"the job directory {directory} is open to other users, so nothing in it is run;"
            " start the ranks with kadril.run()"
        )
    return directory


def write(path: Path, data: bytes) -> None:
    """Write a file that is there as a whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(data)
    part.rename(path)


def main() -> int:
    """Make the call and return the exit code."""
    rank = int(os.environ["KADRIL_RANK"])
    directory = job_directory()
    try:
        call: serialization.Call = serialization.load((directory / CALL).read_bytes())
        value = call.make()
        name = getattr(call.function, "__qualname__", repr(call.function))
        data = serialization.pack(value, f"what {name} returned on rank {rank}")
    # Whatever the function raises is told to the caller. SystemExit and KeyboardInterrupt are not
    # caught: they mean here what they mean in a script.
    except Exception as error:
        text = describe(error)
        write(directory / failure_name(rank), text.encode())
        sys.stderr.write(text)
        return 1
    write(directory / result_name(rank), data)
    return 0


def describe(error: Exception) -> str:
    """Return the traceback without the frames of this file at its beginning."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in (
        __file__,
        serialization.__file__,
    ):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames))

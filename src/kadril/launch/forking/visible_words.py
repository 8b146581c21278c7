"""Command line and variables of this process, as /proc shows them to others.

/proc/<pid>/cmdline and /proc/<pid>/environ show the memory where the kernel laid them when the
interpreter was started, whatever has become of them since. `ps`, `kadril ps` and those who look for
the processes of a job go by them; so a forked rank writes its own there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ROOM_VARIABLE", "show_variables", "show_words"]

# A variable that the fork server is started with for nothing but its length.
ROOM_VARIABLE = "KADRIL_ROOM"

# Fields of /proc/<pid>/stat, from 1, as proc(5) counts them.
ARG_START, ENV_START = 48, 50


def show_words(words: Sequence[str]) -> None:
    """Write a command line, which has to be shorter than the one that was started."""
    write_over(ARG_START, b"".join(os.fsencode(word) + b"\0" for word in words))


def show_variables(environment: Mapping[bytes, bytes]) -> None:
    """Write variables; those of kadril first, and no further ones than there is room for."""
    # As the C library has them they lie in the memory that is written over. This copies them.
    for name, value in environment.items():
        os.putenv(name, value)
    ordered = sorted(environment.items(), key=lambda item: not item[0].startswith(b"KADRIL_"))
    write_over(ENV_START, b"".join(name + b"=" + value + b"\0" for name, value in ordered))


def write_over(field: int, text: bytes) -> None:
    """Write text over what lies between two addresses that /proc/self/stat has."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = (int(fields[number - 3]) for number in (field, field + 1))
    room = end - start
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)

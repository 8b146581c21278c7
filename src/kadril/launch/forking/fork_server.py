"""The fork server: `python -m kadril.launch.forking.fork_server DESCRIPTOR LAUNCHER MODULES WORDS`.

It loads modules, says so, and forks a rank at each request, which tells the launcher itself what
becomes of it. The rank comes back from `serve` and runs the program, on the same stack, so that its
interpreter ends as any other does.

    fork server    fork ---- wait for the middle one ---- let the rank go
    middle           `-- fork -- end
    rank                   `-- tell the pid -- wait: its parent is the launcher -- rank_setup.py
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import socket
import sys
from collections.abc import Sequence
from typing import Any

from kadril.launch.forking.fork_fitness import why_unfit
from kadril.launch.forking.main_program import import_folder, run_program
from kadril.launch.forking.rank_setup import become_rank, tell

__all__ = ["main"]

MAX_REQUEST = 1 << 20
MAX_DESCRIPTORS = 16


def load_modules(names: Sequence[str]) -> None:
    """Load modules, as far as they can be."""
    for name in names:
        # What goes wrong here goes wrong in the program again, which tells of it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that a collection in a rank does not touch, and copy, every page


def end_idle_threads() -> None:
    """Fork for nothing.

    Some libraries have threads from the start and end them before a fork, as OpenBLAS does. Threads
    that remain are those that a rank would miss.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def serve(control: socket.socket, launcher: int, words: Sequence[str]) -> bool:
    """Fork ranks until the launcher closes its end; return True in each rank."""
    while True:
        request, descriptors = receive(control)
        if request is None:
            return False
        line = socket.socket(fileno=descriptors[0])
        try:
            if fork_rank(launcher, line):
                control.close()
                become_rank(request, [line.detach(), *descriptors[1:]], words, launcher)
                return True
        except OSError as error:
            tell(line, problem=f"fork: {error.strerror}")
        line.close()
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next request and its descriptors; None where there are no more."""
    numbers = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize)
    data, ancillary, _, _ = control.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    for _, _, content in ancillary:
        numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return (json.loads(data) if data else None), list(numbers)


def fork_rank(launcher: int, line: socket.socket) -> bool:
    """Fork a rank that is a child of the launcher; return True in the rank.

    Raises:
        OSError: there can be no further process.
    """
    go_read, go_write = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            fork_and_end()
            tell(line, pid=os.getpid())
            os.close(go_write)
            if os.read(go_read, 1) != b"g" or os.getppid() != launcher:
                os._exit(1)  # the fork server or the launcher is gone
            return True
        _, status = os.waitpid(middle, 0)  # from here on the rank is a child of the launcher
        if status != 0:
            raise OSError(0, "no further process (ulimit -u)")
        os.write(go_write, b"g")
        return False
    finally:
        for descriptor in (go_write, go_read):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def fork_and_end() -> None:
    """Fork, and end; returns in the child only."""
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os._exit(0)


def main(arguments: Sequence[str]) -> None:
    """Serve; in a rank, run the program."""
    descriptor, launcher, modules, *words = arguments
    control = socket.socket(fileno=int(descriptor))
    os.set_inheritable(control.fileno(), False)
    import_folder(words)
    load_modules(modules.split(","))
    end_idle_threads()
    control.send(json.dumps({"problem": why_unfit("what it has loaded")}).encode())
    if serve(control, int(launcher), words):
        run_program(words)


if __name__ == "__main__":
    main(sys.argv[1:])

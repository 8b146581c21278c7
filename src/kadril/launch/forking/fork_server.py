"""The fork server: `python -m kadril.launch.forking.fork_server DESCRIPTOR LAUNCHER MODULES WORDS`.

It loads modules, says so, and forks a rank at each request. The rank comes back from `serve` and
runs the program, on the same stack, so that its interpreter ends as any other does.

    fork server    fork ---- wait for the middle one ---- let the rank go ---- answer
    middle           `-- fork -- tell the pid -- end
    rank                   `-- wait to be let go: its parent is the launcher now -- program
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
from kadril.launch.forking.rank_setup import become_rank

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
        try:
            pid = fork_rank(launcher)
        except OSError as error:
            answer = {"problem": f"fork: {error.strerror}", "pid": 0}
        else:
            if pid == 0:
                control.close()
                become_rank(request, descriptors, words, launcher)
                return True
            answer = {"problem": "", "pid": pid}
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(answer).encode())


def receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the next request and its descriptors; None where there are no more."""
    numbers = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize)
    data, ancillary, _, _ = control.recvmsg(MAX_REQUEST, space, socket.MSG_CMSG_CLOEXEC)
    for _, _, content in ancillary:
        numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
    return (json.loads(data) if data else None), list(numbers)


def fork_rank(launcher: int) -> int:
    """Fork a rank that is a child of the launcher; return its process id, or 0 in the rank.

    Raises:
        OSError: there can be no further process.
    """
    go_read, go_write = os.pipe()
    pid_read, pid_write = os.pipe()
    try:
        middle = os.fork()
        if middle == 0:
            fork_and_end(pid_write)
            os.close(go_write)
            if os.read(go_read, 1) != b"g" or os.getppid() != launcher:
                os._exit(1)  # the fork server or the launcher is gone
            os.close(go_read)
            return 0
        os.close(pid_write)
        pid_write = -1
        text = os.read(pid_read, 16)
        os.waitpid(middle, 0)  # from here on the rank is a child of the launcher
        if not text:
            raise OSError(0, "no further process (ulimit -u)")
        os.write(go_write, b"g")
        return int(text)
    finally:
        for descriptor in (pid_read, pid_write, go_write, go_read):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def fork_and_end(pid_write: int) -> None:
    """Fork, and end with the child's process id told; returns in the child only."""
    try:
        pid = os.fork()
    except OSError:
        os._exit(1)
    if pid:
        os.write(pid_write, b"%d" % pid)
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

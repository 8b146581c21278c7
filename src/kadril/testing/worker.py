"""A standing rank: `python -m kadril.testing.worker <directory> <index> <parent pid> <output>`.

It connects to the session's socket in that private directory, proves that it could read the secret
there, imports torch, says hello, and then answers requests until the session is done with it.
Started by mpirun, with index "mpi", its index is its rank in the MPI job. What it prints goes to
its own file, or with output "inherit" to where the session prints.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

from kadril.testing.messages import Hello, Quit

__all__ = [
    "SECRET_NAME",
    "SOCKET_NAME",
    "STACK_SIGNAL",
    "main",
    "output_path",
    "redirect_output",
    "stack_path",
]

SOCKET_NAME = "session.sock"
SECRET_NAME = "session.secret"  # noqa: S105 - the name of the file that holds it

# A rank that gets this signal writes where it is; the session asks so of one that does not answer.
STACK_SIGNAL = signal.SIGUSR2


def output_path(directory: Path, index: int) -> Path:
    """Return where a rank prints to."""
    return directory / f"rank-{index}.output"


def stack_path(directory: Path, index: int) -> Path:
    """Return where a rank writes its stacks to when asked."""
    return directory / f"rank-{index}.stack"


def main(arguments: list[str]) -> None:
    """Serve one session."""
    directory, place, parent, output = (
        Path(arguments[0]),
        arguments[1],
        int(arguments[2]),
        arguments[3],
    )
    communicator = None
    if place == "mpi":
        from mpi4py import MPI

        communicator = MPI.COMM_WORLD
        index = communicator.Get_rank()
    else:
        from kadril.launch.local.parent_death import die_with_parent

        index = int(place)
        die_with_parent(parent)
    if output != "inherit":
        redirect_output(output_path(directory, index))
    secret = (directory / SECRET_NAME).read_bytes()
    faulthandler.enable()
    # The stack file is open for the life of the process: a signal handler cannot open it.
    with (
        stack_path(directory, index).open("w") as stacks,
        Client(str(directory / SOCKET_NAME), "AF_UNIX", authkey=secret) as connection,
    ):
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
        serve(connection, index, communicator)
        faulthandler.unregister(STACK_SIGNAL)


def redirect_output(path: Path) -> None:
    """Send what this process prints, in Python or below, to a file."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def serve(connection: Any, index: int, communicator: Any) -> None:
    """Answer requests until told to quit, or until the session is gone."""
    from kadril.frameworks import is_installed
    from kadril.testing.orphans import die_with_connection
    from kadril.testing.request_handler import RequestHandler

    if is_installed("torch"):
        import torch

        # Ranks share the cores; a pool of threads each would fight over them.
        torch.set_num_threads(1)
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    if communicator is not None:
        die_with_connection(connection.fileno())
    handler = RequestHandler(connection, communicator)
    connection.send(Hello(index, os.getpid()))
    while True:
        try:
            number, request = connection.recv()
        except (EOFError, ConnectionResetError):
            break
        if isinstance(request, Quit):
            break
        connection.send(handler.answer(number, request))
    handler.close()
    if communicator is None:
        # Nothing is left to save, and taking torch down piece by piece takes a while. MPI has to be
        # finalized.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

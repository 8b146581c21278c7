"""The fork server: `python -m kadril.testing.fork_server <descriptor> <parent pid>`.

It imports torch once and stays single-threaded, so that a fork of it is a sound process that has
torch imported, some milliseconds old. It reaps no child before it is told to: until then the
child's pid is its own, and the session may send it signals without a doubt whom they reach.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kadril.frameworks import is_installed
from kadril.launch.forking.fork_fitness import why_unfit
from kadril.launch.local.parent_death import die_with_parent
from kadril.testing import worker
from kadril.testing.fork_messages import (
    MAX_MESSAGE,
    Change,
    Done,
    Fork,
    ForkWorker,
    Load,
    Reap,
    Request,
)
from kadril.testing.forked_rank import run_forked_rank
from kadril.testing.target import load_module

__all__ = ["main"]

# What ranks will need, so that not each of them has to import it.
PRELOADED = (
    "torch",
    "torch.distributed",
    "kadril.transport.shm",
    "kadril.transport.tcp",
    "kadril.world",
    "kadril.testing.request_handler",
    "kadril.testing.faults",
)


class ForkServer:
    """Forks ranks and tells the session what becomes of them."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: set[int] = set()  # forked, and not known to have ended
        self.wakeup, self.wakeup_sender = socket.socketpair()
        for end in (self.wakeup, self.wakeup_sender):
            end.setblocking(False)
        # A stop or an end of a child writes to it; the handler itself has nothing to do.
        signal.set_wakeup_fd(self.wakeup_sender.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Handle requests until the session is gone."""
        while True:
            ready, _, _ = select.select([self.control, self.wakeup], [], [])
            if self.wakeup in ready:
                self.wakeup.recv(4096)
                self.tell_changes()
            if self.control in ready and not self.handle_request():
                return

    def handle_request(self) -> bool:
        """Handle one request; return False if there are no more."""
        message, descriptors, _, _ = socket.recv_fds(self.control, MAX_MESSAGE, 2)
        if not message:
            return False
        request: Request = pickle.loads(message)
        try:
            if isinstance(request, Fork):
                answer = Done(self.fork(request, descriptors))
            elif isinstance(request, ForkWorker):
                answer = Done(self.fork_worker(request))
            elif isinstance(request, Load):
                answer = self.load(request)
            else:
                answer = self.reap(request)
        except BaseException:
            answer = Done(problem=traceback.format_exc())
        self.control.send(pickle.dumps(answer))
        return True

    def load(self, request: Load) -> Done:
        """Import the module of a test, if that leaves this process fit to fork."""
        sys.path[:] = request.import_path
        load_module(request.target.path, request.target.module)
        gc.collect()
        gc.freeze()  # so that a collection in a rank does not touch, and copy, every page
        return Done(problem=why_unloadable(request.target.module))

    def fork(self, request: Fork, descriptors: list[int]) -> int:
        """Fork a rank."""
        pid = os.fork()
        if pid == 0:
            for end in (self.control, self.wakeup, self.wakeup_sender):
                end.close()
            connection: Connection[Any, Any] = Connection(descriptors[0])
            listener = socket.socket(fileno=descriptors[1]) if len(descriptors) > 1 else None
            run_forked_rank(
                connection, listener, request.rank, Path(request.directory), request.namespaces
            )
        for descriptor in descriptors:
            os.close(descriptor)
        self.children.add(pid)
        return pid

    def fork_worker(self, request: ForkWorker) -> int:
        """Fork a rank of the standing pool."""
        pid = os.fork()
        if pid == 0:
            for end in (self.control, self.wakeup, self.wakeup_sender):
                end.close()
            run_forked_worker(request)
        self.children.add(pid)
        return pid

    def reap(self, request: Reap) -> Done:
        """Wait for children that were reported as ended."""
        for pid in request.pids:
            os.waitpid(pid, 0)
            self.children.discard(pid)
        return Done()

    def tell_changes(self) -> None:
        """Tell the session which children have stopped, continued or ended."""
        at = time.monotonic()
        for pid in sorted(self.children):
            end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if end is not None:
                code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
                self.children.discard(pid)
                self.tell(Change(pid, "ended", at, code))
            else:
                self.tell_pauses(pid, at)

    def tell_pauses(self, pid: int, at: float) -> None:
        """Tell the session that a child has stopped or continued."""
        # One that ends meanwhile has no such news any more, and there is another signal.
        with contextlib.suppress(ChildProcessError):
            while change := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                went_on = change.si_code == os.CLD_CONTINUED
                self.tell(Change(pid, "continued" if went_on else "stopped", at))

    def tell(self, change: Change) -> None:
        """Send a change to the session."""
        self.control.send(pickle.dumps(change))


def run_forked_worker(request: ForkWorker) -> None:
    """Be a rank of the standing pool, in a process that was just forked; does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.environ.clear()
        os.environ.update(request.environment)
        worker.main([*request.arguments, str(os.getppid()), "file"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)  # a rank that ends as it should has ended before


def why_unloadable(module: str) -> str:
    """Return why this process must not fork after this import, or an empty string."""
    reason = why_unfit(f"importing {module}")
    if not reason:
        return ""
    return f"{reason}, so a fork would not be sound; start them inside the function of the test"


def main(arguments: list[str]) -> None:
    """Serve one session."""
    control = socket.socket(fileno=int(arguments[0]))
    die_with_parent(int(arguments[1]))
    problem = ""
    try:
        for name in PRELOADED:
            if is_installed(name.partition(".")[0]):
                importlib.import_module(name)
        problem = why_unloadable("torch")
    except BaseException:
        problem = traceback.format_exc()
    control.send(pickle.dumps(Done(problem=problem)))
    ForkServer(control).serve()


if __name__ == "__main__":
    main(sys.argv[1:])

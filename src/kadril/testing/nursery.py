"""The nursery: `python -m kadril.testing.nursery <descriptor> <parent pid>` forks ranks.

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

from kadril.testing.disposable import live
from kadril.testing.orders import MAX_MESSAGE, Change, Done, Fork, Load, Order, Reap
from kadril.testing.orphans import die_with_parent
from kadril.testing.target import load_module

__all__ = ["main"]

# What ranks will need, so that not each of them has to import it.
PRELOADED = (
    "torch",
    "torch.distributed",
    "kadril.transport.shm",
    "kadril.world",
    "kadril.testing.desk",
    "kadril.testing.faults",
)


class Nursery:
    """Forks ranks and tells what becomes of them."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.children: set[int] = set()  # forked, and not known to have ended
        self.wakeup, self.bell = socket.socketpair()
        for end in (self.wakeup, self.bell):
            end.setblocking(False)
        # A stop or an end of a child rings; the handler itself has nothing to do.
        signal.set_wakeup_fd(self.bell.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Take orders until the session is gone."""
        while True:
            ready, _, _ = select.select([self.control, self.wakeup], [], [])
            if self.wakeup in ready:
                self.wakeup.recv(4096)
                self.tell_changes()
            if self.control in ready and not self.take_order():
                return

    def take_order(self) -> bool:
        """Carry out one order; False if there are no more."""
        message, descriptors, _, _ = socket.recv_fds(self.control, MAX_MESSAGE, 2)
        if not message:
            return False
        order: Order = pickle.loads(message)
        try:
            if isinstance(order, Fork):
                answer = Done(self.fork(order, descriptors))
            elif isinstance(order, Load):
                answer = self.load(order)
            else:
                answer = self.reap(order)
        except BaseException:
            answer = Done(trouble=traceback.format_exc())
        self.control.send(pickle.dumps(answer))
        return True

    def load(self, order: Load) -> Done:
        """Import the module of a test, if that leaves this process fit to fork."""
        sys.path[:] = order.import_path
        load_module(order.target.path, order.target.module)
        gc.collect()
        gc.freeze()  # so that a collection in a rank does not touch, and copy, every page
        return Done(trouble=why_unfit(order.target.module))

    def fork(self, order: Fork, descriptors: list[int]) -> int:
        """Fork a rank."""
        pid = os.fork()
        if pid == 0:
            for end in (self.control, self.wakeup, self.bell):
                end.close()
            connection: Connection[Any, Any] = Connection(descriptors[0])
            listener = socket.socket(fileno=descriptors[1]) if len(descriptors) > 1 else None
            live(connection, listener, order.rank, Path(order.directory))
        for descriptor in descriptors:
            os.close(descriptor)
        self.children.add(pid)
        return pid

    def reap(self, order: Reap) -> Done:
        """Wait for children that were told as ended."""
        for pid in order.pids:
            os.waitpid(pid, 0)
            self.children.discard(pid)
        return Done()

    def tell_changes(self) -> None:
        """Tell the session which children have stopped, gone on or ended."""
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
        """Tell the session that a child has stopped or gone on."""
        # One that ends meanwhile has no such news any more, and rings again.
        with contextlib.suppress(ChildProcessError):
            while change := os.waitid(os.P_PID, pid, os.WSTOPPED | os.WCONTINUED | os.WNOHANG):
                went_on = change.si_code == os.CLD_CONTINUED
                self.tell(Change(pid, "continued" if went_on else "stopped", at))

    def tell(self, change: Change) -> None:
        """Send a change to the session."""
        self.control.send(pickle.dumps(change))


def why_unfit(module: str) -> str:
    """Why this process must not fork, or nothing."""
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    if len(names) == 1:
        return ""
    return (
        f"importing {module} has started threads ({', '.join(sorted(names))}), so a fork would not"
        " be sound; start them inside the function of the test"
    )


def main(arguments: list[str]) -> None:
    """Serve one session."""
    control = socket.socket(fileno=int(arguments[0]))
    die_with_parent(int(arguments[1]))
    trouble = ""
    try:
        for name in PRELOADED:
            importlib.import_module(name)
        trouble = why_unfit("torch")
    except BaseException:
        trouble = traceback.format_exc()
    control.send(pickle.dumps(Done(trouble=trouble)))
    Nursery(control).serve()


if __name__ == "__main__":
    main(sys.argv[1:])

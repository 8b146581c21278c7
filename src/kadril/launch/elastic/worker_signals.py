"""Signals that the launcher passes on to workers without ending any of them.

    bash train.sh          no handler: the signal would end it, and with it the worker
      `- python train.py   has one, and gets the signal

Spare processes wait in `init()` and new ones are on their way: they have no handlers yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path

from kadril.launch.elastic.worker_set import WorkerSet
from kadril.world.job_messages import MessageKind

__all__ = ["signal_handlers", "tell_of_end", "tell_to_commit"]


def tell_to_commit(workers: WorkerSet) -> None:
    """Have ranks commit; those that are about to enter `elastic.run` find the message there."""
    for worker in workers.busy or workers.by_place.values():
        worker.send(MessageKind.PREEMPT, leaves=False)


def tell_of_end(workers: WorkerSet, *, leaves: bool) -> None:
    """Have all ranks commit at the same step, and leave then if they are to.

    Those that wait for the next generation commit there, unless they are to leave.
    """
    for worker in workers.by_place.values():
        if worker.rank >= 0 and not (leaves and worker.is_ready):
            worker.send(MessageKind.PREEMPT, leaves=leaves)


def signal_handlers(groups: Collection[int], signum: int) -> bool:
    """Send a signal to the processes of some process groups that have a handler for it.

    Returns:
        whether there are any.
    """
    # Imported here: most jobs are sent no signal.
    from kadril.observe.rank_stacks import catches

    has_any = False
    for process in Path("/proc").iterdir():
        # A process may go at any moment of this.
        with contextlib.suppress(OSError):
            if process.name.isdecimal() and group_of(process) in groups:
                pid = int(process.name)
                if catches(pid, signum):
                    os.kill(pid, signal.Signals(signum))
                    has_any = True
    return has_any


def group_of(process: Path) -> int:
    """Return the process group of a process, by its directory in /proc."""
    fields = (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    return int(fields.split()[2])

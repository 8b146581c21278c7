"""The program of a rank: it does what the driver says, and sleeps in between.

    python -m kadril.bench.rank <address of the driver> <job>

Which rank of how many it is comes from the launcher that started it, by `kadril.init()`.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from functools import partial
from pathlib import Path

import kadril
from kadril.bench.engines import Engine, open_engines
from kadril.bench.link import Link, LinkLost, connect
from kadril.bench.task import Answer, Task
from kadril.bench.timing import take_samples
from kadril.bench.workload import Workload
from kadril.world import World

__all__ = ["main"]

LEAVE_SECONDS = 5.0


class Worker:
    """One rank of a job."""

    def __init__(self, job: str, link: Link) -> None:
        self.link = link
        self.cores = sorted(os.sched_getaffinity(0))
        self.world: World = kadril.init(transport="shm")
        self.engines: dict[str, Engine] = open_engines(job, self.world)
        self.is_pinned = False

    def greet(self) -> None:
        """Tell the driver which rank of which job this process is."""
        self.link.send(
            {
                "rank": self.world.rank,
                "size": self.world.size,
                "pid": os.getpid(),
                "versions": {name: engine.version() for name, engine in self.engines.items()},
            }
        )

    def serve(self) -> None:
        """Do tasks until the driver has no more."""
        cpu, wall = time.process_time(), time.monotonic()
        while True:
            message = self.link.receive()
            idle = {"idle_cpu": time.process_time() - cpu, "idle_wall": time.monotonic() - wall}
            if message["do"] == "quit":
                return
            answer = self.answer(message)
            self.link.send({**answer.to_json(), **idle})
            cpu, wall = time.process_time(), time.monotonic()

    def answer(self, message: dict[str, object]) -> Answer:
        """Do one task."""
        if message.pop("do") == "rest":
            return Answer()
        try:
            return Answer(seconds=tuple(self.measure(Task.from_json(message))))
        except Exception as error:
            return Answer(error=f"{type(error).__name__}: {error}")

    def measure(self, task: Task) -> list[float]:
        """Take the samples of a task."""
        self.pin(task.pinned)
        engine = self.engines[task.engine]
        kind = "copy" if task.engine == "copy" else task.collective
        work = Workload(
            kind,
            task.num_bytes,
            self.world.rank,
            self.world.size,
            allocate=partial(engine.allocate, memory=task.memory),
            look=engine.look,
        )
        call = engine.bind(work)
        if task.check:
            work.check(call)
        return take_samples(
            call,
            barrier=self.world.transport.barrier,
            touch=work.touch if task.touch else None,
            num_calls=task.num_calls,
            num_samples=task.num_samples,
        )

    def pin(self, pinned: bool) -> None:
        """Hold the whole process, helper threads too, on one core; or let it go."""
        if pinned == self.is_pinned:
            return
        cores = {self.cores[self.world.rank % len(self.cores)]} if pinned else set(self.cores)
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread.name), cores)
        self.is_pinned = pinned

    def close(self) -> None:
        """Leave engines and world."""
        for engine in self.engines.values():
            engine.close()
        kadril.shutdown()


def leave_with(link: Link) -> None:
    """End this process when the driver ends, whatever it is doing; costs nothing until then."""
    hung_up = select.poll()
    hung_up.register(link, select.POLLRDHUP)
    hung_up.poll()
    # A rank that is well finds out by itself, and leaves as it should: an MPI that is not finalized
    # leaves files in /dev/shm.
    time.sleep(LEAVE_SECONDS)
    os._exit(1)


def main(argv: list[str]) -> int:
    """Serve the driver at an address as a rank of a job."""
    address, job = argv
    link = connect(address)
    threading.Thread(target=leave_with, args=(link,), daemon=True).start()
    try:
        worker = Worker(job, link)
    except Exception as error:
        link.send({"error": f"{type(error).__name__}: {error}"})
        raise
    worker.greet()
    with contextlib.suppress(LinkLost):
        worker.serve()
    worker.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

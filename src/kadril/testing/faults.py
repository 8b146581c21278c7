"""Fault injection: ranks that may be killed, stopped, or made to fail at a named point.

    def sum_of_ones(world):
        total = torch.ones(1 << 20)
        world.transport.allreduce(total)
        return total[0].item()

    def test_death_in_allreduce():
        with Ranks(3) as ranks:
            ranks.fault(1, "allreduce.mid_copy:kill").start(sum_of_ones)
            survivor, victim, other = ranks.wait(5.0)
        assert victim.signal == signal.SIGKILL
        assert survivor.error.type == other.error.type == "PeerLost"
        assert survivor.error.fields["rank"] == 1
        assert survivor.delay < 1.0

Each rank is a process of its own, forked from one that has torch imported, and gone after the test:
a round of three ranks takes some tens of milliseconds. Nothing in such a test needs to sleep:
`mark` and `gate` in the function, `wait_mark` and `open_gate` in the test let the two wait for each
other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from kadril.errors import StateError
from kadril.testing.fork_client import current_fork_client
from kadril.testing.fork_messages import Change
from kadril.testing.forked_rank import Assignment, Finished, Gate, Mark, pass_gate, set_mark
from kadril.testing.messages import Open
from kadril.testing.outcome import ErrorReport, Outcome
from kadril.testing.process import ask_for_stacks, read_tail
from kadril.testing.rendezvous import Rendezvous, make_directory, remove_directory
from kadril.testing.starting import PoolError
from kadril.testing.target import locate
from kadril.testing.worker import STACK_SIGNAL, output_path, stack_path
from kadril.testing.worlds import world_key

if TYPE_CHECKING:
    from kadril.testing.host_network import HostNetwork

__all__ = ["ErrorReport", "Outcome", "Ranks", "fault_points", "gate", "mark"]

# Signals whose sending is itself the fault that `Outcome.delay` counts from.
FAULTS = frozenset({signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGABRT, signal.SIGSEGV})

KILL_TIMEOUT = 10.0


def fault_points() -> list[str]:
    """Return the named points of the native core, such as "allreduce.mid_copy"."""
    from kadril import _native

    return list(_native.fault_points())


def mark(label: str) -> None:
    """Say, in a rank, that it has reached a mark; see `Ranks.wait_mark`."""
    set_mark(label)


def gate(label: str) -> None:
    """Wait, in a rank, until the test opens this gate; see `Ranks.open_gate`."""
    pass_gate(label)


class Ranks:
    """Disposable ranks of one world.

    Args:
        size: how many there are.
        transport: of the world that functions get as their first argument: "shm", "c10d" or "tcp".
            With None there is no world, and functions get `rank` and `size` as their first two
            arguments.
        network: the hosts that the ranks are on, in their order, as many as each is to have; ranks
            meet over the network then. They see the machine's files and processes.
        options: options of `kadril.config.Config` for the world, such as `patience=0.5`; and
            `hosts`, such as "3+2", by which ranks take each other for ranks of several hosts.
    """

    # Called with the outcomes when the ranks are let go: for those who keep statistics.
    observers: ClassVar[list[Callable[[list[Outcome]], None]]] = []

    def __init__(
        self,
        size: int,
        *,
        transport: str | None = "shm",
        network: HostNetwork | None = None,
        **options: object,
    ) -> None:
        self.size = size
        self.hosts = [] if network is None else [h for h in network.hosts for _ in range(h.ranks)]
        if network is not None and len(self.hosts) != size:
            raise ValueError(
                f"{network.slots} has {len(self.hosts)} ranks, and {size} are asked for"
            )
        self.key = None if transport is None else world_key(transport, size, options)
        self.outcomes = [Outcome(rank) for rank in range(size)]
        self.connections: dict[int, Connection[Any, Any]] = {}
        self.faults: dict[int, str] = {}
        self.faults_at_open: dict[int, str] = {}
        self.fault_time: float | None = None
        self.rendezvous: Rendezvous | None = None
        self.at_gate: list[str] = [""] * size

    def __enter__(self) -> Ranks:
        self.fork_client = current_fork_client()
        self.directory = make_directory("ranks")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                for observe in self.observers:
                    observe(self.look())
            if kind is None and self.fork_client.is_open:
                self.finish()
        finally:
            self.end()

    def fault(self, rank: int, spec: str, *, at_open: bool = False) -> Ranks:
        """Arm a named point in one rank: "point:action", with "#n" behind it for its n-th hit.

        Actions are kill, stop and abort. Points are armed when the rank has its world, so that hits
        are those of the function; or, `at_open`, before it gets one.
        """
        (self.faults_at_open if at_open else self.faults)[rank] = spec
        return self

    def start(self, function: Callable[..., Any], *arguments: object) -> Ranks:
        """Call `function(world, *arguments)` on every rank that lives; returns at once.

        The first call forks the ranks, which then open their world. A later one is for the
        survivors.
        """
        target = locate(function)
        payload = pickle.dumps(arguments)
        if not self.connections:
            self.fork_client.load(target)
            self.fork()
        for rank, connection in self.connections.items():
            outcome = self.outcomes[rank]
            if not outcome.alive:
                continue
            outcome.value, outcome.error, outcome.finished, outcome.delay = None, None, None, None
            outcome.marks = []
            way = self.way_in(rank)
            faults = (self.faults_at_open.pop(rank, ""), self.faults.pop(rank, ""))
            with contextlib.suppress(OSError):  # it has just ended; the fork server reports how
                connection.send(Assignment(target, payload, rank, self.size, way, *faults))
        return self

    def fork(self) -> None:
        """Make the processes."""
        if self.key is not None:
            self.rendezvous = Rendezvous(self.directory, "world", self.size)
        for rank in range(self.size):
            ours, theirs = Pipe()
            self.connections[rank] = ours
            descriptors = [theirs.fileno()]
            if rank == 0 and self.rendezvous is not None:
                descriptors.append(self.rendezvous.socket.fileno())
            namespaces = self.hosts[rank].namespaces.files("net", "uts") if self.hosts else []
            with theirs:
                self.outcomes[rank].pid = self.fork_client.fork(
                    rank, self.directory, descriptors, self.hearer(rank), namespaces
                )
        if self.rendezvous is not None:
            self.rendezvous.socket.close()  # rank 0 has it; if that dies, nobody must wait at ours

    def way_in(self, rank: int) -> Open | None:
        """Return how a rank gets its world."""
        if self.rendezvous is None or self.key is None:
            return None
        place = self.rendezvous
        address = self.hosts[0].address if self.hosts else ""
        return Open(self.key, rank, str(place.path), place.secret, place.job, rank == 0, address)

    def signal(self, rank: int, number: int) -> Ranks:
        """Send a signal to a rank; if it is SIGKILL or the like, this is the time of the fault.

        With SIGSTOP and SIGCONT the rank has stopped, or continued, when this returns.
        """
        outcome = self.outcomes[rank]
        if not outcome.pid or not outcome.alive:
            raise StateError(f"rank {rank} has no process to send a signal to: {outcome}")
        if number in FAULTS:
            self.note_fault(time.monotonic())
        os.kill(outcome.pid, number)
        if number in (signal.SIGSTOP, signal.SIGCONT):
            stop = number == signal.SIGSTOP
            self.pump(lambda: outcome.stopped == stop or not outcome.alive, KILL_TIMEOUT)
        return self

    def wait(self, timeout: float = 10.0) -> list[Outcome]:
        """Wait until every rank has returned, raised or ended, or is stopped.

        Returns what became of each. Ranks that returned or raised keep their world open, so that
        nobody takes their end for a fault. One that hangs after `timeout` seconds has `hung`, and
        its `stacks`.
        """
        if not self.pump(lambda: not any(outcome.hung for outcome in self.outcomes), timeout):
            for outcome in self.outcomes:
                if outcome.hung:
                    stacks = stack_path(self.directory, outcome.rank)
                    outcome.stacks = ask_for_stacks(outcome.pid, stacks, STACK_SIGNAL)
        return self.look()

    def wait_mark(
        self, label: str, *, ranks: Sequence[int] | None = None, timeout: float = 10.0
    ) -> Ranks:
        """Wait until ranks, or all that live, have called `mark(label)` or `gate(label)`.

        Raises:
            StateError: one will not come any more, with what became of it.
            TimeoutError: one has not come in time.
        """
        alive = [outcome.rank for outcome in self.outcomes if outcome.alive]
        awaited = [self.outcomes[rank] for rank in (alive if ranks is None else ranks)]

        def missing() -> list[Outcome]:
            return [outcome for outcome in awaited if label not in outcome.marks]

        def lost() -> list[Outcome]:
            return [outcome for outcome in missing() if outcome.finished or outcome.ended]

        came = self.pump(lambda: bool(lost()) or not missing(), timeout)
        if lost():
            story = "\n".join(str(outcome) for outcome in lost())
            raise StateError(f"never at mark {label!r}:\n{story}")
        if not came:
            story = "\n".join(str(outcome) for outcome in self.wait(timeout=0.0))
            raise TimeoutError(f"not all at mark {label!r} within {timeout:g} s:\n{story}")
        return self

    def open_gate(self, label: str) -> Ranks:
        """Let the ranks pass that wait at `gate(label)` now."""
        for rank, waiting in enumerate(self.at_gate):
            if waiting == label and self.outcomes[rank].alive:
                self.at_gate[rank] = ""
                self.connections[rank].send(Gate(label))
        return self

    def finish(self, timeout: float = 5.0) -> list[Outcome]:
        """Have the ranks that returned or raised close their world and exit.

        Returns what became of each. A rank that is still in its function, or stopped, or cannot
        close its world in time, is left to be killed.
        """
        for connection in self.connections.values():
            connection.close()

        def leaving() -> bool:
            return any(
                outcome.alive and outcome.finished is not None and not outcome.stopped
                for outcome in self.outcomes
            )

        self.pump(lambda: not leaving(), timeout)
        return self.look()

    def end(self) -> None:
        """Kill what is left, and leave nothing."""
        try:
            if self.fork_client.is_open:  # else the kernel has killed its ranks, and reaped them
                self.kill()
        finally:
            for connection in self.connections.values():
                connection.close()
            if self.rendezvous is not None:
                self.rendezvous.close()
            remove_directory(self.directory)

    def kill(self) -> None:
        """Kill what is left, and have it reaped."""
        for outcome in self.forked():
            if outcome.alive:
                os.kill(outcome.pid, signal.SIGKILL)
        if not self.pump(lambda: not any(rank.alive for rank in self.forked()), KILL_TIMEOUT):
            raise PoolError(f"ranks outlived SIGKILL by {KILL_TIMEOUT:g} s: {self.outcomes}")
        self.fork_client.reap([outcome.pid for outcome in self.forked()])

    def forked(self) -> list[Outcome]:
        """Return the ranks that have a process, living or not."""
        return [outcome for outcome in self.outcomes if outcome.pid]

    def look(self) -> list[Outcome]:
        """Return the outcomes as they are, with what the ranks have printed."""
        for outcome in self.outcomes:
            outcome.output = read_tail(output_path(self.directory, outcome.rank))
            if outcome.finished is not None and self.fault_time is not None:
                # The fork server may hear of a death later than the ranks do.
                outcome.delay = max(0.0, outcome.finished - self.fault_time)
        return self.outcomes

    def pump(self, done: Callable[[], bool], timeout: float) -> bool:
        """Take what ranks and fork server say until `done`; return False if that takes too long."""
        deadline = time.monotonic() + timeout
        while not done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            talking = [end for end in self.connections.values() if not end.closed]
            for ready in wait([self.fork_client.control, *talking], left):
                if ready is self.fork_client.control:
                    self.fork_client.receive()
                else:
                    self.hear_rank(ready)
        return True

    def hear_rank(self, connection: Any) -> None:
        """Take one message of a rank."""
        rank = next(rank for rank, end in self.connections.items() if end is connection)
        try:
            message = connection.recv()
        except (EOFError, OSError):
            connection.close()  # the fork server reports how it ended
            return
        outcome = self.outcomes[rank]
        if isinstance(message, Finished):
            outcome.finished, outcome.error = message.at, message.error
            outcome.value = pickle.loads(message.value) if message.value else None
        elif isinstance(message, Mark | Gate):
            outcome.marks.append(message.label)
            self.at_gate[rank] = message.label if isinstance(message, Gate) else ""

    def hearer(self, rank: int) -> Callable[[Change], None]:
        """Return what hears of the stops and the end of a rank's process."""
        outcome = self.outcomes[rank]

        def hear(change: Change) -> None:
            outcome.stopped = change.state == "stopped"
            if change.state == "ended":
                outcome.ended = change.at
                outcome.exit_code = change.code if change.code >= 0 else None
                outcome.signal = -change.code if change.code < 0 else None
            if outcome.stopped or outcome.signal is not None:
                self.note_fault(change.at)

        return hear

    def note_fault(self, at: float) -> None:
        """Remember when the first fault was."""
        if self.fault_time is None:
            self.fault_time = at

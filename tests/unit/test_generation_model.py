"""All interleavings of the elastic generation change: survivors and newcomers form the next one.

A model of launcher and workers, with the ranks of the real `assign_ranks`. Messages between them
stay in order; processes die at any moment, and the launcher hears of it later.

    worker    NEW ---READY--> WAITING ---ROSTER--> MEETING ---all are there--> SYNCING --> TRAINING
                                 ^                    |           a peer died    |            |
                                 `----- READY --------+-- LOST of this generation, or PeerLost'

A worker that trains may be told to leave. Its generation ends at a commit then, and the next one is
without it; where nobody else has the state, there is one before, only to hand that over.

Checked in every state: rank 0 of a generation has the state of the job; ranks are those from 0 up;
never two generations that could both go on. And in every state in which nothing can happen any
more: all workers that live train in the same generation, or nobody lives who has the state. Where
none has died, the state is not lost as long as somebody stays.

A check that cannot fail shows nothing: the protocol broken in one line must be found out.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import cast

import pytest

from kadril.launch.elastic.worker import Worker
from kadril.launch.elastic.worker_set import assign_ranks


class Phase(enum.IntEnum):
    """State of a process; see the top of this file."""

    NEW, WAITING, MEETING, SYNCING, TRAINING, DEAD = range(6)  # DEAD: or has left


class Break(enum.Enum):
    """A line of the protocol that is left out or wrong."""

    NONE = enum.auto()
    TELLS_NOBODY_OF_A_DEATH = enum.auto()
    FORGETS_WHICH_GENERATION_WAS_LOST = enum.auto()
    DOES_NOT_WAIT_FOR_THE_BUSY = enum.auto()
    GIVES_RANK_0_TO_ANYBODY = enum.auto()
    LETS_THE_LAST_LEAVE_AT_ONCE = enum.auto()
    KEEPS_THE_ONE_THAT_LEAVES = enum.auto()


@dataclasses.dataclass(frozen=True)
class Process:
    """A worker: the process itself, what the launcher knows of it, and what is on its way."""

    place: int
    phase: Phase = Phase.NEW
    generation: int = -1
    has_state: bool = False
    lost: int = -1  # newest generation of which it heard that a rank has died
    # known to the launcher
    rank: int = -1
    is_ready: bool = False
    is_synced: bool = False
    is_gone: bool = False
    is_leaving: bool = False
    to_launcher: tuple[str, ...] = ()
    to_worker: tuple[tuple[str, int], ...] = ()


@dataclasses.dataclass(frozen=True)
class Job:
    """All processes there have been, and the ranks of each generation."""

    processes: tuple[Process, ...]
    rosters: tuple[tuple[int, ...], ...] = ()  # places by rank, of each generation
    hands_over: tuple[bool, ...] = ()  # whether nobody trains in a generation
    updated: int = -1  # newest generation that was told to end at its next commit
    num_kills: int = 1
    num_starts: int = 1
    num_leaves: int = 0

    def put(self, *changed: Process) -> Job:
        """Return this job with some processes changed."""
        by_place = {process.place: process for process in (*self.processes, *changed)}
        return dataclasses.replace(self, processes=tuple(by_place.values()))


class WrongError(AssertionError):
    """Something that must hold in every state does not."""


def moves(job: Job, broken: Break) -> Iterator[Job]:
    """Yield what may happen next."""
    for process in job.processes:
        if process.phase is not Phase.DEAD:
            yield from worker_moves(job, process, broken)
            if job.num_kills and process.phase is not Phase.NEW:
                dead = dataclasses.replace(process, phase=Phase.DEAD)
                yield dataclasses.replace(job.put(dead), num_kills=job.num_kills - 1)
            if job.num_leaves and process.phase is Phase.TRAINING and not process.is_leaving:
                leaving = dataclasses.replace(process, is_leaving=True)
                yield dataclasses.replace(
                    job.put(leaving), num_leaves=job.num_leaves - 1, updated=process.generation
                )
        if process.to_launcher:
            yield job.put(hear(process))
        elif process.phase is Phase.DEAD and not process.is_gone:
            yield notice_death(job, process, broken)
    yield from launcher_moves(job, broken)


def worker_moves(job: Job, process: Process, broken: Break) -> Iterator[Job]:
    """Yield what a process may do next."""
    if process.phase is Phase.NEW:
        yield job.put(say_ready(process))
    elif process.to_worker:
        yield job.put(take_message(process, broken))
    elif process.phase is Phase.MEETING:
        if process.lost >= process.generation:
            yield job.put(say_ready(process))
        elif is_whole(job, process.generation):
            yield job.put(dataclasses.replace(process, phase=Phase.SYNCING))
    elif process.phase in (Phase.SYNCING, Phase.TRAINING):
        if not is_whole(job, process.generation):
            # PeerLost: one has died, or has left this generation since one had died.
            yield job.put(say_ready(process))
        elif process.phase is Phase.TRAINING and is_over(job, process.generation):
            yield job.put(say_ready(process))
        if process.phase is Phase.SYNCING and can_sync(job, process):
            said = (*process.to_launcher, "SYNCED")
            yield job.put(
                dataclasses.replace(process, phase=Phase.TRAINING, has_state=True, to_launcher=said)
            )


def say_ready(process: Process) -> Process:
    """Return a process that has left its generation and waits for the next."""
    said = (*process.to_launcher, "READY")
    return dataclasses.replace(process, phase=Phase.WAITING, to_launcher=said)


def take_message(process: Process, broken: Break) -> Process:
    """Return a process that has read the next message of the launcher."""
    (kind, number), *rest = process.to_worker
    process = dataclasses.replace(process, to_worker=tuple(rest))
    if kind == "LOST":
        forgets = broken is Break.FORGETS_WHICH_GENERATION_WAS_LOST
        return dataclasses.replace(process, lost=99 if forgets else max(process.lost, number))
    if process.phase is not Phase.WAITING:
        raise WrongError("a roster came to a process that does not wait for one")
    return dataclasses.replace(process, phase=Phase.MEETING, generation=number)


def can_sync(job: Job, process: Process) -> bool:
    """Whether rank 0 has given its state to this process, or is this process."""
    members = of_generation(job, process.generation)
    first = members[0]
    if not first.has_state and any(each.has_state for each in members):
        raise WrongError("rank 0 does not have the state that another rank has")
    trains = is_with(first, process.generation) and first.phase is Phase.TRAINING
    return first.place == process.place or trains


def is_over(job: Job, generation: int) -> bool:
    """Whether a generation ends though nobody has died: at a commit, or when all have the state."""
    members = of_generation(job, generation)
    if job.hands_over[generation]:
        return all(each.has_state for each in members)
    return job.updated >= generation and all(each.phase is Phase.TRAINING for each in members)


def is_whole(job: Job, generation: int) -> bool:
    """Whether all ranks of a generation live, and none has left it."""
    return all(is_with(each, generation) for each in of_generation(job, generation))


def of_generation(job: Job, generation: int) -> list[Process]:
    """Return the processes of a generation, by rank."""
    by_place = {process.place: process for process in job.processes}
    return [by_place[place] for place in job.rosters[generation]]


def is_with(process: Process, generation: int) -> bool:
    """Whether a process lives and has not left a generation."""
    return process.generation == generation and process.phase in (
        Phase.MEETING,
        Phase.SYNCING,
        Phase.TRAINING,
    )


def hear(process: Process) -> Process:
    """Return a process of which the launcher has heard the next message."""
    kind, *rest = process.to_launcher
    process = dataclasses.replace(process, to_launcher=tuple(rest))
    if kind == "SYNCED":
        return dataclasses.replace(process, is_synced=True)
    return dataclasses.replace(process, is_ready=True)


def notice_death(job: Job, process: Process, broken: Break) -> Job:
    """Return the job after the launcher has seen an exit."""
    changed = [dataclasses.replace(process, is_gone=True)]
    if process.rank >= 0 and broken is not Break.TELLS_NOBODY_OF_A_DEATH:
        lost = ("LOST", len(job.rosters) - 1)
        changed += [
            dataclasses.replace(other, to_worker=(*other.to_worker, lost))
            for other in job.processes
            if other.place != process.place and not other.is_gone
        ]
    return job.put(*changed)


def launcher_moves(job: Job, broken: Break) -> Iterator[Job]:
    """Yield what the launcher may do: start a worker, or announce the next generation."""
    living = [process for process in job.processes if not process.is_gone]
    staying = [process for process in living if not process.is_leaving]
    if job.num_starts and job.rosters and len(staying) < min(len(job.rosters[0]), 2):
        started = Process(len(job.processes))
        yield dataclasses.replace(job.put(started), num_starts=job.num_starts - 1)
        return
    busy = [each for each in living if each.rank >= 0 and not each.is_ready]
    starting = [each for each in living if each.rank < 0 and not each.is_ready]
    ready = [each for each in living if each.is_ready]
    waits = bool(busy) and broken is not Break.DOES_NOT_WAIT_FOR_THE_BUSY
    had_state = any(each.is_synced for each in job.processes)
    if waits or starting or not ready or (had_state and not any(e.is_synced for e in ready)):
        return
    candidates = [each for each in ready if not each.is_leaving]
    holders = [each for each in ready if each.is_leaving and each.is_synced]
    keeps = broken is Break.KEEPS_THE_ONE_THAT_LEAVES
    must_hand_over = had_state and not any(each.is_synced for each in candidates)
    if broken is Break.LETS_THE_LAST_LEAVE_AT_ONCE:
        must_hand_over = False
    if must_hand_over and candidates:
        yield announce(job, [holders[0], *candidates], had_state, broken, hands_over=True)
    elif keeps and holders and candidates:
        yield announce(job, [holders[0], *candidates], had_state, broken)
    elif candidates or not must_hand_over:
        left = [
            dataclasses.replace(each, phase=Phase.DEAD, is_gone=True)
            for each in ready
            if each.is_leaving
        ]
        job = job.put(*left)
        yield announce(job, candidates, had_state, broken) if candidates else job


@dataclasses.dataclass
class Seat:
    """Part of a process that `assign_ranks` looks at."""

    place: int
    rank: int
    has_state: bool


def announce(
    job: Job, ready: list[Process], had_state: bool, broken: Break, *, hands_over: bool = False
) -> Job:
    """Return the job after rosters were sent."""
    seats = [Seat(each.place, each.rank, each.is_synced) for each in ready]
    need_state = had_state and broken is not Break.GIVES_RANK_0_TO_ANYBODY
    if need_state and not any(seat.has_state for seat in seats):
        raise WrongError("the launcher cannot choose a rank 0 that has the state")
    chosen = assign_ranks(cast("list[Worker]", seats), need_state=need_state)
    places = tuple(each.place for each in chosen)
    if sorted(places) != sorted(each.place for each in ready):
        raise WrongError("a worker has two ranks, or none")
    generation = len(job.rosters)
    changed = [
        dataclasses.replace(
            each,
            rank=places.index(each.place),
            is_ready=False,
            to_worker=(*each.to_worker, ("ROSTER", generation)),
        )
        for each in ready
    ]
    return dataclasses.replace(
        job.put(*changed),
        rosters=(*job.rosters, places),
        hands_over=(*job.hands_over, hands_over),
    )


def check_always(job: Job) -> None:
    """Make sure that no two generations could both go on."""
    whole = [number for number in range(len(job.rosters)) if is_whole(job, number)]
    if len(whole) > 1:
        raise WrongError(f"generations {whole} could both go on")


def check_end(job: Job) -> None:
    """Make sure that a job in which nothing can happen trains, or is lost by right."""
    living = [process for process in job.processes if process.phase is not Phase.DEAD]
    trains = all(
        each.phase is Phase.TRAINING and each.generation == len(job.rosters) - 1 for each in living
    )
    had_state = any(process.is_synced for process in job.processes)
    is_lost = not living or (had_state and not any(process.is_synced for process in living))
    is_lost = is_lost or all(each.is_leaving for each in living)  # and nobody comes
    if any(each.is_leaving and each.phase is Phase.TRAINING for each in living):
        raise WrongError(f"a worker that is to leave goes on: {living}")
    if not trains and not is_lost:
        raise WrongError(f"nothing can happen any more: {living}")


def check_trains(job: Job) -> None:
    """Make sure that somebody has the state, where nobody died and not all have left."""
    if not any(each.phase is Phase.TRAINING for each in job.processes):
        raise WrongError(f"the state is lost though nobody has died: {job.processes}")


def explore(
    num_workers: int, num_kills: int, num_starts: int, broken: Break, num_leaves: int = 0
) -> int:
    """Visit every state that can be reached, and return their number."""
    workers = tuple(Process(place) for place in range(num_workers))
    start = Job(workers, num_kills=num_kills, num_starts=num_starts, num_leaves=num_leaves)
    todo, seen = [start], {start}
    while todo:
        job = todo.pop()
        check_always(job)
        found = list(moves(job, broken))
        if not found:
            check_end(job)
            if num_leaves and not num_kills and num_leaves < num_workers + num_starts:
                check_trains(job)
        fresh = set(found) - seen
        seen |= fresh
        todo += fresh
    return len(seen)


@pytest.mark.parametrize(
    ("num_workers", "num_kills", "num_starts"),
    [(2, 1, 0), (2, 1, 1), (2, 2, 2), (3, 1, 1), pytest.param(3, 2, 2, marks=pytest.mark.long)],
)
def test_all_who_live_meet_again(num_workers: int, num_kills: int, num_starts: int) -> None:
    num_states = explore(num_workers, num_kills, num_starts, Break.NONE)
    print(f"{num_states} states")  # noqa: T201
    assert num_states > 100


@pytest.mark.parametrize(
    ("num_workers", "num_kills", "num_starts", "num_leaves"),
    [
        (1, 0, 1, 1),
        (2, 0, 1, 2),
        (2, 1, 1, 1),
        (2, 1, 2, 2),
        pytest.param(3, 1, 1, 2, marks=pytest.mark.long),
    ],
)
def test_the_state_outlives_those_who_leave(
    num_workers: int, num_kills: int, num_starts: int, num_leaves: int
) -> None:
    """Seen once: a spare process was all there was to choose from, and the launcher crashed."""
    num_states = explore(num_workers, num_kills, num_starts, Break.NONE, num_leaves)
    print(f"{num_states} states")  # noqa: T201


BREAKS_OF_LEAVING = (Break.LETS_THE_LAST_LEAVE_AT_ONCE, Break.KEEPS_THE_ONE_THAT_LEAVES)
OTHER_BREAKS = [each for each in Break if each not in (Break.NONE, *BREAKS_OF_LEAVING)]


@pytest.mark.parametrize("broken", OTHER_BREAKS)
def test_a_broken_line_is_found_out(broken: Break) -> None:
    with pytest.raises(WrongError):
        explore(2, 1, 1, broken)


@pytest.mark.parametrize("broken", BREAKS_OF_LEAVING)
def test_a_broken_line_about_those_who_leave_is_found_out(broken: Break) -> None:
    with pytest.raises(WrongError):
        explore(1, 0, 1, broken, num_leaves=1)

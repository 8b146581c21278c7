"""The workers of an elastic job, and the ranks that they get.

        generation 3        rank 1 dies           generation 4
worker   0  1  2            0  x  2               0  1' 2         replaced: others keep ranks
rank     0  1  2                                  0  1  2

worker   0  1  2            x  1  2               1  0' 2         rank 0 has the state, always
rank     0  1  2                                  0  1  2

worker   0  1  2            0  x  2               0  2            shrunk: no hole is left
rank     0  1  2                                  0  1

worker   0                  0 is to leave         0  1'           handed over: without a step,
rank     0                                        0  1            and then 1' is rank 0 alone
"""

from __future__ import annotations

from collections.abc import Sequence

from kadril.launch.elastic.worker import Worker

__all__ = ["WorkerSet", "assign_ranks"]


class WorkerSet:
    """The workers of a job that are alive.

    Attributes:
        by_place: each of them, by its place.
        generation: number of the present one; -1 before the first.
        has_state: whether some worker had the state of the job at some time.
        is_finishing: whether a worker has come to the end of the program.
    """

    def __init__(self) -> None:
        self.by_place: dict[int, Worker] = {}
        self.generation = -1
        self.has_state = False
        self.is_finishing = False

    def add(self) -> Worker:
        """Return a new worker, at the lowest place that is free."""
        place = next(place for place in range(len(self.by_place) + 1) if place not in self.by_place)
        self.by_place[place] = Worker(place)
        return self.by_place[place]

    @property
    def staying(self) -> list[Worker]:
        """Workers that are meant to be in the next generation."""
        return [worker for worker in self.by_place.values() if not worker.is_leaving]

    @property
    def busy(self) -> list[Worker]:
        """Workers of the present generation that have not left it."""
        return [each for each in self.by_place.values() if each.rank >= 0 and not each.is_ready]

    @property
    def members(self) -> list[Worker]:
        """Workers of the present generation that are meant to be in the next one."""
        return [worker for worker in self.staying if worker.rank >= 0]

    @property
    def candidates(self) -> list[Worker]:
        """Workers that can be in the next generation at once."""
        return [worker for worker in self.staying if worker.is_ready]

    @property
    def starting(self) -> list[Worker]:
        """Workers that have never been ready."""
        return [each for each in self.staying if each.rank < 0 and not each.is_ready]

    @property
    def ready(self) -> list[Worker]:
        """Workers that wait for the next generation, those that are to leave too."""
        return [worker for worker in self.by_place.values() if worker.is_ready]

    @property
    def holders(self) -> list[Worker]:
        """Workers that have the state of the job, those that are to leave too."""
        return [worker for worker in self.by_place.values() if worker.has_state]

    @property
    def is_lost(self) -> bool:
        """Whether the job had a state, and nobody has it any more."""
        return self.has_state and not self.holders

    @property
    def must_hand_over(self) -> bool:
        """Whether all that have the state are to leave: one of them has to give it away first."""
        return bool(self.holders) and all(each.is_leaving for each in self.holders)

    def choose(self, most: int) -> tuple[list[Worker], list[Worker]]:
        """Return who is in the next generation, by rank, and who is not."""
        candidates = self.candidates
        # Those with a state and a low rank stay: the newest leave first.
        candidates.sort(key=lambda each: (not each.has_state, each.rank < 0, each.rank, each.place))
        chosen = candidates[:most]
        others = [each for each in self.ready if each not in chosen]
        return assign_ranks(chosen, need_state=self.has_state), others


def assign_ranks(workers: Sequence[Worker], *, need_state: bool) -> list[Worker]:
    """Return workers by their new ranks; each keeps its rank as far as that is possible.

    Args:
        workers: of the next generation.
        need_state: whether rank 0 must have the state of the job, which it gives to the others.
    """
    seats: list[Worker | None] = [None] * len(workers)
    left = []
    for worker in sorted(workers, key=lambda each: each.rank):
        if 0 <= worker.rank < len(seats) and seats[worker.rank] is None:
            seats[worker.rank] = worker
        else:
            left.append(worker)
    left.sort(key=lambda each: (not each.has_state, each.place))
    seated = [left.pop(0) if seat is None else seat for seat in seats]
    if need_state and seated and not seated[0].has_state:
        first = next(index for index, each in enumerate(seated) if each.has_state)
        seated[0], seated[first] = seated[first], seated[0]
    return seated

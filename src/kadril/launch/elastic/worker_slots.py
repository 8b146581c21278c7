"""Number of workers that an elastic job should have, and when further ones may be started.

--host-discovery-script or -np, at most --max-np, less those that are not replaced
"""

from __future__ import annotations

import selectors
from collections.abc import Callable

from kadril.launch.elastic.host_slots import Backoff, Cooldown, Discovery
from kadril.launch.elastic.worker import Worker
from kadril.launch.options import ElasticOptions

__all__ = ["WorkerSlots"]


class WorkerSlots:
    """Slots of an elastic job.

    Attributes:
        discovery: runs the discovery script; None where the number is fixed.
        cooldown: time for which the host is set aside.
    """

    def __init__(
        self,
        elastic: ElasticOptions,
        num_ranks: int,
        job: str,
        selector: selectors.BaseSelector,
        notice: Callable[[str], None],
    ) -> None:
        """Run nothing yet.

        Args:
            elastic: options of the job.
            num_ranks: how many there are at first, where there is no script.
            job: name of the job.
            selector: of the event loop.
            notice: prints a line.
        """
        self.cooldown = Cooldown(*elastic.cooldown)
        self.discovery: Discovery | None = None
        if elastic.discovery_script is not None:
            self.discovery = Discovery(
                job, elastic.discovery_script, elastic.slots_per_host, selector, notice
            )
        self._elastic = elastic
        self._backoff = Backoff(elastic.cooldown[1])
        self._num_slots = num_ranks
        self._num_given_up = 0  # slots of ranks that are not replaced

    @property
    def has_enough(self) -> bool:
        """Whether the script lists as many as the job needs."""
        return (
            self.discovery is not None
            and (self.discovery.num_slots or 0) >= self._elastic.min_ranks
        )

    @property
    def target(self) -> int:
        """Return how many workers there should be."""
        if self.discovery is not None:
            self._num_slots = self.discovery.num_slots or 0
        return max(min(self._num_slots, self._elastic.max_ranks) - self._num_given_up, 0)

    @property
    def start_at(self) -> float:
        """Return when a process may be started, after repeated failures."""
        return max(self.cooldown.until, self._backoff.until)

    def note_loss(self) -> None:
        """Note that a rank has failed or leaves: without replacement its slot is used no more."""
        self._num_given_up += not self._elastic.replaces

    def pause_after_failure(self, worker: Worker, now: float) -> str:
        """Start no process for a while where failures are repeated; return what to say of it."""
        if worker.has_state:
            count, pause = self._backoff.note_failure(worker.rank, now)
            if pause and self._elastic.replaces:
                return f"; it has failed {count} times in a row, and is replaced {pause:g} s later"
            return ""
        aside = self.cooldown.note_failure(now)
        return f"; this host is set aside for {aside:g} s, after repeated failures" if aside else ""

    def close(self) -> None:
        """End the script, should it run. May be called again."""
        if self.discovery is not None:
            self.discovery.close()

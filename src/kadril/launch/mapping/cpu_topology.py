"""The sockets and cores of a host, and the processors that a rank file's cores stand for.

Three numbers for one thing, which rank files and the kernel tell apart:

    socket             0                 1
    core of socket     0     1           0     1
    core of host       0     1           2     3         counted over the sockets in turn
    processors         0,4   1,5         2,6   3,7       as the kernel numbers them; two per core
                                                         where a core runs two threads
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from pathlib import Path

from kadril.errors import ConfigError
from kadril.launch.mapping.rank_file import Slot, format_numbers, format_slots

__all__ = ["CpuTopology", "this_topology"]

SYSTEM = Path("/sys/devices/system/cpu")


@dataclasses.dataclass(frozen=True)
class CpuTopology:
    """Sockets, cores and processors of one host.

    Attributes:
        sockets: of each socket its cores, of each core its processors.
        allowed: the processors that this process may use; others may be there.
    """

    sockets: tuple[tuple[tuple[int, ...], ...], ...]
    allowed: frozenset[int]

    @property
    def num_cores(self) -> int:
        """Number of cores, over all sockets."""
        return sum(map(len, self.sockets))

    def processors(self, slots: Sequence[Slot]) -> frozenset[int]:
        """Return the processors of these cores that may be used.

        Raises:
            ConfigError: there is no such socket or core, or none of them may be used. The message
                says what there is.
        """
        found: set[int] = set()
        for slot in slots:
            for core in self._cores(slot, format_slots(slots)):
                found.update(core)
        usable = found & self.allowed
        if not usable:
            raise ConfigError(
                f"slot={format_slots(slots)}: processors {format_numbers(sorted(found))} may not be"
                f" used here, only {format_numbers(sorted(self.allowed))} (taskset, cgroup or a"
                " container); use cores of these"
            )
        return frozenset(usable)

    def _cores(self, slot: Slot, text: str) -> list[tuple[int, ...]]:
        if slot.socket is None:
            cores = [core for socket in self.sockets for core in socket]
            owner = "the host"
        elif slot.socket < len(self.sockets):
            cores = list(self.sockets[slot.socket])
            owner = f"socket {slot.socket}"
        else:
            raise ConfigError(f"slot={text}: there is no socket {slot.socket}; {self.describe()}")
        if slot.cores is None:
            return cores
        for number in slot.cores:
            if number >= len(cores):
                raise ConfigError(
                    f"slot={text}: there is no core {number} of {owner}; {self.describe()}"
                )
        return [cores[number] for number in slot.cores]

    def describe(self) -> str:
        """Return which sockets and cores there are."""
        parts = []
        for number, socket in enumerate(self.sockets):
            last = len(socket) - 1
            cores = "core 0" if last == 0 else f"cores 0-{last}"
            parts.append(f"socket {number} with {cores}")
        return f"there is {' and '.join(parts)}"

    def to_fields(self) -> dict[str, object]:
        """Return this as plain data, for another host."""
        return {"sockets": self.sockets, "allowed": sorted(self.allowed)}

    @classmethod
    def from_fields(cls, sockets: Sequence[object], allowed: Sequence[int]) -> CpuTopology:
        """Return what `to_fields` gave, after a way through JSON."""
        return cls(
            tuple(tuple(tuple(core) for core in socket) for socket in sockets),  # type: ignore[attr-defined]
            frozenset(allowed),
        )


def this_topology(system: Path = SYSTEM) -> CpuTopology:
    """Return the sockets and cores of this host, as the kernel tells them.

    Where it does not tell (a container without /sys), all processors are cores of one socket.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    places: dict[tuple[int, int], list[int]] = {}
    for directory in system.glob("cpu[0-9]*"):
        match = re.fullmatch(r"cpu([0-9]+)", directory.name)
        try:
            socket = int((directory / "topology/physical_package_id").read_text())
            siblings = (directory / "topology/thread_siblings_list").read_text()
        except (OSError, ValueError):  # one that is off has no topology
            continue
        first = re.match(r"[0-9]+", siblings)
        if match is not None and first is not None:
            # A core is named by the first of its threads: `core_id` repeats in other dies.
            places.setdefault((socket, int(first[0])), []).append(int(match[1]))
    if not places:
        return CpuTopology((tuple((number,) for number in sorted(allowed)),), allowed)
    sockets: dict[int, list[tuple[int, ...]]] = {}
    for socket, first_thread in sorted(places):
        sockets.setdefault(socket, []).append(tuple(sorted(places[socket, first_thread])))
    return CpuTopology(tuple(tuple(cores) for cores in sockets.values()), allowed)

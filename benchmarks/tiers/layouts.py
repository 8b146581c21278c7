"""Layouts, links and sizes that are measured, and the least time that each can take."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["FAST", "LAYOUTS", "LINKS", "SLOW", "TRAINING", "Layout", "Link", "format_bytes"]

KIB, MIB = 1 << 10, 1 << 20

# Bytes of a full frame, and those of them that a program sees.
FRAME, PAYLOAD = 1514, 1448


class Layout(NamedTuple):
    """Hosts, and ranks on each."""

    num_hosts: int
    num_local: int

    @property
    def name(self) -> str:
        """Hosts x ranks."""
        return f"{self.num_hosts}x{self.num_local}"


class Link(NamedTuple):
    """The link of each host.

    Attributes:
        name: for people.
        rate: as `tc` writes it.
        bits: per second and direction.
        sizes: bytes of an array, and how many calls are timed together.
    """

    name: str
    rate: str
    bits: float
    sizes: dict[int, int]

    @property
    def bandwidth(self) -> float:
        """Bytes per second that a program sees."""
        return self.bits / 8 * PAYLOAD / FRAME

    @property
    def largest(self) -> int:
        """The largest size, of which most bars speak."""
        return max(self.sizes)

    def bound(self, num_hosts: int, num_bytes: int) -> float:
        """Seconds in which what must cross can cross: 2 (H - 1) / H of the bytes."""
        return 2 * (num_hosts - 1) / num_hosts * num_bytes / self.bandwidth

    def workload(self, layout: Layout, num_bytes: int) -> str:
        """The name of a workload in the results."""
        return f"{layout.name}, {self.name}, {format_bytes(num_bytes)}"


def tenth(num_bytes: int) -> int:
    """A tenth, in whole elements."""
    return num_bytes // 40 * 4


FAST = Link("1 Gbit/s", "1gbit", 1e9, {KIB: 20, 64 * KIB: 10, MIB: 4, 16 * MIB: 1, 64 * MIB: 1})
# All ratios of volume and the same need of processor time per second are a tenth of the load.
SLOW = Link(
    "100 Mbit/s", "100mbit", 1e8, {KIB: 20, 64 * KIB: 4, tenth(16 * MIB): 1, tenth(64 * MIB): 1}
)
LINKS = (FAST, SLOW)
LAYOUTS = (Layout(2, 2), Layout(2, 4), Layout(4, 2))

TRAINING = "10M-parameter MLP, 2x2, 1 Gbit/s"


def format_bytes(num_bytes: int) -> str:
    """Bytes for people: 64 KiB, 6.4 MiB."""
    return f"{num_bytes / MIB:.3g} MiB" if num_bytes >= MIB else f"{num_bytes / KIB:.3g} KiB"

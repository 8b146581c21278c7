"""The layout: which ranks are on which host, and what follows from it for each rank.

Example: ranks 0, 1, 2 on host A and 3, 4 on host B.

    world rank     0  1  2 | 3  4
    local rank     0  1  2 | 0  1       order on its host
    local size     3  3  3 | 2  2
    cross rank     0  0  0 | 1  1       order of its host among hosts that have this local rank
    cross size     2  2  1 | 2  2
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

__all__ = ["Layout"]


@dataclass(frozen=True)
class Layout:
    """Ranks by host.

    Attributes:
        hosts: world ranks of each host, ascending; hosts in the order of their lowest rank.
    """

    hosts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, keys: Sequence[Hashable]) -> Layout:
        """Ranks with equal keys share a host."""
        ranks: dict[Hashable, list[int]] = {}
        for rank, key in enumerate(keys):
            ranks.setdefault(key, []).append(rank)
        return cls(tuple(tuple(each) for each in ranks.values()))

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(host) for host in self.hosts)

    @property
    def is_homogeneous(self) -> bool:
        """Whether all hosts have the same number of ranks."""
        return len({len(host) for host in self.hosts}) == 1

    def host_of(self, rank: int) -> tuple[int, ...]:
        """World ranks on the host of a rank, itself among them."""
        return next(host for host in self.hosts if rank in host)

    def local_rank(self, rank: int) -> int:
        """Position of a rank on its host."""
        return self.host_of(rank).index(rank)

    def local_size(self, rank: int) -> int:
        """Number of ranks on the host of a rank."""
        return len(self.host_of(rank))

    def cross(self, rank: int) -> tuple[int, ...]:
        """World ranks with the same local rank, one of each host that has it."""
        local_rank = self.local_rank(rank)
        return tuple(host[local_rank] for host in self.hosts if len(host) > local_rank)

    def cross_rank(self, rank: int) -> int:
        """Position of a rank in `cross`."""
        return self.cross(rank).index(rank)

    def cross_size(self, rank: int) -> int:
        """Number of hosts that have this local rank."""
        return len(self.cross(rank))

"""Placement of ranks on hosts and cores, by a rank file or a list of hosts.

    -H a:2,b:2        ranks 0 and 1 on a, 2 and 3 on b
    -rf FILE          exactly as the file says, in any order

All names of this host are one host here, and ranks of it need no ssh.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from kadril.errors import ConfigError
from kadril.launch.mapping.hosts import Host, check_slots, describe, is_this_host
from kadril.launch.mapping.rank_file import PlacedRank

__all__ = ["HostPlan", "Placement", "place_on_hosts", "place_with_file"]


@dataclasses.dataclass(frozen=True)
class HostPlan:
    """The ranks of one host.

    Attributes:
        name: as it was given; the first of them where several lead to this host.
        is_here: whether it is this host.
        ranks: in the order of their numbers, which is that of their local ranks.
    """

    name: str
    is_here: bool
    ranks: tuple[PlacedRank, ...]


@dataclasses.dataclass(frozen=True)
class Placement:
    """Ranks by host.

    Attributes:
        hosts: in the order of their lowest rank.
        source: the rank file, or nothing.
    """

    hosts: tuple[HostPlan, ...]
    source: str = ""

    @classmethod
    def of(cls, ranks: Sequence[PlacedRank], source: str = "") -> Placement:
        """Return the placement of these ranks."""
        here = {host: is_this_host(host) for host in {placed.host for placed in ranks}}
        by_host: dict[str, list[PlacedRank]] = {}
        for placed in sorted(ranks, key=lambda each: each.rank):
            by_host.setdefault("" if here[placed.host] else placed.host, []).append(placed)
        return cls(
            tuple(HostPlan(own[0].host, not key, tuple(own)) for key, own in by_host.items()),
            source,
        )

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all hosts."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def needs_ssh(self) -> bool:
        """Whether a rank is on another host than this."""
        return not all(host.is_here for host in self.hosts)

    @property
    def numbers(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the ranks of each host."""
        return tuple(tuple(each.rank for each in host.ranks) for host in self.hosts)


def place_on_hosts(hosts: Sequence[Host], num_ranks: int | None) -> Placement:
    """Fill the slots of one host after the other.

    Args:
        hosts: with their slots.
        num_ranks: how many ranks; as many as there are slots where None.

    Raises:
        ConfigError: there are too few slots.
    """
    num_ranks = sum(host.num_slots for host in hosts) if num_ranks is None else num_ranks
    check_slots(hosts, num_ranks)
    names = [host.name for host in hosts for _ in range(host.num_slots)][:num_ranks]
    return Placement.of([PlacedRank(rank, name, ()) for rank, name in enumerate(names)])


def place_with_file(
    ranks: Sequence[PlacedRank], path: str, num_ranks: int | None, hosts: Sequence[Host] | None
) -> Placement:
    """Place ranks as a rank file says.

    Args:
        ranks: of the file.
        path: of the file.
        num_ranks: value of -np, which must be that of the file.
        hosts: value of -H or --hostfile, which must have the hosts of the file.

    Raises:
        ConfigError: the file, -np and -H contradict each other.
    """
    if num_ranks is not None and num_ranks != len(ranks):
        raise ConfigError(
            f"-np {num_ranks} and rank file {path}, which has ranks 0 to {len(ranks) - 1}, are not"
            f" the same; leave -np out, or give -np {len(ranks)}"
        )
    if hosts is not None:
        for placed, num_slots in overfull(ranks, hosts):
            raise ConfigError(
                f"rank file {path}, line {placed.line}: no slot is left for rank {placed.rank} on"
                f" {placed.host!r}, which has {num_slots} in {describe(hosts)}"
            )
    return Placement.of(ranks, path)


def overfull(
    ranks: Sequence[PlacedRank], hosts: Sequence[Host]
) -> Iterator[tuple[PlacedRank, int]]:
    """Yield ranks for which their host has no slot left, with how many it has."""
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + host.num_slots
    used: dict[str, int] = {}
    for placed in ranks:
        used[placed.host] = used.get(placed.host, 0) + 1
        if used[placed.host] > slots.get(placed.host, 0):
            yield placed, slots.get(placed.host, 0)

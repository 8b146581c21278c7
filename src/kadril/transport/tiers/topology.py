"""Topology: which ranks share a host, and which hosts share a rack, an aisle and so on.

    Topology(hosts=((0, 1), (2, 3), (4, 5), (6, 7)), groups=(((0, 1), (2, 3)),))

    tier 0, within a host       (0 1)  (2 3)    (4 5)  (6 7)      ranks
    tier 1, within a group      (  0      1  )  (  2      3  )    hosts
    tier 2, across groups       (     0              1       )    groups

It comes from proof (cards, see `kadril.world.neighbours`), from a rank file, or from dimensions
such as `2x2x2`. Which host a rank is on is never guessed from its number: launchers deal ranks out
as they like.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kadril.errors import ConfigError

__all__ = ["Topology", "read_dimensions"]


@dataclass(frozen=True)
class Topology:
    """Ranks by host, and hosts by group.

    Attributes:
        hosts: ranks of each host, in the order in which they add; hosts in the order of their first
            rank.
        groups: one entry for each tier between hosts and the whole: the units of the tier below
            that each group has, by index. Empty where no hosts are nearer than others.
    """

    hosts: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[tuple[int, ...], ...], ...] = ()

    def __post_init__(self) -> None:
        if sorted(self.ranks) != list(range(self.size)) or not all(self.hosts):
            raise ValueError(f"every rank is on one host, got {self.hosts}")
        num_units = len(self.hosts)
        for tier in self.groups:
            units = sorted(unit for group in tier for unit in group)
            if units != list(range(num_units)) or not all(tier):
                raise ValueError(f"every one of {num_units} units belongs to one group, got {tier}")
            num_units = len(tier)

    @classmethod
    def with_dimensions(cls, hosts: Sequence[Sequence[int]], dimensions: Sequence[int]) -> Topology:
        """Group hosts by dimensions: ranks per host, hosts per rack, racks per aisle, ...

        Neighbours in the order of hosts share a rack.

        Raises:
            ConfigError: the dimensions do not multiply to the number of ranks, or hosts have other
                numbers of ranks.
        """
        made = cls(tuple(map(tuple, hosts)))
        text = "x".join(map(str, dimensions))
        if math.prod(dimensions) != made.size:
            product = " * ".join(map(str, dimensions))
            raise ConfigError(
                f"dimensions {text} are for {product} = {math.prod(dimensions)} ranks, and there"
                f" are {made.size}. Change the dimensions, or the number of ranks"
            )
        lengths = [len(host) for host in made.hosts]
        if set(lengths) != {dimensions[0]}:
            raise ConfigError(
                f"dimensions {text} say {dimensions[0]} ranks on each host, and the"
                f" {len(lengths)} hosts have {', '.join(map(str, lengths))}. The first dimension is"
                " within a host; give dimensions that match, or start other numbers of ranks"
            )
        groups = []
        num_units = len(lengths)
        for length in dimensions[1:-1]:
            groups.append(
                tuple(tuple(range(begin, begin + length)) for begin in range(0, num_units, length))
            )
            num_units //= length
        return cls(made.hosts, tuple(groups))

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks, host by host."""
        return tuple(rank for host in self.hosts for rank in host)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    @property
    def tiers(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """The tiers above that within a host: for each its groups of units, by index."""
        num_units = len(self.groups[-1]) if self.groups else len(self.hosts)
        top = (tuple(range(num_units)),)
        return (*self.groups, top) if num_units > 1 else self.groups

    def units(self, tier: int) -> tuple[tuple[int, ...], ...]:
        """Ranks of each unit that a tier joins: of hosts for tier 1, of their groups for tier 2."""
        units = self.hosts
        for groups in self.groups[: tier - 1]:
            units = tuple(tuple(rank for unit in group for rank in units[unit]) for group in groups)
        return units

    def host_of(self, rank: int) -> int:
        """The index of the host of a rank."""
        return next(index for index, host in enumerate(self.hosts) if rank in host)


def read_dimensions(text: str) -> tuple[int, ...]:
    """Read dimensions such as "4x3" or "4x2x2".

    Raises:
        ConfigError: it is something else.
    """
    words = text.lower().split("x")
    if not all(word.isdecimal() and int(word) for word in words):
        raise ConfigError(
            f"dimensions are numbers joined by x, such as 4x3 (4 ranks on each of 3 hosts), got"
            f" {text!r}"
        )
    return tuple(map(int, words))

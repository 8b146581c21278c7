"""Groups: ranks that can communicate, and the groups that were made of them.

A partition is a matter of names and shapes, and there may be thousands; what costs something is the
transport between its members. So partitions of the same ranks share one group, and a group keeps
every group that was made of it, as long as the world lasts:

    root (all ranks of the world)
      |-- (0, 1)       columns of one partition, rows of another, senders of a third
      |-- (2, 3)
      `-- (0, 2) ...

Making groups is collective over the group they are made of. All its ranks ask for the same groups
in the same order, so they remember the same ones, and agree without a message which are new.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import NoReturn

from kadril.errors import ClosedError
from kadril.transport.alone import group_of_one
from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["Group", "root_group"]

_roots: weakref.WeakKeyDictionary[World, Group] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Group:
    """Ranks that are connected by a transport.

    Attributes:
        transport: between them, in program order.
        ranks: world rank of each, in its order.
    """

    def __init__(self, transport: Transport, root: Group | None = None) -> None:
        self.transport = transport
        self.ranks = tuple(transport.world_ranks)
        self.root = root or self
        self._made: dict[tuple[int, ...], Group | None] = {self.ranks: self}
        self._is_closed = False

    def make(self, sets: Sequence[Sequence[int]]) -> list[Group | None]:
        """Return groups for sets of world ranks, which may overlap; collective over this group.

        Args:
            sets: each in the order its ranks shall have.

        Returns:
            One for each set; None where this process is not in it.
        """
        if self._is_closed:
            raise ClosedError("this partition belongs to a world that was closed; make a new one")
        wanted = [tuple(ranks) for ranks in sets]
        new = [ranks for ranks in dict.fromkeys(wanted) if ranks not in self._made]
        for ranks in [each for each in new if len(each) == 1]:
            self._made[ranks] = self._alone(ranks[0])
            new.remove(ranks)
        for disjoint in layers(new):
            self._split(disjoint)
        return [self._made[ranks] for ranks in wanted]

    def close(self) -> None:
        """Close the transport, and those of all groups that were made of this one."""
        if self._is_closed:
            return
        self._is_closed = True
        for group in self._made.values():
            if group is not None:
                group.close()
        if self.root is not self:
            self.transport.close()

    def __deepcopy__(self, _: dict[int, object]) -> Group:
        """Return the group itself: a copy of a model communicates among the same ranks."""
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a partition belongs to the ranks of this run and cannot be saved; save the model's"
            " state_dict(), and make partitions anew when it is loaded"
        )

    @property
    def _me(self) -> int:
        return self.ranks[self.transport.rank]

    def _alone(self, rank: int) -> Group | None:
        return Group(group_of_one(rank), self.root) if rank == self._me else None

    def _split(self, disjoint: Sequence[tuple[int, ...]]) -> None:
        color = next((i for i, ranks in enumerate(disjoint) if self._me in ranks), None)
        key = None if color is None else disjoint[color].index(self._me)
        transport = self.transport.split(color, key=key)
        for ranks in disjoint:
            self._made[ranks] = None
        if color is not None and transport is not None:
            self._made[disjoint[color]] = Group(transport, self.root)


def layers(sets: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return sets in layers; the sets of a layer are disjoint, and made in one step."""
    found: list[list[tuple[int, ...]]] = []
    for ranks in sets:
        for layer in found:
            if not any(set(ranks) & set(other) for other in layer):
                layer.append(ranks)
                break
        else:
            found.append([ranks])
    return found


def root_group(world: World) -> Group:
    """Return the group of all ranks of a world.

    Raises:
        ClosedError: the world was closed.
        ForkedError: called in a child made by fork.
    """
    world.check_usable("a partition of all ranks")
    with _lock:
        group = _roots.get(world)
        if group is None or group._is_closed:
            group = _roots[world] = Group(world.transport)
            world.on_close(group.close)
        return group

"""The plan: which elements of which parameter belong to which rank.

    parameters    p3          p2    p1                          p0
    bucket 0    | ......... |                                        one large parameter
    bucket 1                | ..... . |                              small ones, up to a size
    bucket 2                          | .......................... |
    part of rank  0    1      0   1     0             1

A bucket is what is reduced at once. Rule `flat` cuts each bucket evenly, whatever the borders of
parameters; with the other rules (partition_rules.py) a parameter lies whole in the part of its
owner. What a rank owns of a parameter is a piece: a range of its elements, in the order of memory.

A plan depends only on names, shapes, dtypes and the number of ranks, so every rank makes the same
one; `lines` describes it, for ranks to compare.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence

import torch

from kadril.sharded.ownership.partition_rules import RULES, owners_of

__all__ = ["BucketPlan", "Entry", "Piece", "Plan", "make_plan"]

# A parameter of at least this size is a bucket by itself, reduced from where autograd put its
# gradient: a copy of it would cost more than the call that it saves.
LARGE_PARAMETER_BYTES = 1 << 20

# Smaller parameters share buckets of up to this size.
BUCKET_BYTES = 4 << 20

# Parts begin at cache lines: no line has two writers, and a vectorized loop over a piece has the
# same elements in its body and in its tail as one over the whole parameter, so the same bits.
LINE_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """Description of one parameter.

    Attributes:
        name: its name.
        shape: its shape.
        dtype: its dtype.
        dims: its dims in the order of memory, the slowest first; 0, 1, ... unless it is
            channels_last or the like.
        group: number of its parameter group.
        is_frozen: whether it asks for no gradient.
        device: its device.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: tuple[int, ...]
    group: int
    is_frozen: bool
    device: torch.device

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def line(self) -> str:
        """Text of what has to be the same on all ranks."""
        order = "" if self.dims == tuple(range(len(self.shape))) else f", dims {self.dims}"
        frozen = ", frozen" if self.is_frozen else ""
        return (
            f"parameter {self.name!r}: {self.dtype} {self.shape}{order},"
            f" parameter group {self.group}{frozen}"
        )


@dataclasses.dataclass(frozen=True)
class Piece:
    """Elements [begin, end) of a parameter, in the order of memory; they belong to one rank.

    Attributes:
        entry: place of the parameter in the plan.
        bucket: place of its bucket in the plan.
        rank: rank that owns it.
        begin: first element.
        end: one past the last element.
        offset: place of the first element in the rank's part of the bucket.
    """

    entry: int
    bucket: int
    rank: int
    begin: int
    end: int
    offset: int

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return self.end - self.begin


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """Parameters that are reduced at once.

    Attributes:
        members: places of the parameters in the plan.
        begins: first element of each in the bucket.
        counts: number of elements of each rank's part.
        is_frozen: whether no member asks for a gradient.
    """

    members: tuple[int, ...]
    begins: tuple[int, ...]
    counts: tuple[int, ...]
    is_frozen: bool

    @property
    def num_elements(self) -> int:
        """Number of elements of the bucket."""
        return sum(self.counts)


class Plan:
    """Buckets, and pieces of all ranks.

    Attributes:
        rule: "flat", "greedy" or "largest_first".
        num_ranks: number of ranks that it is made for.
        entries: the parameters.
        buckets: in the order in which gradients are expected.
        pieces: pieces of each parameter, on all ranks, in the order of their elements. A parameter
            without elements has one empty piece.
    """

    def __init__(
        self, rule: str, num_ranks: int, entries: Sequence[Entry], buckets: Sequence[BucketPlan]
    ) -> None:
        self.rule = rule
        self.num_ranks = num_ranks
        self.entries = tuple(entries)
        self.buckets = tuple(buckets)
        found: dict[int, list[Piece]] = {place: [] for place in range(len(self.entries))}
        for number, bucket in enumerate(self.buckets):
            for piece in pieces_of(number, bucket, self.entries):
                found[piece.entry].append(piece)
        self.pieces = tuple(tuple(found[place]) for place in range(len(self.entries)))

    @property
    def lines(self) -> list[str]:
        """Description of the plan, line by line, which has to be the same on all ranks."""
        return [f"rule {self.rule}, {self.num_ranks} ranks"] + [each.line for each in self.entries]


def make_plan(entries: Sequence[Entry], num_ranks: int, rule: str) -> Plan:
    """Decide which rank owns which elements; a pure function.

    Raises:
        ValueError: there is no such rule.
    """
    if rule not in RULES:
        raise ValueError(f"there is no partition rule {rule!r}; use one of {', '.join(RULES)}")
    owners = None
    if rule != "flat":
        sizes = [entry.num_elements for entry in entries]
        owners = owners_of(rule, sizes, [entry.is_frozen for entry in entries], num_ranks)
    buckets = [
        plan_bucket(members, entries, num_ranks, owners) for members in bucket_members(entries)
    ]
    # Frozen buckets get no gradients; last in the order, they hold none up.
    buckets.sort(key=lambda bucket: bucket.is_frozen)
    return Plan(rule, num_ranks, entries, buckets)


def bucket_members(entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Yield the parameters of each bucket, in reverse order, as a backward pass reaches them."""
    open_members: dict[tuple[object, ...], list[int]] = {}
    sizes: dict[tuple[object, ...], int] = {}
    for place in reversed(range(len(entries))):
        entry = entries[place]
        num_bytes = entry.num_elements * entry.dtype.itemsize
        if num_bytes >= LARGE_PARAMETER_BYTES:
            yield [place]
            continue
        key = (entry.dtype, entry.device, entry.is_frozen)
        if sizes.get(key, 0) + num_bytes > BUCKET_BYTES:
            yield open_members.pop(key)
            sizes[key] = 0
        open_members.setdefault(key, []).append(place)
        sizes[key] = sizes.get(key, 0) + num_bytes
    yield from open_members.values()


def plan_bucket(
    members: Sequence[int],
    entries: Sequence[Entry],
    num_ranks: int,
    owners: Sequence[int] | None,
) -> BucketPlan:
    """Lay parameters out in a bucket, and cut it into one part for each rank."""
    unit = max(1, LINE_BYTES // entries[members[0]].dtype.itemsize)
    if owners is not None:
        members = sorted(members, key=lambda place: owners[place])
    sizes = [entries[place].num_elements for place in members]
    if len(members) > 1:
        sizes = [-(-size // unit) * unit for size in sizes]
    begins = [sum(sizes[:place]) for place in range(len(sizes))]
    if owners is None:
        counts = even_counts(sum(sizes), unit, num_ranks)
    else:
        counts = [0] * num_ranks
        for place, size in zip(members, sizes, strict=True):
            counts[owners[place]] += size
    return BucketPlan(tuple(members), tuple(begins), tuple(counts), entries[members[0]].is_frozen)


def even_counts(num_elements: int, unit: int, num_ranks: int) -> list[int]:
    """Return the lengths of even parts, which begin at multiples of a unit."""
    num_units = -(-num_elements // unit)
    ends = [
        min((rank + 1) * num_units // num_ranks * unit, num_elements) for rank in range(num_ranks)
    ]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def pieces_of(number: int, bucket: BucketPlan, entries: Sequence[Entry]) -> Iterable[Piece]:
    """Yield the pieces of a bucket: where its parameters and the parts of ranks overlap."""
    part_begin = 0
    for rank, count in enumerate(bucket.counts):
        for member, begin in zip(bucket.members, bucket.begins, strict=True):
            first = max(begin, part_begin)
            end = begin + entries[member].num_elements
            last = min(end, part_begin + count)
            # A parameter without elements lies in no part: rank 0 has its empty piece.
            is_empty_here = begin == end and rank == 0
            if first < last or is_empty_here:
                first, last = (begin, begin) if is_empty_here else (first, last)
                offset = 0 if is_empty_here else first - part_begin
                yield Piece(member, number, rank, first - begin, last - begin, offset)
        part_begin += count

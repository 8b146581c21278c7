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

# A parameter of at least so many bytes is reduced by itself, from where autograd put its gradient;
# a copy of it would cost more than the call that it saves.
LARGE_PARAMETER_BYTES = 1 << 20

# Small ones travel together up to this size.
BUCKET_BYTES = 4 << 20

# Parts begin at cache lines: no line has two writers, and a vectorized loop over a piece has the
# same elements in its body and in its tail as one over the whole parameter, so the same bits.
LINE_BYTES = 64


@dataclasses.dataclass(frozen=True)
class Entry:
    """One parameter, as a plan sees it.

    Attributes:
        name: of the parameter.
        shape: of it.
        dtype: of it.
        dims: its dims in the order of memory, the slowest first; 0, 1, ... unless it is
            channels_last or the like.
        group: number of its parameter group.
        is_frozen: whether it asks for no gradient.
        device: where it is.
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
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def line(self) -> str:
        """What has to be the same on all ranks."""
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
        rank: whose it is.
        begin: first element.
        end: one past the last.
        offset: where the first element lies in the rank's part of the bucket.
    """

    entry: int
    bucket: int
    rank: int
    begin: int
    end: int
    offset: int


@dataclasses.dataclass(frozen=True)
class BucketPlan:
    """Parameters that are reduced at once.

    Attributes:
        members: their places in the plan.
        begins: where each begins in the bucket.
        counts: elements of each rank's part.
        is_frozen: whether no member asks for a gradient.
    """

    members: tuple[int, ...]
    begins: tuple[int, ...]
    counts: tuple[int, ...]
    is_frozen: bool

    @property
    def num_elements(self) -> int:
        """Length of the bucket."""
        return sum(self.counts)


class Plan:
    """Buckets and pieces.

    Attributes:
        rule: "flat", "greedy" or "largest_first".
        num_ranks: it is made for.
        entries: the parameters.
        buckets: in the order in which gradients are expected.
        pieces: of all ranks, by parameter, in the order of their elements. A parameter has one at
            least, an empty one if it is empty.
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

    def num_elements_of(self, rank: int) -> int:
        """How many elements belong to a rank."""
        return sum(
            piece.end - piece.begin
            for pieces in self.pieces
            for piece in pieces
            if piece.rank == rank
        )

    @property
    def lines(self) -> list[str]:
        """What has to be the same on all ranks."""
        return [f"rule {self.rule}, {self.num_ranks} ranks"] + [each.line for each in self.entries]


def make_plan(entries: Sequence[Entry], num_ranks: int, rule: str) -> Plan:
    """Plan who owns what; a pure function.

    Raises:
        ValueError: a rule that there is not.
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
    # Those that wait for nothing come last, so that nothing waits for them.
    buckets.sort(key=lambda bucket: bucket.is_frozen)
    return Plan(rule, num_ranks, entries, buckets)


def bucket_members(entries: Sequence[Entry]) -> Iterator[list[int]]:
    """Who travels with whom, in the reverse order of the parameters, as a backward pass goes."""
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
    """Lay parameters out in a bucket, and cut it into parts."""
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
    """Parts of about the same length, which begin at multiples of a unit."""
    num_units = -(-num_elements // unit)
    ends = [
        min((rank + 1) * num_units // num_ranks * unit, num_elements) for rank in range(num_ranks)
    ]
    return [end - begin for begin, end in zip([0, *ends], ends, strict=False)]


def pieces_of(number: int, bucket: BucketPlan, entries: Sequence[Entry]) -> Iterable[Piece]:
    """Where members and parts of a bucket overlap."""
    part_begin = 0
    for rank, count in enumerate(bucket.counts):
        for member, begin in zip(bucket.members, bucket.begins, strict=True):
            first = max(begin, part_begin)
            end = begin + entries[member].num_elements
            last = min(end, part_begin + count)
            # An empty parameter lies on the border of parts, if anywhere: the first rank has it.
            is_empty_here = begin == end and rank == 0
            if first < last or is_empty_here:
                first, last = (begin, begin) if is_empty_here else (first, last)
                offset = 0 if is_empty_here else first - part_begin
                yield Piece(member, number, rank, first - begin, last - begin, offset)
        part_begin += count

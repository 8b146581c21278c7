"""Descriptions of the parameters that learners reduce, exchanged where they do not agree.

DDL pairs calls up by their order, and learners that reduced different parameters waited for each
other for ever. Here every call has a name that ends with a digest of its parameters:

    rank 0   all_reduce_n [float32[10], float32[3]]   allreduce(.., name='ddl.all_reduce_n 8c21..')
    rank 1   all_reduce_n [float32[10], float32[4]]   allreduce(.., name='ddl.all_reduce_n 02fe..')

The transport compares names and refuses on all ranks; then the lists themselves are exchanged, and
the error tells which parameter differs, with both sides.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kadril.errors import MismatchError
from kadril.transport.agreement import allgather_json
from kadril.transport.base import Transport
from kadril.transport.buffer import Array

__all__ = ["ParameterCall", "Parameters", "compared", "describe_parameters"]

MARK = "ddl."

REMEDY = (
    "Nothing was moved, and the next call works. Let every learner reduce the same parameters in"
    " the same order: look for a layer that only some of them use, for a gradient that is None, for"
    " shapes that follow the data, or for a set or dictionary that is not sorted"
)


class Parameter(NamedTuple):
    """A parameter: dtype, shape, name where one was given."""

    dtype: str
    shape: tuple[int, ...]
    name: str = ""

    def __str__(self) -> str:
        named = f"{self.name!r} " if self.name else ""
        return f"{named}{self.dtype}{list(self.shape)}"


Parameters = tuple[Parameter, ...]


class ParameterCall(NamedTuple):
    """One call of one learner.

    Attributes:
        operation: "all_reduce", "bcast", ...
        options: what else has to be alike: op, mpi, check.
        parameters: in the order of the list.
    """

    operation: str
    options: tuple[str, ...]
    parameters: Parameters

    @property
    def name(self) -> str:
        """The name of the call for the transport; equal for calls that agree."""
        return f"{MARK}{self.operation} {digest_of(self)}"

    def lines(self) -> list[str]:
        """Everything that learners must agree on, as text."""
        head = f"{self.operation}({', '.join(self.options)})"
        return [head, *map(str, self.parameters)]


@functools.lru_cache(maxsize=256)
def digest_of(call: ParameterCall) -> str:
    """A short digest; a training loop makes the same few calls over and over."""
    return hashlib.sha256("\n".join(call.lines()).encode()).hexdigest()[:16]


def describe_parameters(arrays: Sequence[Array], names: Sequence[str] | None) -> Parameters:
    """Describe tensors and arrays.

    Raises:
        ValueError: there are not as many names.
    """
    if names is not None and len(names) != len(arrays):
        raise ValueError(f"{len(names)} names for {len(arrays)} parameters")
    return tuple(
        Parameter(
            str(array.dtype).removeprefix("torch."),
            tuple(array.shape),
            "" if names is None else str(names[place]),
        )
        for place, array in enumerate(arrays)
    )


@contextlib.contextmanager
def compared(transport: Transport, call: ParameterCall) -> Iterator[None]:
    """Describe a mismatch by its parameters; what is called inside has the name of the call.

    Raises:
        MismatchError: on every rank of the transport.
    """
    try:
        yield
    except MismatchError as error:
        # All ranks see the same texts, so either all of them come to the exchange or none does.
        if not all(f"name='{MARK}" in text for text in error.calls.values()):
            raise
        everyone = [
            [str(line) for line in lines]
            for lines in allgather_json(transport, call.lines(), f"{MARK}compare")
        ]
        raise mismatch(everyone, transport.world_ranks) from error


def mismatch(everyone: Sequence[Sequence[str]], ranks: Sequence[int]) -> MismatchError:
    """Make the error from the lines of all ranks."""
    odd = next(place for place, lines in enumerate(everyone) if lines != everyone[0])
    difference = describe(ranks[0], everyone[0], ranks[odd], everyone[odd])
    calls = {
        rank: f"{lines[0]} of {len(lines) - 1} parameters"
        for rank, lines in zip(ranks, everyone, strict=True)
    }
    return MismatchError(f"learners reduce different parameters. {difference}. {REMEDY}", calls)


def describe(rank: int, lines: Sequence[str], other_rank: int, other: Sequence[str]) -> str:
    """Return a sentence about the first difference of two calls."""
    if lines[0] != other[0]:
        return f"Rank {rank} calls {lines[0]}, and rank {other_rank} calls {other[0]}"
    sizes = f"({len(lines) - 1} on rank {rank}, {len(other) - 1} on rank {other_rank})"
    for place, (line, theirs) in enumerate(zip(lines[1:], other[1:], strict=False)):
        if line != theirs:
            more = "" if len(lines) == len(other) else f" {sizes}"
            return (
                f"Parameter {place} is {line} on rank {rank} and {theirs} on rank"
                f" {other_rank}{more}"
            )
    longer = rank if len(lines) > len(other) else other_rank
    place = min(len(lines), len(other)) - 1
    extra = max(lines, other, key=len)[place + 1]
    return f"Rank {longer} has more of them {sizes}, the first is parameter {place}, {extra}"

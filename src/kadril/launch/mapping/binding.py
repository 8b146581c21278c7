"""Processors that each rank of a host is bound to, and the number of threads it should use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kadril.errors import ConfigError
from kadril.launch.mapping.cpu_topology import CpuTopology
from kadril.launch.mapping.rank_file import PlacedRank, format_numbers

__all__ = ["bind_ranks", "describe_sharing", "thread_variables"]


def bind_ranks(
    ranks: Sequence[PlacedRank], topology: CpuTopology, *, bind: bool, source: str = ""
) -> list[frozenset[int]]:
    """Return the processors of each rank of a host; none for one that is left free.

    Args:
        ranks: of the host, with the cores that a rank file gives them.
        topology: of the host.
        bind: whether ranks without such cores get one each, round robin.
        source: the rank file, for messages.

    Raises:
        ConfigError: the host has no such socket or core. The message has the line of the file.
    """
    allowed = sorted(topology.allowed)
    found = []
    for index, placed in enumerate(ranks):
        if placed.slots:
            try:
                found.append(topology.processors(placed.slots))
            except ConfigError as error:
                raise ConfigError(
                    f"rank file {source}, line {placed.line}: rank {placed.rank} on host"
                    f" {placed.host}: {error}"
                ) from None
        elif bind:
            found.append(frozenset({allowed[index % len(allowed)]}))
        else:
            found.append(frozenset())
    return found


def describe_sharing(ranks: Sequence[PlacedRank], bound: Sequence[frozenset[int]]) -> list[str]:
    """Return a warning about ranks that a rank file binds to the same processors."""
    owners: dict[int, PlacedRank] = {}
    told = []
    for placed, processors in zip(ranks, bound, strict=True):
        shared = sorted(each for each in processors if placed.slots and each in owners)
        if shared:
            other = owners[shared[0]]
            told.append(
                f"ranks {other.rank} and {placed.rank} share processors {format_numbers(shared)} of"
                f" {placed.host} (lines {other.line} and {placed.line} of the rank file)"
            )
        owners.update({each: placed for each in processors if each not in owners})
    return told


def thread_variables(
    variables: Mapping[str, str], bound: Sequence[frozenset[int]], topology: CpuTopology
) -> tuple[list[dict[str, str]], str]:
    """Return OMP_NUM_THREADS for each rank of a host, unless it is set, and a note of it.

    A rank that has several processors of its own uses them all; otherwise all share the host.
    """
    if "OMP_NUM_THREADS" in variables:
        return [{} for _ in bound], ""
    num_cores, num_ranks = len(topology.allowed), len(bound)
    share = max(1, num_cores // num_ranks)
    threads = [len(own) if len(own) > 1 else share for own in bound]
    if any(len(own) > 1 for own in bound):
        note = "OMP_NUM_THREADS is the number of processors of each rank"
    else:
        note = f"OMP_NUM_THREADS={share} ({num_cores} cores, {num_ranks} ranks)"
    numbers = [{"OMP_NUM_THREADS": str(number)} for number in threads]
    return numbers, f"{note}; set it yourself to choose another"

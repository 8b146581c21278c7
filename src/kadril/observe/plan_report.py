"""`kadril doctor --plan`: how an all-reduce over several hosts would go, as text.

    kadril doctor --plan --hosts 3,2 --bytes 64M
    kadril doctor --plan --hosts 2,2,2,2 --tiers 2x2x2
    kadril doctor --plan --hosts 0-2-4,1-3

Nothing is started: the plan is pure data. Where such hosts have been measured (`-mode p` of
`kadril.ddl`), what was found is told too, and the newest of it decides which way is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kadril.errors import ConfigError
from kadril.transport.tiers.cost_model import tiered_schedule
from kadril.transport.tiers.tier_plan import TierPlan, Way, make_plan, way_for
from kadril.transport.tiers.tier_tuning import TierTuning, cached_tunings
from kadril.transport.tiers.topology import Topology, read_dimensions

__all__ = ["describe_plan", "describe_tunings", "known_tunings", "read_bytes", "read_hosts"]

ITEM_BYTES = 4  # of float32
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
TIER_NAMES = ("host", "rack", "aisle")
MOST_LINES = 24


def read_hosts(text: str) -> list[tuple[int, ...]]:
    """Read numbers of ranks on hosts ("3,2"), or the ranks themselves ("0-2-4,1-3").

    Raises:
        ConfigError: it is neither.
    """
    words = [word.split("-") for word in text.split(",")]
    if not all(number.isdecimal() for word in words for number in word):
        raise ConfigError(
            "--hosts takes numbers of ranks, such as 3,2, or ranks, such as 0-2-4,1-3; got"
            f" {text!r}"
        )
    if any(len(word) > 1 for word in words):
        return [tuple(map(int, word)) for word in words]
    counts = [int(word[0]) for word in words]
    return [
        tuple(range(sum(counts[:host]), sum(counts[: host + 1]))) for host in range(len(counts))
    ]


def read_bytes(text: str) -> int:
    """Read a number of bytes with a unit: 64M, 1K, 4096.

    Raises:
        ConfigError: it is something else.
    """
    number = text.upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:] in UNITS else ""
    digits = number.removesuffix(unit)
    if not digits.isdecimal():
        raise ConfigError(f"--bytes takes a number with K, M or G, such as 64M; got {text!r}")
    return int(digits) * UNITS[unit]


def describe_plan(
    hosts: Sequence[Sequence[int]], num_bytes: int, way: Way, *, tiers: str = ""
) -> Iterator[str]:
    """Yield the lines of the plan of an all-reduce.

    Args:
        hosts: ranks of each host.
        num_bytes: of the array, as float32.
        way: see `make_plan`.
        tiers: dimensions, where hosts are in racks.

    Raises:
        ConfigError: hosts and dimensions that make no topology.
    """
    topology = topology_of(hosts, tiers)
    plan = make_plan(topology, num_bytes // ITEM_BYTES, way)
    yield (
        f"all-reduce of {num_bytes:,} bytes of float32 over {topology.size} ranks on"
        f" {len(topology.hosts)} hosts, by {way}"
    )
    yield from describe_hosts(plan)
    for tier in range(1, len(topology.tiers) + 1):
        yield from describe_tier(plan, tier)
    yield from describe_steps(plan)


def topology_of(hosts: Sequence[Sequence[int]], tiers: str) -> Topology:
    """The topology of hosts, in racks where dimensions are given.

    Raises:
        ConfigError: see `describe_plan`.
    """
    try:
        topology = Topology(tuple(map(tuple, hosts)))
    except ValueError as error:
        raise ConfigError(f"--hosts: {error}") from error
    return Topology.with_dimensions(hosts, read_dimensions(tiers)) if tiers else topology


def known_tunings(hosts: Sequence[Sequence[int]], tiers: str) -> list[TierTuning]:
    """Return what was measured on hosts with these ranks, newest first."""
    topology = topology_of(hosts, tiers)
    return [each for each in cached_tunings() if each.topology == topology]


def describe_tunings(known: Sequence[TierTuning], num_bytes: int) -> Iterator[str]:
    """Yield what was measured on such hosts, and how long an all-reduce takes by that."""
    if not known:
        yield (
            "measured: nothing yet on such hosts. kadril.ddl.init with `-mode p` measures them,"
            " and keeps it"
        )
    for each in known:
        yield from each.describe()
        schedule = tiered_schedule(each.topology, num_bytes, way=way_for(num_bytes, each.limits))
        seconds = schedule.seconds(each.speeds)
        yield f"  an all-reduce takes {seconds * 1e3:.3g} ms by the cost model"


def describe_hosts(plan: TierPlan) -> Iterator[str]:
    """Yield the part of each rank after the reduce-scatter inside its host."""
    yield "\ntier 0, inside each host: reduce-scatter, in shared memory"
    for host, (ranks, counts) in enumerate(zip(plan.topology.hosts, plan.counts, strict=True)):
        parts = ", ".join(
            f"rank {rank}: {count * ITEM_BYTES:,}"
            for rank, count in zip(ranks, counts, strict=True)
        )
        yield f"  host {host}   {parts}"


def describe_tier(plan: TierPlan, tier: int) -> Iterator[str]:
    """Yield who adds what in a tier, and what its uplinks carry."""
    sums = plan.steps[tier - 1]
    name = TIER_NAMES[min(tier, len(TIER_NAMES)) - 1]
    yield f"\ntier {tier}, between {name}s: bytes, whose partial sums, who adds them"
    for each in sums[:MOST_LINES]:
        owners = "all of them" if len(each.owners) > 1 else f"rank {each.owners[0]}"
        sources = " + ".join(map(str, each.sources))
        yield (
            f"  [{each.begin * ITEM_BYTES:>13,}, {each.end * ITEM_BYTES:>13,})   {sources:<16}"
            f" {owners}"
        )
    if len(sums) > MOST_LINES:
        yield f"  ... and {len(sums) - MOST_LINES} more"
    units = plan.topology.units(tier)
    bound = 2 * (len(units) - 1) / len(units) * plan.num_elements
    yield f"\nuplinks of {name}s: bytes sent and received; 1.000 is 2 (H - 1) / H of the array"
    for unit, (sent, received) in enumerate(plan.uplinks(tier)):
        share = max(sent, received) / bound if bound else 0.0
        yield (
            f"  {name} {unit}   {sent * ITEM_BYTES:>13,} {received * ITEM_BYTES:>13,}   {share:.3f}"
        )


def describe_steps(plan: TierPlan) -> Iterator[str]:
    """Yield what happens to a chunk, one step after the other."""
    yield "\nsteps"
    names = ["reduce-scatter inside hosts"]
    tiers = list(enumerate(plan.steps, 1))
    names += [f"out across tier {tier}, and add" for tier, sums in tiers if sums]
    names += [
        f"back across tier {tier}"
        for tier, sums in reversed(tiers)
        if any(each.backward() for each in sums)
    ]
    for number, name in enumerate([*names, "all-gather inside hosts"], 1):
        yield f"  {number}  {name}"

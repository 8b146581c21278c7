"""The texts of `-dump_iter` and `-rebind_iter`: what rank 0 prints of the all-reduces of all ranks.

ddl: all-reduces 1 to 100, largest 532.2 KiB: shm all-reduce
ddl:   reduction        0.31 ms in the median, 1.20 ms at most, after the last learner has come
ddl:   within the host  0.31 ms
ddl:   waiting          0.05 ms, from the first learner to the last
ddl:   slowest learner  rank 1 on host-a, 0.04 ms late in the mean
ddl:   largest jitter   rank 1 on host-a, 0.02 ms
ddl:   slow link        none: there is one host
"""

from __future__ import annotations

from collections.abc import Sequence

from kadril.ddl.call_log import Statistics
from kadril.ddl.links import Link, find_slow_link
from kadril.world import Layout

__all__ = ["SlowLearners", "describe_statistics"]

NUM_STRIKES = 3
SLOW = 0.25  # of the time of a reduction; who is late by less does not hold the others up
MIN_LATENESS = 50e-6  # seconds; less is the noise of a scheduler


def describe_statistics(
    found: Statistics, last_call: int, links: Sequence[Link], layout: Layout, hosts: Sequence[str]
) -> str:
    """Return the report about some all-reduces.

    Args:
        found: what all ranks know of them.
        last_call: number of the last of them, from 1.
        links: between hosts, as they were measured.
        layout: which ranks share a host.
        hosts: name of the host of each rank.
    """
    by = ", ".join(
        way if len(found.ways) == 1 else f"{way} ({count} times)"
        for way, count in found.ways.items()
    )
    late, jitter = found.latest, found.most_jitter
    tiers = found.tiers or {tier_name(layout): found.seconds}
    rows = [
        (
            "reduction",
            f"{ms(found.seconds)} in the median, {ms(found.longest)} at most, after the last"
            " learner has come",
        ),
        *((name, ms(seconds)) for name, seconds in tiers.items()),
        ("waiting", f"{ms(found.waiting)}, from the first learner to the last"),
        (
            "slowest learner",
            f"rank {late} on {hosts[late]}, {ms(found.lateness[late])} late in the mean",
        ),
        ("largest jitter", f"rank {jitter} on {hosts[jitter]}, {ms(found.jitter[jitter])}"),
        ("slow link", describe_links(links, layout, hosts)),
    ]
    width = max(len(name) for name, _ in rows)
    first = last_call - found.num_calls + 1
    head = f"ddl: all-reduces {first} to {last_call}, largest {size(found.num_bytes)}: {by}"
    return "\n".join([head, *(f"ddl:   {name:<{width}}  {text}" for name, text in rows)])


def tier_name(layout: Layout) -> str:
    """Name what a reduction crosses, where the transport does not tell its tiers apart."""
    if layout.size == 1:
        return "one learner"
    return "within the host" if len(layout.hosts) == 1 else "all learners"


def describe_links(links: Sequence[Link], layout: Layout, hosts: Sequence[str]) -> str:
    """Return what is known of the links between hosts."""
    if len(layout.hosts) == 1:
        return "none: there is one host"

    def shown(link: Link) -> str:
        ends = (
            f"{hosts[ranks[0]]} (ranks {ranks[0]}..{ranks[-1]})"
            if len(ranks) > 1
            else f"{hosts[ranks[0]]} (rank {ranks[0]})"
            for ranks in (layout.hosts[place] for place in link.hosts)
        )
        return f"{' to '.join(ends)}, {link.rate / 1e6:.1f} MB/s"

    slow = find_slow_link(links)
    if slow is not None:
        link, host = slow
        cause = "" if host is None else f"; the uplink of {hosts[layout.hosts[host][0]]} is slow"
        return f"{shown(link)}{cause}"
    if not links:
        return "not measured"
    slowest = max(links, key=lambda link: link.seconds)
    return f"none stands out; the slowest is {shown(slowest)}"


def ms(seconds: float) -> str:
    """Seconds as milliseconds."""
    return f"{1e3 * seconds:.2f} ms"


def size(num_bytes: int) -> str:
    """A number of bytes."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.1f} {unit}" if unit != "B" else f"{num_bytes} B"
        num_bytes /= 1024  # type: ignore[assignment]
    return f"{num_bytes:.1f} GiB"


class SlowLearners:
    """Whether a learner was the slowest in three looks in a row; all ranks count alike."""

    def __init__(self) -> None:
        self._suspect = -1
        self._num_strikes = 0

    def look(self, found: Statistics) -> int | None:
        """Return a rank that has been slow three times in a row, once for each three."""
        late = found.lateness[found.latest]
        is_slow = late > max(SLOW * found.seconds, MIN_LATENESS)
        suspect = found.latest if is_slow else -1
        self._num_strikes = self._num_strikes + 1 if suspect == self._suspect else 1
        self._suspect = suspect
        if suspect < 0 or self._num_strikes < NUM_STRIKES:
            return None
        self._num_strikes = 0
        return suspect


def describe_slow(found: Statistics, rank: int, layout: Layout, hosts: Sequence[str]) -> str:
    """Return the warning about a learner that has been slow for long."""
    cores = found.cores[rank]
    rivals = [
        other
        for other in layout.host_of(rank)
        if other != rank and found.cores[other] == cores and len(cores) < len(layout.host_of(rank))
    ]
    crowd = (
        f"; rank {', '.join(map(str, rivals))} may run on the same only: pin each rank to cores of"
        " its own (kadril run --bind)"
        if rivals
        else ""
    )
    return (
        f"ddl: rank {rank} on {hosts[rank]} was the slowest learner in {NUM_STRIKES} looks in a"
        f" row, {ms(found.lateness[rank])} late in the mean of the last. It may run on cores"
        f" {list(cores)}{crowd}. See what else runs there (`kadril doctor`, top)"
    )

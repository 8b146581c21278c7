"""Findings of a probe of tiers, and the way that arrays of each size take by them; kept on disk.

    probe (`tier_probe.py`) --> speed of each tier --> cost model --> way by size
                                       |
                                       +--> ~/.cache/kadril/tiers/<key>.json, read next time

The key is made of host names, the topology and versions: other hosts, or another kadril, measure
again. The file is its owner's alone, and one that is not is not read.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from kadril.transport.tiers.cost_model import TierSpeed, tiered_schedule
from kadril.transport.tiers.tier_plan import WAYS, Way, WayLimits
from kadril.transport.tiers.topology import Topology

__all__ = [
    "Measured",
    "TierTuning",
    "cache_directory",
    "cached_tunings",
    "choose_limits",
    "load",
    "read_measured",
    "slowest",
    "store",
]

FORMAT = 1
SIZES = [1 << power for power in range(11, 23)]  # 2 KiB to 4 MiB
UNKNOWN = TierSpeed(bandwidth=10e9, latency=1e-6)  # of a tier that nothing crosses


class Measured(NamedTuple):
    """A link between the leaders of two units, as one of them has measured it.

    Attributes:
        tier: that it belongs to: 1 between hosts, 2 between groups of hosts; 0 inside a host.
        units: its ends, by index within the tier; twice the host for tier 0.
        speed: speed of the link.
    """

    tier: int
    units: tuple[int, int]
    speed: TierSpeed


@dataclass(frozen=True)
class TierTuning:
    """Measurements on some hosts, and what follows from them.

    Attributes:
        hostnames: of the hosts, in the order of the topology.
        topology: whose ranks were there.
        measured: figures of the links that were measured.
        limits: up to which size arrays take which way.
        made: when, in seconds since 1970.
    """

    hostnames: tuple[str, ...]
    topology: Topology
    measured: tuple[Measured, ...]
    limits: WayLimits
    made: float

    @classmethod
    def of(
        cls, hostnames: Sequence[str], topology: Topology, measured: Sequence[Measured], cores: int
    ) -> TierTuning:
        """Choose by what was measured.

        Args:
            hostnames: see the class.
            topology: see the class.
            measured: see the class.
            cores: number of cores of a host.
        """
        limits = choose_limits(topology, slowest(measured), cores)
        return cls(tuple(hostnames), topology, tuple(measured), limits, time.time())

    @property
    def speeds(self) -> tuple[TierSpeed, ...]:
        """The speed of each tier, from that inside a host on."""
        return speeds_of(self.topology, slowest(self.measured))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "format": FORMAT,
            "hostnames": self.hostnames,
            "hosts": self.topology.hosts,
            "groups": self.topology.groups,
            "measured": self.measured,
            "limits": self.limits,
            "made": self.made,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TierTuning:
        """Read what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        if data["format"] != FORMAT:
            raise ValueError(f"format {data['format']}")
        topology = Topology(
            tuple(map(tuple, data["hosts"])),
            tuple(tuple(map(tuple, tier)) for tier in data["groups"]),
        )
        measured = tuple(map(read_measured, data["measured"]))
        limits = WayLimits(*map(int, data["limits"]))
        names = tuple(map(str, data["hostnames"]))
        return cls(names, topology, measured, limits, float(data["made"]))

    def describe(self) -> Iterator[str]:
        """Yield lines for people."""
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.made))
        yield f"measured on {', '.join(self.hostnames)} ({made})"
        for tier, speed in enumerate(self.speeds):
            count = sum(each.tier == tier for each in self.measured)
            if not count:
                continue
            name = "inside a host" if tier == 0 else f"tier {tier}, slowest of {count} links"
            yield (f"  {name:<28} {speed.latency * 1e6:8.0f} us  {speed.bandwidth / 1e6:8.1f} MB/s")
        ranges = [
            f"{way} up to {limit:,} bytes" for way, limit in zip(WAYS, self.limits, strict=False)
        ]
        yield f"  ways: {', '.join(ranges)}, then {WAYS[-1]}"


def read_measured(data: Sequence[Any]) -> Measured:
    """Read what JSON has made of a `Measured`."""
    tier, (a, b), speed = data
    return Measured(int(tier), (int(a), int(b)), TierSpeed(*map(float, speed)))


def slowest(measured: Sequence[Measured]) -> dict[int, TierSpeed]:
    """The speed of each tier: that of its slowest link, since all wait for it."""
    tiers: dict[int, TierSpeed] = {}
    for each in measured:
        known = tiers.get(each.tier, each.speed)
        tiers[each.tier] = TierSpeed(
            min(known.bandwidth, each.speed.bandwidth),
            max(known.latency, each.speed.latency),
            max(known.overhead, each.speed.overhead),
            max(known.byte_cost, each.speed.byte_cost),
        )
    return tiers


def speeds_of(topology: Topology, tiers: Mapping[int, TierSpeed]) -> tuple[TierSpeed, ...]:
    """The speed of each tier of a topology."""
    return tuple(tiers.get(tier, UNKNOWN) for tier in range(len(topology.tiers) + 1))


def choose_limits(topology: Topology, tiers: Mapping[int, TierSpeed], cores: int) -> WayLimits:
    """Find the size up to which each way is the quickest, by the cost model.

    A way with fewer packets is kept for as long as it is the best one, so what is chosen by size
    goes from one way to the next once.
    """
    speeds = speeds_of(topology, tiers)

    def seconds(way: Way, num_bytes: int) -> float:
        return tiered_schedule(topology, num_bytes, way=way).seconds(speeds, cores)

    limits, place = [0, 0], 0
    for num_bytes in SIZES:
        best = min(WAYS, key=lambda way: seconds(way, num_bytes))
        place = max(place, WAYS.index(best))
        for passed in range(place, len(limits)):
            limits[passed] = num_bytes
    return WayLimits(*limits)


# On disk.


def cache_directory() -> Path:
    """Return where tunings are kept; `XDG_CACHE_HOME` moves it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "kadril" / "tiers"


def key_of(hostnames: Sequence[str], topology: Topology, outer_kind: str) -> str:
    """Return the name of the file for some hosts and the transport between them."""
    known = {
        "format": FORMAT,
        "hostnames": list(hostnames),
        "hosts": topology.hosts,
        "groups": topology.groups,
        "carrier": outer_kind,  # by another name in the hash, what is kept would not be found
        "kadril": metadata.version("kadril"),
        "kernel": platform.release(),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def load(hostnames: Sequence[str], topology: Topology, outer_kind: str) -> TierTuning | None:
    """Read what is known of some hosts; None where nothing is."""
    found = read_private(cache_directory() / f"{key_of(hostnames, topology, outer_kind)}.json")
    return found if found is None or found.topology == topology else None


def cached_tunings() -> list[TierTuning]:
    """All that is known, newest first."""
    try:
        paths = sorted(cache_directory().glob("*.json"))
    except OSError:
        return []
    found = [tuning for path in paths if (tuning := read_private(path)) is not None]
    return sorted(found, key=lambda tuning: -tuning.made)


def read_private(path: Path) -> TierTuning | None:
    """Read a file; None where it is missing, damaged, or somebody else may have written it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        state = os.fstat(descriptor)
        if state.st_uid != os.geteuid() or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        try:
            return TierTuning.from_json(json.loads(file.read()))
        except (KeyError, TypeError, ValueError):
            return None


def store(tuning: TierTuning, outer_kind: str) -> None:
    """Keep what was measured, if there is room: what cannot be kept is measured again."""
    directory = cache_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, made = tempfile.mkstemp(dir=directory, suffix=".new")  # its owner's alone
        with os.fdopen(descriptor, "w") as file:
            json.dump(tuning.to_json(), file)
        key = key_of(tuning.hostnames, tuning.topology, outer_kind)
        Path(made).replace(directory / f"{key}.json")
    except OSError:
        return

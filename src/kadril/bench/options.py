"""Options of `kadril bench`."""

from __future__ import annotations

import dataclasses
import re

from kadril.bench.collectives import COLLECTIVES, ITEM_BYTES
from kadril.errors import ConfigError
from kadril.frameworks import is_installed

__all__ = ["PEERS", "BenchOptions", "format_size", "parse_names", "parse_size"]

PEERS = ("gloo", "openmpi", "mpich")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

# From here on an array does not fit into the caches next to a core beside anything else, and where
# its bytes were last written begins to matter.
TOUCH_FROM = 64 << 10

DEFAULT_MEMORY = "torch" if is_installed("torch") else "numpy"


@dataclasses.dataclass(frozen=True)
class BenchOptions:
    """One run of the bench.

    Attributes:
        num_ranks: number of ranks of every job.
        collectives: which to measure.
        sizes: bytes; see `collectives.py` for what the size of a collective is.
        peers: which peers; all that are found where None.
        settings: "pinned" (one rank per core), "unpinned", or both.
        touch: "on", "off", or "auto": from 64 KiB on. Whether each rank writes its array anew
            before each sample.
        memory: "torch" or "numpy": whose allocator all arrays are from; see `engines/base.py`.
        num_rounds: how often all engines take turns on everything.
        seconds: aimed at for each measurement, i.e. each turn of an engine.

    Raises:
        ConfigError: a value makes no sense.
    """

    num_ranks: int = 2
    collectives: tuple[str, ...] = tuple(COLLECTIVES)
    sizes: tuple[int, ...] = (4, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
    peers: tuple[str, ...] | None = None
    settings: tuple[str, ...] = ("pinned", "unpinned")
    touch: str = "auto"
    memory: str = DEFAULT_MEMORY
    num_rounds: int = 5
    seconds: float = 0.25

    def __post_init__(self) -> None:
        if self.num_ranks < 2:
            raise ConfigError(f"a bench needs at least 2 ranks (-np), got {self.num_ranks}")
        check_names("collective", self.collectives, tuple(COLLECTIVES))
        check_names("peer", self.peers or (), PEERS)
        check_names("setting", self.settings, ("pinned", "unpinned"))
        if not self.collectives or not self.sizes:
            raise ConfigError("nothing to measure: give at least one collective and one size")
        if not self.settings:
            raise ConfigError("nothing to measure: --no-pinned and --no-unpinned leave no setting")
        for size in self.sizes:
            if size < ITEM_BYTES:
                raise ConfigError(f"a size is at least {ITEM_BYTES} bytes, one float32; got {size}")
        check_names("touch", (self.touch,), ("auto", "on", "off"))
        check_names("memory", (self.memory,), ("torch", "numpy"))
        if self.num_rounds < 1 or self.seconds <= 0:
            raise ConfigError("--rounds must be at least 1, and --seconds more than 0")

    def touches(self, num_bytes: int) -> bool:
        """Whether arrays of this size are written anew before each sample."""
        return num_bytes >= TOUCH_FROM if self.touch == "auto" else self.touch == "on"


def check_names(kind: str, names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raise `ConfigError` for a name that is not known."""
    for name in names:
        if name not in known:
            raise ConfigError(f"no {kind} {name!r}; there are {', '.join(known)}")


def parse_names(text: str) -> tuple[str, ...]:
    """Names between commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def parse_size(text: str) -> int:
    """Bytes from a text like 4, 64K or 1M; the units are powers of 1024.

    Raises:
        ConfigError: it cannot be read.
    """
    match = re.fullmatch(r"(\d+)\s*([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"cannot read the size {text!r}; write it like 4, 64K, 16M or 1G")
    return int(match[1]) * UNITS[match[2].upper()]


def format_size(num_bytes: int) -> str:
    """Return a number of bytes for people: exact where it is a whole number of a unit."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= factor:
            return f"{num_bytes / factor:.4g} {unit}"
    return f"{num_bytes} B"

"""Quantities as people write them: 10Gbit, 50us."""

from __future__ import annotations

import re

from kadril.errors import ConfigError

__all__ = ["format_bandwidth", "format_duration", "parse_bandwidth", "parse_duration"]

PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
DURATIONS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_bandwidth(text: str) -> float:
    """Return bytes per second: "10Gbit" and "1.25GB" are the same.

    Raises:
        ConfigError: it is something else.
    """
    found = re.fullmatch(r"([\d.]+)\s*([kmgt]?)(bit|b)(/s)?", text.strip(), re.IGNORECASE)
    value = number(found[1]) if found else 0.0
    if found is None or value <= 0:
        raise ConfigError(f"a bandwidth is written as 10Gbit or 1.25GB (per second), got {text!r}")
    return value * PREFIXES[found[2].lower()] / (8 if found[3].lower() == "bit" else 1)


def parse_duration(text: str) -> float:
    """Return seconds: "50us", "1.5ms".

    Raises:
        ConfigError: it is something else.
    """
    found = re.fullmatch(r"([\d.]+)\s*(ns|us|ms|s)", text.strip())
    value = number(found[1]) if found else -1.0
    if found is None or value < 0:
        raise ConfigError(f"a duration is written as 50us, 1.5ms or 2s, got {text!r}")
    return value * DURATIONS[found[2]]


def number(text: str) -> float:
    """The number, or -1 where there are too many points."""
    return float(text) if re.fullmatch(r"\d+\.?\d*|\.\d+", text) else -1.0


def format_bandwidth(value: float) -> str:
    """Bytes per second as text, in bits: that is how links are sold."""
    return f"{value * 8 / 1e9:g} Gbit/s" if value >= 1e8 else f"{value * 8 / 1e6:g} Mbit/s"


def format_duration(seconds: float) -> str:
    """Seconds as text."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"

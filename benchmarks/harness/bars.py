"""Bars that kadril set itself, and whether a run reached them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kadril.bench.figures import percentile
from kadril.bench.table import format_seconds

__all__ = [
    "Bar",
    "Spread",
    "at_least",
    "at_most",
    "print_bars",
    "show_seconds",
    "show_times",
]


class Bar(NamedTuple):
    """A bar and what was measured.

    Attributes:
        text: what it says.
        measured: what was measured, as text.
        state: "reached", "missed" or "not measured".
    """

    text: str
    measured: str
    state: str


class Spread(NamedTuple):
    """A median, and where eight of ten rounds lie.

    Attributes:
        value: the median.
        p10: percentile; likewise p90.
    """

    value: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of some values, of which there is at least one."""
        return cls(*(percentile(values, share) for share in (0.5, 0.1, 0.9)))


def at_least(text: str, found: Spread | None, least: float) -> Bar:
    """Return the bar of a ratio that must be reached; `found` is None where it was not measured."""
    if found is None:
        return Bar(text, "", "not measured")
    return Bar(text, show_times(found), "reached" if found.value >= least else "missed")


def at_most(
    text: str, found: Spread | None, most: float, show: Callable[[Spread], str] | None = None
) -> Bar:
    """Return the bar of a ratio that must not be exceeded, or of anything that `show` can show."""
    if found is None:
        return Bar(text, "", "not measured")
    measured = (show or show_times)(found)
    return Bar(text, measured, "reached" if found.value <= most else "missed")


def show_times(ratio: Spread) -> str:
    """Return a ratio as text."""
    return f"{ratio.value:.3g}x (rounds {ratio.p10:.3g}-{ratio.p90:.3g})"


def show_seconds(seconds: Spread) -> str:
    """Return a time as text."""
    value, p10, p90 = map(format_seconds, seconds)
    return f"{value} (p10-p90 {p10} to {p90})"


def print_bars(bars: Sequence[Bar]) -> bool:
    """Print one line per bar, and return whether all were reached."""
    width = max(len(bar.text) for bar in bars)
    for bar in bars:
        print(f"{bar.state:<12}  {bar.text:<{width}}  {bar.measured}")
    num_reached = sum(bar.state == "reached" for bar in bars)
    print(f"\n{num_reached} of {len(bars)} bars reached")
    return num_reached == len(bars)

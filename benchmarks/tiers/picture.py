"""A picture of the largest all-reduces: time of each contestant, and the least possible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contestants import SUMS
from harness.results import Results
from layouts import LAYOUTS, LINKS, Layout, Link, format_bytes
from predictions import predict

__all__ = ["draw"]

PANEL_INCHES = (3.6, 2.9)


def draw(results: Results, path: Path) -> str:
    """Draw one panel per layout and link, and return the title."""
    from matplotlib.figure import Figure

    width, height = PANEL_INCHES
    size = (width * len(LAYOUTS), height * len(LINKS))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(LINKS), len(LAYOUTS), squeeze=False, sharey=True)
    for row, link in zip(panels, LINKS, strict=True):
        for panel, layout in zip(row, LAYOUTS, strict=True):
            draw_panel(panel, results, layout, link)
    title = "All-reduce across hosts: time as a multiple of the least possible"
    figure.suptitle(f"{title}\n(dots: as the cost model predicts)")
    figure.savefig(path)
    return title


def draw_panel(panel: Any, results: Results, layout: Layout, link: Link) -> None:
    """One bar per contestant, with its 10th and 90th percentile."""
    bound = link.bound(layout.num_hosts, link.largest)
    workload = link.workload(layout, link.largest)
    predicted = predict(link, layout, link.largest, results.facts)
    names = list(reversed(SUMS))
    for place, name in enumerate(names):
        series = results.find(workload, name)
        if series is None:
            continue
        times = [value / bound for value in series.spread]
        spread = [[times[0] - times[1]], [times[2] - times[0]]]
        color = "C0" if name.startswith("tiered") else "C7"
        panel.barh(place, times[0], xerr=spread, color=color, error_kw={"lw": 0.8})
        if name in predicted:
            panel.plot(predicted[name] / bound, place, "o", color="black", markersize=3)
    panel.axvline(1.0, color="C3", lw=1)
    panel.set_yticks(range(len(names)), names, fontsize=8)
    panel.set_title(f"{layout.name}, {link.name}, {format_bytes(link.largest)}", fontsize=9)
    panel.set_xlim(0, 8)
    panel.grid(visible=True, axis="x", alpha=0.3)

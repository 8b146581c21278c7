"""A picture of memory over the phases of a step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from harness.memory_trace import MemoryTrace

__all__ = ["draw_memory"]

INCHES = (8.4, 4.2)


def draw_memory(traces: Mapping[str, MemoryTrace], title: str, path: Path) -> None:
    """Draw the memory of a rank over the phases of a step, one line per setting.

    Args:
        traces: by setting; all have the same phases, which are drawn as wide as each other.
        title: of the picture.
        path: of the file; its suffix says what kind.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=INCHES, layout="constrained")
    panel = figure.subplots()
    for index, (setting, trace) in enumerate(traces.items()):
        places, sizes = zip(*trace.samples, strict=True)
        mebibytes = [size / 2**20 for size in sizes]
        label = f"{setting} (peak {trace.peak / 2**20:.0f} MiB)"
        panel.step(places, mebibytes, where="post", color=f"C{index}", label=label)
    phases = next(iter(traces.values())).phases
    for place in range(1, len(phases)):
        panel.axvline(place, color="0.7", linewidth=0.8)
    panel.set_xticks([place + 0.5 for place in range(len(phases))], phases)
    panel.tick_params(axis="x", length=0)
    panel.set_xlim(0, len(phases))
    panel.set_ylim(bottom=0)
    panel.set_ylabel("MiB per rank")
    panel.grid(visible=True, axis="y", alpha=0.3)
    panel.legend(loc="best", fontsize=8)
    panel.set_title(title)
    figure.savefig(path, dpi=120)

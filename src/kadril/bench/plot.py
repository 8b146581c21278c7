"""A picture of a report: time of a call over its size, one panel per collective."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kadril.bench.figures import Result
from kadril.bench.options import format_size
from kadril.bench.peers import TITLES
from kadril.bench.report import Report
from kadril.errors import ConfigError

__all__ = ["check_matplotlib", "draw"]

PANELS_PER_ROW = 4
PANEL_INCHES = (4.2, 3.6)


def check_matplotlib() -> None:
    """Find out before the measurement that nothing can be drawn after it.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib; try: pip install 'kadril[plot]'") from None


def draw(report: Report, path: Path) -> None:
    """Draw medians and their 10th to 90th percentiles, each engine in its better setting."""
    from matplotlib.figure import Figure

    collectives = list(dict.fromkeys(result.collective for result in report.results))
    num_columns = min(len(collectives), PANELS_PER_ROW)
    num_rows = -(-len(collectives) // num_columns)
    width, height = PANEL_INCHES
    # Without pyplot: no window system, and no global state.
    size = (max(width * num_columns, 2 * width), height * num_rows)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(num_rows, num_columns, squeeze=False).ravel()
    for panel, collective in zip(panels, collectives, strict=False):
        draw_panel(panel, [r for r in report.results if r.collective == collective])
        panel.set_title(collective)
    for panel in panels[len(collectives) :]:
        panel.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(f"{report.num_ranks} ranks on {report.machine['cpu']}, float32, {report.date}")
    figure.savefig(path, dpi=120)


def draw_panel(panel: Any, results: list[Result]) -> None:
    """One line per engine."""
    sizes = sorted({result.num_bytes for result in results})
    for index, engine in enumerate(TITLES):
        better: dict[int, Result] = {}
        for result in (r for r in results if r.engine == engine):
            known = better.get(result.num_bytes)
            if known is None or result.p50 < known.p50:
                better[result.num_bytes] = result
        line = [better[size] for size in sizes if size in better]
        if line:
            # A barrier has no size, and a logarithmic axis has no zero.
            places = [max(result.num_bytes, 1) for result in line]
            medians = [result.p50 * 1e6 for result in line]
            spread = [
                [(result.p50 - result.p10) * 1e6 for result in line],
                [(result.p90 - result.p50) * 1e6 for result in line],
            ]
            panel.errorbar(
                places, medians, yerr=spread, color=f"C{index}", marker="o", label=TITLES[engine]
            )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xticks([max(size, 1) for size in sizes], [format_size(size) for size in sizes])
    panel.tick_params(axis="x", labelrotation=30, labelsize=8)
    panel.minorticks_off()
    panel.set_ylabel("microseconds per call")
    panel.grid(visible=True, alpha=0.3)

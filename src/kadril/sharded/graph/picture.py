"""The picture of `explain`: bytes live over the nodes of backward graphs, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from kadril.sharded.graph.graph_explanation import GraphExplanation

__all__ = ["draw", "svg"]

WIDTH, PANEL, MARGIN, GAP = 900, 260, 60, 40
BEFORE, AFTER, REDUCE = "#9aa0a6", "#1a73e8", "#d93025"


class Curve(NamedTuple):
    """Bytes at each node of a graph after the pass."""

    before: list[int]
    after: list[int]
    reductions: list[int]  # places of nodes


def curve_of(graph: GraphExplanation) -> Curve:
    """Return both curves over the nodes of the edited graph; a new node has its predecessor's."""
    old = {node.name: node.live for node in graph.before}
    before: list[int] = []
    for node in graph.after:
        before.append(old.get(node.name, before[-1] if before else graph.before[0].live))
    reductions = [
        place
        for place, node in enumerate(graph.after)
        if node.target.startswith(("reduce_gradient_", "send_gradient", "give_gradient_"))
    ]
    return Curve(before, [node.live for node in graph.after], reductions)


def draw(graphs: Sequence[GraphExplanation], path: Path, title: str) -> Path:
    """Write the picture.

    Raises:
        ValueError: neither .svg nor .png.
    """
    if path.suffix == ".svg":
        path.write_text(svg(graphs, title))
    elif path.suffix == ".png":
        draw_png(graphs, path, title)
    else:
        raise ValueError(f"{path.name}: a picture is written as .svg or .png")
    return path


def svg(graphs: Sequence[GraphExplanation], title: str) -> str:
    """Return the picture as SVG."""
    height = MARGIN + len(graphs) * (PANEL + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}"'
        f' width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="15">bytes live in the backward pass,'
        f" {escape(title)}</text>",
        f'<text x="{MARGIN}" y="40" fill="{BEFORE}">before the pass</text>',
        f'<text x="{MARGIN + 110}" y="40" fill="{AFTER}">after</text>',
        f'<text x="{MARGIN + 160}" y="40" fill="{REDUCE}">a gradient is reduced</text>',
    ]
    for number, graph in enumerate(graphs):
        parts += panel(graph, MARGIN + number * (PANEL + GAP), number + 1)
    return "\n".join([*parts, "</svg>", ""])


def panel(graph: GraphExplanation, top: int, number: int) -> list[str]:
    """Draw one graph: an area for each curve, a tick for each reduction, names on hover."""
    curve = curve_of(graph)
    most = max(*curve.before, *curve.after, 1)
    step = (WIDTH - 2 * MARGIN) / len(curve.after)
    bottom = top + PANEL

    def area(values: Sequence[int], colour: str, opacity: float) -> str:
        points = [f"{MARGIN},{bottom}"]
        for place, value in enumerate(values):
            y = bottom - (PANEL - 20) * value / most
            points += [
                f"{MARGIN + place * step:.1f},{y:.1f}",
                f"{MARGIN + (place + 1) * step:.1f},{y:.1f}",
            ]
        points.append(f"{MARGIN + len(values) * step:.1f},{bottom}")
        return (
            f'<polygon points="{" ".join(points)}" fill="{colour}" fill-opacity="{opacity}"'
            f' stroke="{colour}"/>'
        )

    parts = [
        area(curve.before, BEFORE, 0.25),
        area(curve.after, AFTER, 0.35),
        f'<text x="{MARGIN}" y="{bottom + 16}">graph {number}: {len(curve.after)} nodes, peak'
        f" {graph.peak_before / 2**20:.2f} MiB before, {graph.peak_after / 2**20:.2f} MiB after"
        "</text>",
        f'<text x="4" y="{top + 24}">{most / 2**20:.1f}</text>',
        f'<text x="4" y="{top + 38}">MiB</text>',
        f'<line x1="{MARGIN}" y1="{bottom}" x2="{WIDTH - MARGIN}" y2="{bottom}" stroke="black"/>',
    ]
    for place in curve.reductions:
        x = MARGIN + (place + 0.5) * step
        note = graph.notes.get(graph.after[place].name, "")
        parts.append(
            f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom - 8}" stroke="{REDUCE}"'
            f' stroke-width="2"><title>{escape(note)}</title></line>'
        )
    return parts


def draw_png(graphs: Sequence[GraphExplanation], path: Path, title: str) -> None:
    """Draw the picture by matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "a .png needs matplotlib: pip install kadril[plot], or write an .svg"
        ) from error
    figure = Figure(figsize=(9, 0.6 + 2.8 * max(1, len(graphs))), layout="constrained")
    figure.suptitle(f"bytes live in the backward pass, {title}")
    for number, graph in enumerate(graphs):
        curve = curve_of(graph)
        axes = figure.add_subplot(len(graphs), 1, number + 1)
        places = range(len(curve.after))
        for values, colour, label in (
            (curve.before, BEFORE, "before the pass"),
            (curve.after, AFTER, "after"),
        ):
            heights = [value / 2**20 for value in values]
            axes.fill_between(places, heights, step="mid", color=colour, alpha=0.35, label=label)
        for place in curve.reductions:
            axes.axvline(place, ymax=0.03, color=REDUCE)
        axes.set(xlabel="node", ylabel="MiB", title=f"graph {number + 1}")
        axes.legend()
    figure.savefig(path)

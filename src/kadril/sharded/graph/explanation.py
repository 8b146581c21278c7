"""Result of `explain`: backward graphs as tables, as numbers and as a picture."""

from __future__ import annotations

import dataclasses
import pathlib

from kadril.sharded.graph.graph_explanation import GraphExplanation, bytes_text
from kadril.sharded.graph.picture import draw

__all__ = ["Explanation"]


@dataclasses.dataclass(frozen=True)
class Explanation:
    """All backward graphs of a model.

    Attributes:
        graphs: in the order in which they were compiled.
        rank: the rank that they are for.
        num_ranks: of how many.
    """

    graphs: tuple[GraphExplanation, ...]
    rank: int
    num_ranks: int

    def text(self) -> str:
        """Return the graphs as tables."""
        if not self.graphs:
            return "no backward graph: no parameter of the model needs a gradient"
        parts = []
        for number, graph in enumerate(self.graphs, 1):
            handed = [graph.before[-1].live, graph.after[-1].live]
            parts.append(
                f"backward graph {number} of {len(self.graphs)}, rank {self.rank} of"
                f" {self.num_ranks}: {len(graph.owners)} gradients, {graph.num_dropped} of them"
                f" dropped here\npeak {bytes_text(graph.peak_before)} before,"
                f" {bytes_text(graph.peak_after)} after; at the end"
                f" {bytes_text(handed[0])} before, {bytes_text(handed[1])} after\n\n{graph.text()}"
            )
        return "\n\n".join(parts)

    def save(self, path: str | pathlib.Path) -> pathlib.Path:
        """Write the picture: bytes over the nodes, before and after; .svg, or .png by matplotlib.

        Raises:
            ValueError: another suffix.
        """
        return draw(self.graphs, pathlib.Path(path), f"rank {self.rank} of {self.num_ranks}")

"""Explanation of one backward graph: its nodes before and after the pass, and a table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kadril.sharded.graph.liveness import NodeMemory

__all__ = ["GraphExplanation", "bytes_text"]


@dataclasses.dataclass(frozen=True)
class GraphExplanation:
    """One backward graph.

    Attributes:
        before: its nodes before the pass.
        after: its nodes after it.
        owners: rank of each gradient, by name, in the order in which they are reduced; None where
            each rank gets a part.
        rank: the rank that this graph is for.
        is_partitioned: whether gradients of other owners are dropped.
        notes: what nodes have to do with gradients, by name of the node.
    """

    before: tuple[NodeMemory, ...]
    after: tuple[NodeMemory, ...]
    owners: dict[str, int | None]
    rank: int
    is_partitioned: bool
    notes: dict[str, str]

    @property
    def peak_before(self) -> int:
        """Most bytes live at once, before the pass."""
        return max(node.live for node in self.before)

    @property
    def peak_after(self) -> int:
        """Most bytes live at once, after the pass."""
        return max(node.live for node in self.after)

    @property
    def num_dropped(self) -> int:
        """Number of gradients that this rank does not keep."""
        return self.is_partitioned * sum(owner != self.rank for owner in self.owners.values())

    def text(self) -> str:
        """Return a table of the nodes."""
        before = {node.name: node for node in self.before}
        rows = [("node", "operator", "made", "before", "after", "")]
        for node in self.after:
            old = before.get(node.name)
            rows.append(
                (
                    node.name,
                    node.target.removesuffix(".default"),
                    bytes_text(node.made) if node.made else "-",
                    "-" if old is None else bytes_text(old.live),
                    bytes_text(node.live),
                    self.notes.get(node.name, ""),
                )
            )
        return align(rows)


def bytes_text(num_bytes: int) -> str:
    """Write a number of bytes for people."""
    if num_bytes < 10 * 1024:
        return f"{num_bytes} B"
    if num_bytes < 10 * 1024**2:
        return f"{num_bytes / 1024:.1f} KiB"
    return f"{num_bytes / 1024**2:.1f} MiB"


def align(rows: Sequence[tuple[str, ...]]) -> str:
    """Write a table: words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for node, operator, *numbers, note in rows:
        cells = [node.ljust(widths[0]), operator.ljust(widths[1])]
        cells += [number.rjust(width) for number, width in zip(numbers, widths[2:], strict=False)]
        lines.append("  ".join([*cells, note]).rstrip())
    return "\n".join(lines)

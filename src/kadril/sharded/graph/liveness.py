"""Bytes that are live at each node of a graph.

Memory is counted once however many views of it there are, from the node that makes it to the last
node that reads any of them; what the graph hands out stays to the end. Values saved by the forward
pass count from the start. Inputs of the forward graph (parameters, the batch) do not count: they
are there anyway, and not the graph's to free.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import fx

from kadril.sharded.graph.graph_gradients import storage_bytes, storage_key

__all__ = ["NodeMemory", "live_memory"]


class NodeMemory(NamedTuple):
    """A node: its name, what it does, the bytes it makes, and those live while it runs."""

    name: str
    target: str
    made: int
    live: int


class Span(NamedTuple):
    """Memory of one storage: its size, where it begins, and where it is last read."""

    num_bytes: int
    begin: int
    end: int


def live_memory(graph: fx.Graph) -> list[NodeMemory]:
    """Return what each node but the inputs makes, and what is live while it runs, in order."""
    nodes = list(graph.nodes)
    spans = dict(storage_spans(nodes))
    changes = [0] * (len(nodes) + 1)
    for span in spans.values():
        changes[span.begin] += span.num_bytes
        changes[span.end + 1] -= span.num_bytes
    rows, live = [], 0
    for place, node in enumerate(nodes):
        live += changes[place]
        if node.op == "placeholder":
            continue
        key = storage_key(node)
        made = spans[key].num_bytes if key in spans and spans[key].begin == place else 0
        rows.append(NodeMemory(node.name, target_name(node), made, live))
    return rows


def storage_spans(nodes: list[fx.Node]) -> Iterator[tuple[int, Span]]:
    """Yield each storage that the graph is the last to hold."""
    places = {node: place for place, node in enumerate(nodes)}
    relatives: dict[int, list[fx.Node]] = {}
    for node in nodes:
        key = storage_key(node)
        if key is not None:
            relatives.setdefault(key, []).append(node)
    for key, group in relatives.items():
        if any(node.op == "placeholder" and node.name.startswith("primals") for node in group):
            continue
        end = max(
            max((places[user] for user in node.users), default=places[node]) for node in group
        )
        yield key, Span(storage_bytes(group[0]), places[group[0]], end)


def target_name(node: fx.Node) -> str:
    """Name the operator of a node."""
    if node.op == "output":
        return "output"
    return str(getattr(node.target, "__name__", node.target))

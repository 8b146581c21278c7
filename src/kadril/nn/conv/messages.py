"""Messages of an exchange: all boxes for a peer in one, one after the other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from kadril.nn.conv.strips import Box

__all__ = ["Rooms", "pack"]


def pack(boxes: Iterable[tuple[int, torch.Tensor]]) -> list[tuple[int, torch.Tensor]]:
    """One message for each peer.

    Args:
        boxes: peers, and what they get, in an order that they know too.
    """
    by_peer: dict[int, list[torch.Tensor]] = {}
    for peer, box in boxes:
        by_peer.setdefault(peer, []).append(box.reshape(-1).contiguous())
    return [
        (peer, parts[0] if len(parts) == 1 else torch.cat(parts)) for peer, parts in by_peer.items()
    ]


class Rooms:
    """Memory for the messages that come.

    Args:
        boxes: peers, and what comes from them, in the order in which they pack it.
        like: has the dtype and the device.
    """

    def __init__(self, boxes: Sequence[tuple[int, Box]], like: torch.Tensor) -> None:
        self._places: list[tuple[int, int, list[int]]] = []  # peer, begin, shape
        lengths: dict[int, int] = {}
        for peer, box in boxes:
            shape = [each.stop - each.start for each in box]
            begin = lengths.get(peer, 0)
            self._places.append((peer, begin, shape))
            lengths[peer] = begin + math.prod(shape)
        self._memory = {peer: like.new_empty(length) for peer, length in lengths.items()}

    def messages(self) -> list[tuple[int, torch.Tensor]]:
        """Peers, and memory for what comes from them."""
        return list(self._memory.items())

    def boxes(self) -> list[torch.Tensor]:
        """What came, box by box."""
        return [
            self._memory[peer][begin : begin + math.prod(shape)].view(shape)
            for peer, begin, shape in self._places
        ]

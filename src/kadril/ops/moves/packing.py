"""Packing: boxes of tensors as the messages that transports take, one for each peer.

A transport takes contiguous memory, so boxes are copied out of one tensor and into another. Shared
memory takes boxes as they are: see `shm_carrier.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kadril.ops.moves.move_plan import Move, Moves, Slices, num_elements

__all__ = ["Inbox", "add_flat", "own_adjoint", "pack", "peer_boxes"]

PeerBoxes = Sequence[tuple[int, Slices]]


def peer_boxes(moves: Sequence[Move]) -> list[tuple[int, Slices]]:
    """Return peers and boxes, one by one, in the order in which they are packed."""
    return [(peer, box) for peer, boxes in moves for box in boxes]


def pack(boxes: Iterable[tuple[int, torch.Tensor]]) -> list[tuple[int, torch.Tensor]]:
    """Make one message for each peer: its boxes, one after the other; a view where it can be.

    Args:
        boxes: peers, and what they get, in an order that they know too.
    """
    by_peer: dict[int, list[torch.Tensor]] = {}
    for peer, box in boxes:
        by_peer.setdefault(peer, []).append(box.reshape(-1))
    return [
        (peer, parts[0].contiguous() if len(parts) == 1 else torch.cat(parts))
        for peer, parts in by_peer.items()
    ]


class Inbox:
    """Memory for the messages that come.

    Args:
        boxes: peers, and what comes from them, in the order in which they pack it.
        like: has the dtype and the device.
        into: the tensor that the boxes belong to; received into as it is where a message is one
            box, and that lies in one piece. None where nothing may be overwritten.
    """

    def __init__(
        self, boxes: PeerBoxes, like: torch.Tensor, into: torch.Tensor | None = None
    ) -> None:
        self._boxes = boxes
        self._messages: dict[int, torch.Tensor] = {}
        counts: dict[int, int] = {}
        alone: dict[int, Slices | None] = {}
        for peer, box in boxes:
            counts[peer] = counts.get(peer, 0) + num_elements(box)
            alone[peer] = None if peer in alone else box
        for peer, count in counts.items():
            only = alone[peer]
            place = None if into is None or only is None else into[only]
            if place is not None and place.is_contiguous():
                self._messages[peer] = place.view(-1)
            else:
                self._messages[peer] = like.new_empty(count)

    def messages(self) -> list[tuple[int, torch.Tensor]]:
        """Return peers, and memory for what comes from them."""
        return list(self._messages.items())

    def boxes(self) -> list[torch.Tensor]:
        """Return what came, box by box, in the order in which it was packed."""
        begins = dict.fromkeys(self._messages, 0)
        found = []
        for peer, box in self._boxes:
            begin, count = begins[peer], num_elements(box)
            begins[peer] = begin + count
            found.append(self._messages[peer][begin : begin + count].view(shape_of(box)))
        return found

    def put_into(self, y: torch.Tensor) -> None:
        """Put what came where it belongs, as far as it is not there already."""
        for (_, box), received in zip(self._boxes, self.boxes(), strict=True):
            place = y[box]
            if place.data_ptr() != received.data_ptr():
                place.copy_(received)

    def add_to(self, x: torch.Tensor) -> None:
        """Add what came where it belongs."""
        for (_, box), received in zip(self._boxes, self.boxes(), strict=True):
            x[box] += received


def add_flat(x: torch.Tensor, boxes: PeerBoxes, flat: torch.Tensor) -> None:
    """Add boxes that came one after the other, those of all peers, where they belong."""
    parts = torch.split(flat, [num_elements(box) for _, box in boxes])
    for (_, box), part in zip(boxes, parts, strict=True):
        x[box].add_(part.view(shape_of(box)))  # `x[box] += part` would copy the sum once more


def shape_of(box: Slices) -> list[int]:
    """Return the sizes of a box."""
    return [each.stop - each.start for each in box]


def own_adjoint(moves: Moves, y: torch.Tensor) -> torch.Tensor:
    """Return the part of x = F* y that a worker has itself; what comes back is added to it."""
    if moves.keeps_whole:
        return y[moves.copies[0][1]].clone(memory_format=torch.contiguous_format)
    x = y.new_zeros(0 if moves.shape is None else moves.shape)
    for mine, box in moves.copies:
        x[mine] += y[box]
    return x

"""Packing: boxes of tensors as the messages that transports take, one for each peer.

A transport takes contiguous memory, so boxes are copied out of one tensor and into another. Shared
memory takes boxes as they are: see `shm_moves.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kadril.transport.base import Transport

__all__ = ["Slices", "exchange_packed", "split_messages", "unpack_add", "unpack_into"]

Slices = tuple[slice, ...]
Boxes = tuple[Slices, ...]


def exchange_packed(
    transport: Transport,
    sends: Sequence[tuple[int, Boxes]],
    x: torch.Tensor,
    recvs: Sequence[tuple[int, Boxes]],
    y: torch.Tensor,
    what: str,
    *,
    beside: bool = False,
) -> list[torch.Tensor]:
    """Send boxes of one tensor, receive boxes of another.

    Args:
        transport: whose ranks the peers are.
        sends: peers, and what they get.
        x: what is sent from.
        recvs: peers, and what comes from them.
        y: what is received into, as far as that can be done without a copy.
        what: for errors.
        beside: whether nothing of `y` may be overwritten.

    Returns:
        What was received from each peer, for `unpack_into` or `unpack_add`.
    """
    given = [(peer, as_message(x, boxes)) for peer, boxes in sends]
    taken = [(peer, room_for(y, boxes, beside=beside)) for peer, boxes in recvs]
    transport.exchange(given, taken, name=what)
    return [received for _, received in taken]


def as_message(x: torch.Tensor, boxes: Sequence[Slices]) -> torch.Tensor:
    """The elements of some boxes, one after the other; a view where it can be sent as it is."""
    if len(boxes) > 1:
        return torch.cat([x[box].reshape(-1) for box in boxes])
    return x[boxes[0]].contiguous()


def room_for(y: torch.Tensor, boxes: Sequence[Slices], *, beside: bool) -> torch.Tensor:
    """Memory to receive some boxes into: their own where that will do."""
    if len(boxes) > 1:
        return y.new_empty(sum(num_elements(box) for box in boxes))
    box = y[boxes[0]]
    return box if box.is_contiguous() and not beside else y.new_empty(box.shape)


def split_messages(flat: torch.Tensor, messages: Sequence[tuple[int, Boxes]]) -> list[torch.Tensor]:
    """What came from each peer, for `unpack_add`, where it came one after the other."""
    counts = [sum(num_elements(box) for box in boxes) for _, boxes in messages]
    return [
        part.view([each.stop - each.start for each in boxes[0]]) if len(boxes) == 1 else part
        for part, (_, boxes) in zip(torch.split(flat, counts), messages, strict=True)
    ]


def unpack_into(x: torch.Tensor, boxes: Sequence[Slices], received: torch.Tensor) -> None:
    """Put boxes where they belong."""
    for box, part in zip(boxes, parts_of(x, boxes, received), strict=True):
        if part.data_ptr() != x[box].data_ptr():
            x[box] = part


def unpack_add(x: torch.Tensor, boxes: Sequence[Slices], received: torch.Tensor) -> None:
    """Add boxes where they belong."""
    for box, part in zip(boxes, parts_of(x, boxes, received), strict=True):
        x[box] += part


def parts_of(
    x: torch.Tensor, boxes: Sequence[Slices], received: torch.Tensor
) -> list[torch.Tensor]:
    """What was packed, box by box."""
    if len(boxes) == 1:
        return [received]
    shapes = [x[box].shape for box in boxes]
    parts = torch.split(received, [shape.numel() for shape in shapes])
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def num_elements(box: Slices) -> int:
    """How many a box has."""
    return math.prod(each.stop - each.start for each in box)

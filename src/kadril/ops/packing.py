"""Packing: boxes of tensors as the messages that transports take, one for each peer.

A transport takes contiguous memory, so boxes are copied out of one tensor and into another. Shared
memory takes boxes as they are, as long as they are not made of crumbs: copying them twice costs
more than the exchange itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from kadril.transport.base import Transport
from kadril.transport.shm import ShmTransport

__all__ = ["Slices", "exchange_packed", "pack", "room_for", "unpack_add", "unpack_into"]

Slices = tuple[slice, ...]
Boxes = tuple[Slices, ...]

SMALLEST_RUN = 512  # bytes; crumbs are packed faster by torch


def exchange_packed(
    transport: Transport,
    sends: Sequence[tuple[int, Boxes]],
    x: torch.Tensor,
    recvs: Sequence[tuple[int, Boxes]],
    y: torch.Tensor,
    what: str,
) -> list[torch.Tensor]:
    """Send boxes of one tensor; what came for boxes of another one, in its place or beside it.

    Returns:
        What was received from each peer, for `unpack_into`.
    """
    if isinstance(transport, ShmTransport) and x.device.type == "cpu":
        given = [(peer, as_message(x, boxes)) for peer, boxes in sends]
        taken = [(peer, as_room(y, boxes)) for peer, boxes in recvs]
        transport.exchange_boxes(given, taken, name=what)
    else:
        given = [(peer, pack(x, boxes)) for peer, boxes in sends]
        taken = [(peer, room_for(y, boxes)) for peer, boxes in recvs]
        transport.exchange(given, taken, name=what)
    return [received for _, received in taken]


def as_message(x: torch.Tensor, boxes: Sequence[Slices]) -> torch.Tensor:
    """Boxes as shared memory takes them."""
    if len(boxes) == 1 and has_long_runs(x[boxes[0]]):
        return x[boxes[0]]
    return pack(x, boxes)


def as_room(y: torch.Tensor, boxes: Sequence[Slices]) -> torch.Tensor:
    """Where shared memory puts boxes."""
    if len(boxes) == 1 and has_long_runs(y[boxes[0]]):
        return y[boxes[0]]
    return room_for(y, boxes)


def has_long_runs(box: torch.Tensor) -> bool:
    """Whether enough elements lie together each time."""
    run = box.element_size()
    for size, stride in zip(reversed(box.shape), reversed(box.stride()), strict=True):
        if size == 1:
            continue
        if stride * box.element_size() != run:
            return run >= SMALLEST_RUN
        run *= size
    return True


def pack(x: torch.Tensor, boxes: Sequence[Slices]) -> torch.Tensor:
    """The elements of some boxes, one after the other; a view where they lie so already."""
    if len(boxes) == 1:
        return x[boxes[0]].contiguous()
    return torch.cat([x[box].reshape(-1) for box in boxes])


def room_for(x: torch.Tensor, boxes: Sequence[Slices]) -> torch.Tensor:
    """Memory to receive some boxes into: their own where that is contiguous."""
    if len(boxes) == 1:
        box = x[boxes[0]]
        return box if box.is_contiguous() else x.new_empty(box.shape)
    return x.new_empty(sum(math.prod(each.stop - each.start for each in box) for box in boxes))


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

"""Packing: boxes of a tensor as the contiguous memory that transports take, one message a peer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

__all__ = ["Slices", "pack", "room_for", "unpack_add", "unpack_into"]

Slices = tuple[slice, ...]


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

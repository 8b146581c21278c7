"""Gradients that are reduced in one request: small ones in buckets, large ones by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from kadril.torch.optimizer.bucket import gradient_dtype
from kadril.torch.optimizer.parameter_slot import ParameterSlot
from kadril.torch.optimizer.settings import Groups

__all__ = ["is_large", "plan_units"]

# A gradient of more bytes travels by itself (large_gradient.py says why).
LARGE_BYTES = 256 * 1024

# A bucket is closed at this size: its gradients are still in the cache when they are brought in,
# and the first buckets are reduced while the backward pass continues.
BUCKET_BYTES = 1024 * 1024


def plan_units(slots: Sequence[ParameterSlot], groups: Groups) -> list[list[ParameterSlot]]:
    """Divide slots into units; the same on every rank that has the same parameters.

    Without groups, in reverse order of the parameters, as a backward pass makes their gradients: a
    large one by itself, others by dtype and device up to a size. With a number of groups, that many
    parts of about equal length. With groups of tensors, those; parameters in none of them as
    without groups.

    Raises:
        ValueError: a parameter is in two groups, or twice in one.
    """
    if isinstance(groups, int):
        return [
            part for group in equal_parts(list(reversed(slots)), groups) for part in by_kind(group)
        ]
    chosen = members(slots, groups or ())
    taken = {slot.index for group in chosen for slot in group}
    rest = [slot for slot in reversed(slots) if slot.index not in taken]
    return [part for group in chosen for part in by_kind(group)] + list(by_size(rest))


def members(
    slots: Sequence[ParameterSlot], groups: Sequence[Sequence[torch.Tensor]]
) -> list[list[ParameterSlot]]:
    """The slots of each group of tensors."""
    slot_of = {id(slot.parameter): slot for slot in slots}
    seen: set[int] = set()
    chosen: list[list[ParameterSlot]] = []
    for number, group in enumerate(groups):
        for parameter in group:
            if id(parameter) in seen:
                raise ValueError(
                    f"groups: group {number} has a parameter of shape {tuple(parameter.shape)} that"
                    " is in a group already; each parameter belongs to one group at most"
                )
            seen.add(id(parameter))
        chosen.append([slot_of[id(p)] for p in group if id(p) in slot_of])
    return [group for group in chosen if group]


def equal_parts(
    slots: Sequence[ParameterSlot], num_parts: int
) -> Iterator[Sequence[ParameterSlot]]:
    """Cut a sequence into parts of about equal length; fewer where it is short."""
    num_parts = min(num_parts, len(slots))
    for part in range(num_parts):
        yield slots[part * len(slots) // num_parts : (part + 1) * len(slots) // num_parts]


def by_kind(slots: Iterable[ParameterSlot]) -> list[list[ParameterSlot]]:
    """Split by dtype and device, which one flat tensor cannot mix."""
    parts: dict[tuple[torch.dtype, torch.device], list[ParameterSlot]] = {}
    for slot in slots:
        parts.setdefault(kind(slot), []).append(slot)
    return list(parts.values())


def by_size(slots: Iterable[ParameterSlot]) -> Iterator[list[ParameterSlot]]:
    """Large ones by themselves, the others together until a bucket is full."""
    open_parts: dict[tuple[torch.dtype, torch.device], list[ParameterSlot]] = {}
    sizes: dict[tuple[torch.dtype, torch.device], int] = {}
    for slot in slots:
        num_bytes = slot.parameter.numel() * gradient_dtype(slot.parameter).itemsize
        if num_bytes > LARGE_BYTES:
            yield [slot]
            continue
        key = kind(slot)
        open_parts.setdefault(key, []).append(slot)
        sizes[key] = sizes.get(key, 0) + num_bytes
        if sizes[key] >= BUCKET_BYTES:
            yield open_parts.pop(key)
            sizes[key] = 0
    yield from open_parts.values()


def kind(slot: ParameterSlot) -> tuple[torch.dtype, torch.device]:
    """Return what gradients of one flat tensor have in common: dtype and device."""
    return gradient_dtype(slot.parameter), slot.parameter.device


def is_large(part: Sequence[ParameterSlot]) -> bool:
    """Whether a part is one large gradient, which travels from where it is."""
    if len(part) > 1:
        return False
    parameter = part[0].parameter
    return parameter.numel() * gradient_dtype(parameter).itemsize > LARGE_BYTES

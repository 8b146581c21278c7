"""Tools of the tests of `kadril.ddl`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from kadril.transport.base import Transport
from kadril.world import World

__all__ = ["AlteredTransport", "altered", "inputs_of", "working_in"]


def inputs_of(world: World, *shapes: tuple[int, ...]) -> list[list[torch.Tensor]]:
    """Return a list of tensors of small whole numbers for every rank, so that sums are exact."""
    return [
        [
            (torch.arange(float(torch.Size(shape).numel())) % 7 + rank - place).view(shape)
            for place, shape in enumerate(shapes)
        ]
        for rank in range(world.size)
    ]


class AlteredTransport:
    """A transport whose all-reduces are wrong: one element of the result is overwritten.

    All else is the real transport's, which the ranks also compare their calls over.
    """

    def __init__(self, inner: Transport, element: int, value: float, count: int) -> None:
        self._inner = inner
        self._element, self._value, self._count = element, value, count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open_flat(self) -> Any:
        flat = self._inner.open_flat()
        return flat and AlteredTransport(flat, self._element, self._value, self._count)

    def allreduce(self, array: Any, op: str = "sum", **options: Any) -> None:
        self._inner.allreduce(array, op, **options)  # type: ignore[arg-type]
        if op == "sum" and array.numel() == self._count:
            array.view(-1)[self._element] = self._value


@contextlib.contextmanager
def altered(world: World, element: int, value: float, count: int) -> Iterator[None]:
    """Let the world of this rank have a transport that is wrong for arrays of some length."""
    right = world.transport
    world.transport = AlteredTransport(right, element, value, count)  # type: ignore[assignment]
    try:
        yield
    finally:
        world.transport = right


@contextlib.contextmanager
def working_in(directory: Path) -> Iterator[None]:
    """Work in a directory: dump files are written there."""
    before = Path.cwd()
    os.chdir(directory)
    try:
        yield
    finally:
        os.chdir(before)

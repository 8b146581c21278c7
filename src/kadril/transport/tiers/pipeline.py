"""A pipeline: the stages of many chunks, interleaved so that chunks are under way together.

A chunk is a generator that yields where it has to wait. In each turn a new chunk is begun, and
every older one goes on to its next stage, the youngest first:

    turn 1   begin 1
    turn 2   begin 2   add 1
    turn 3   begin 3   add 2   end 1
    turn 4             add 3   end 2
    turn 5                     end 3

So what chunk 3 sends is under way while chunk 2 is waited for. All ranks take the same turns.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeAlias

from kadril.transport.tiers.scratch import Scratch

__all__ = ["Chunk", "Pipeline", "Stages"]

Stages: TypeAlias = Generator[None, None, None]
Chunk: TypeAlias = Callable[[Scratch], Stages]


class Pipeline:
    """Runs chunks; keeps the memory of those that are under way for the next call."""

    def __init__(self) -> None:
        self._free: list[Scratch] = []

    def run(self, chunks: Iterable[Chunk]) -> None:
        """Run all stages of all chunks."""
        under_way: list[tuple[Stages, Scratch]] = []
        for chunk in chunks:
            scratch = self._free.pop() if self._free else Scratch()
            under_way.insert(0, (chunk(scratch), scratch))
            under_way = self._take_turn(under_way)
        while under_way:
            under_way = self._take_turn(under_way)

    def _take_turn(self, under_way: list[tuple[Stages, Scratch]]) -> list[tuple[Stages, Scratch]]:
        unfinished = []
        for stages, scratch in under_way:
            if next(stages, self) is self:
                scratch.take_back()
                self._free.append(scratch)
            else:
                unfinished.append((stages, scratch))
        return unfinished

    def drop(self) -> None:
        """Give kept memory back to the system."""
        self._free = []

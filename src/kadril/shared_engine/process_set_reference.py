"""Reference to a process set in a pickle: the ranks that it has.

A process set is one of a few that all ranks have registered, so it is neither copied nor pickled: a
deep copy refers to the same one, and in another process, or another world, the registered one with
the same ranks is meant.
"""

from __future__ import annotations

from typing import Any

from kadril.shared_engine.basics import is_initialized
from kadril.shared_engine.process_sets import ProcessSet, global_process_set, registry

__all__ = ["ProcessSetReference"]


class ProcessSetReference:
    """Stands for a process set in what is copied or pickled."""

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSetReference:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        is_global = self.process_set is global_process_set
        return find, (None if is_global else self.process_set.ranks,)


def find(ranks: list[int] | None) -> ProcessSetReference:
    """The set of these ranks; all of them where None. One that is not registered here stays so."""
    if ranks is None:
        return ProcessSetReference(global_process_set)
    registered = registry().sets.values() if is_initialized() else ()
    same = [each for each in registered if each.ranks == ranks]
    return ProcessSetReference(same[0] if same else ProcessSet(ranks))

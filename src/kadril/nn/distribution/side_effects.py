"""Side effects of calls: memory that is written, and random numbers that are drawn.

A function of torch may have side effects that its name does not show. All that it does goes through
operators in the end: the schema of each says what it writes into, and a tag says that it draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Observer", "storage_of"]


def storage_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage, also on the meta device."""
    identity: int = tensor.untyped_storage()._cdata
    return identity


class Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets operators run, and notes their side effects.

    Attributes:
        written: identities of the memory that was written into.
        draws: names of operators that drew random numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[int] = set()
        self.draws: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one operator."""
        named = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.draws.append(str(func))
        if func._schema.is_mutable:
            given = [*args, *[None] * len(func._schema.arguments)]
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = named.get(argument.name, given[place])
                    self._note(value)
        return func(*args, **named)

    def _note(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.written.add(storage_of(value))
        elif isinstance(value, (list, tuple)):
            for each in value:
                self._note(each)

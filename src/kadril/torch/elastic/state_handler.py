"""Base of the handlers: how one value of a state is saved, restored, and brought to all ranks."""

from __future__ import annotations

import copy
from typing import Any

from kadril.torch.objects import broadcast_object

__all__ = ["StateHandler"]


class StateHandler:
    """Takes care of one value of a `TorchState`.

    Args:
        value: with `state_dict` and `load_state_dict`.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def set_value(self, value: Any) -> None:
        """Take care of another value."""
        self.value = value
        self.save()

    # Whether `sync` is needed also where all ranks have the state, as each has another part of it.
    always_syncs = False

    def gather(self) -> None:
        """Learn from the other ranks what has to be saved; collective."""

    def detach(self) -> None:
        """Stop sharing memory with the other ranks, of which one is lost."""

    def save(self) -> None:
        """Remember the value's state."""
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """Go back to what was saved."""
        # A copy: some classes keep the tensors they are given, and would change what is saved.
        self.value.load_state_dict(copy.deepcopy(self._saved))

    def sync(self) -> None:
        """Take over the state of rank 0, and save it; collective."""
        self.value.load_state_dict(
            broadcast_object(self.value.state_dict(), name=self.name, allow_pickle=True)
        )
        self.save()

    name = "elastic.state"

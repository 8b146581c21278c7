"""`KerasState`: a Keras model on torch, with its optimizer."""

from __future__ import annotations

from typing import Any

from kadril.keras.family import FAMILY
from kadril.shared_engine.elastic.state import ObjectState, all_or_nothing
from kadril.shared_keras.distributed_apply import restart_passes
from kadril.shared_keras.optimizer_access import build, variables_of
from kadril.torch.elastic.state import send_object

__all__ = ["KerasState"]


class KerasState(ObjectState):
    """A Keras model with its optimizer, and plain values.

    Args:
        model: a model that is built.
        optimizer: that of the model where None.
        **kwargs: names and first values of what else belongs to the state.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self._saved_values: list[Any] = self._read()
        super().__init__(bcast_object=send_object, **kwargs)

    def _variables(self) -> list[Any]:
        if self.optimizer is None:
            return list(self.model.variables)
        build(self.optimizer, list(self.model.trainable_variables))
        return [*self.model.variables, *variables_of(self.optimizer)]

    def _read(self) -> list[Any]:
        return [variable.numpy().copy() for variable in self._variables()]

    def save(self) -> None:
        """Remember all values."""
        self._saved_values = self._read()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved."""
        for variable, value in zip(self._variables(), self._saved_values, strict=False):
            variable.assign(value)
        super().restore()

    def reset(self) -> None:
        """Count backward passes anew, as ranks do that come new."""
        restart_passes(self.optimizer)

    def sync(self) -> None:
        """Take over rank 0's values, and save them; collective."""
        with all_or_nothing([self]):
            FAMILY.broadcast_variables(self._variables(), 0, "")
            self._saved_values = self._read()
            super().sync()

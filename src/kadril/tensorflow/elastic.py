"""Training that outlives a change of its ranks: states of TensorFlow and Keras, and `run`.

state = hvd.elastic.TensorFlowKerasState(model, optimizer, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    ...
    state.commit()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kadril.shared_engine.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult
from kadril.shared_engine.elastic.runner import reset, run_with
from kadril.shared_engine.elastic.state import ObjectState, State, all_or_nothing
from kadril.shared_keras.distributed_apply import restart_passes
from kadril.tensorflow.basics import rank
from kadril.tensorflow.framework import tf
from kadril.tensorflow.objects import broadcast_object, broadcast_object_fn
from kadril.tensorflow.op_errors import as_kadril_errors
from kadril.tensorflow.variables import broadcast_variables

__all__ = [
    "HostUpdateResult",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "reset",
    "run",
]

# A state has whatever the program put into it.
send_object = partial(broadcast_object, allow_pickle=True)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Make a training function go on when ranks change; collective. See `kadril.torch.elastic.run`.

    TensorFlow tells of an error in a collective by a class of its own, in eager mode, in
    `tf.function` and in `model.fit`; what goes on or ends here is the error of kadril behind it.
    """
    return run_with(func, as_kadril_errors)


class TensorFlowState(ObjectState):
    """Variables of TensorFlow, and plain values.

    Args:
        variables: all that has to be the same on all ranks; in a TF1 graph, None for all global
            ones.
        session: of a TF1 graph.
        **kwargs: names and first values of what else belongs to the state.
    """

    def __init__(
        self, variables: Sequence[Any] | None = None, session: Any = None, **kwargs: Any
    ) -> None:
        self._session = session
        if variables is None:
            variables = tf.compat.v1.global_variables()
        self.variables = list(variables)
        send = broadcast_object_fn(session=session, allow_pickle=True) if session else send_object
        self._saved_values: list[Any] = self._read()
        super().__init__(bcast_object=send, get_rank=rank, **kwargs)

    def _read(self) -> list[Any]:
        if self._session is not None:
            return list(self._session.run(self.variables))
        return [variable.numpy() for variable in self.variables]

    def save(self) -> None:
        """Remember all values."""
        self._saved_values = self._read()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved."""
        for variable, value in zip(self.variables, self._saved_values, strict=True):
            if self._session is not None:
                variable.load(value, self._session)
            else:
                variable.assign(value)
        super().restore()

    def sync(self) -> None:
        """Take over rank 0's values, and save them; collective."""
        with all_or_nothing([self]):
            if self._session is not None:
                with self._session.graph.as_default():
                    self._session.run(broadcast_variables(self.variables, root_rank=0))
            else:
                broadcast_variables(self.variables, root_rank=0)
            self._saved_values = self._read()
            super().sync()


class TensorFlowKerasState(ObjectState):
    """A Keras model with its optimizer, and plain values.

    Args:
        model: a model that is built.
        optimizer: that of the model where None.
        backend: taken for scripts' sake.
        **kwargs: names and first values of what else belongs to the state.
    """

    def __init__(
        self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any
    ) -> None:
        del backend
        self.model = model
        self.optimizer = optimizer or getattr(model, "optimizer", None)
        self._saved_values: list[Any] = self._read()
        super().__init__(bcast_object=send_object, get_rank=rank, **kwargs)

    def _variables(self) -> list[Any]:
        found = list(self.model.variables)
        if self.optimizer is not None:
            owned = self.optimizer.variables
            found += list(owned() if callable(owned) else owned)
        return found

    def _read(self) -> list[Any]:
        return [variable.numpy() for variable in self._variables()]

    def save(self) -> None:
        """Remember all values."""
        self._saved_values = self._read()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved; what the optimizer has made since is set to zero."""
        variables = self._variables()
        for index, variable in enumerate(variables):
            is_saved = index < len(self._saved_values)
            variable.assign(self._saved_values[index] if is_saved else tf.zeros_like(variable))
        super().restore()

    def reset(self) -> None:
        """Count backward passes anew, as ranks do that come new."""
        restart_passes(self.optimizer)

    def sync(self) -> None:
        """Take over rank 0's values, and save them; collective."""
        optimizer: Any = self.optimizer
        if hasattr(optimizer, "build") and not getattr(optimizer, "built", True):
            optimizer.build(self.model.trainable_variables)
        with all_or_nothing([self]):
            broadcast_variables(self._variables(), root_rank=0)
            self._saved_values = self._read()
            super().sync()

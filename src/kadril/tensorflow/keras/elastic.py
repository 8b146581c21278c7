"""Training that outlives a change of its ranks: the state of a Keras model, callbacks and `run`.

state = hvd.elastic.KerasState(model, batch=0, epoch=0)

@hvd.elastic.run
def train(state):
    model.fit(data, epochs=epochs - state.epoch, callbacks=[
        hvd.elastic.UpdateEpochStateCallback(state),
        hvd.elastic.CommitStateCallback(state),
    ])
"""

from __future__ import annotations

from typing import Any

from kadril.shared_keras.derived import callback_class
from kadril.tensorflow.elastic import TensorFlowKerasState, run
from kadril.tensorflow.keras.family import FAMILY

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A Keras model with its optimizer, and plain values.

    Args:
        model: a model that is built.
        optimizer: that of the model where None.
        **kwargs: names and first values of what else belongs to the state.
    """

    def __init__(self, model: Any, optimizer: Any = None, **kwargs: Any) -> None:
        super().__init__(model, optimizer=optimizer, backend=FAMILY.keras.backend, **kwargs)


CommitStateCallback = callback_class(FAMILY, "CommitStateCallback", __name__)
UpdateBatchStateCallback = callback_class(FAMILY, "UpdateBatchStateCallback", __name__)
UpdateEpochStateCallback = callback_class(FAMILY, "UpdateEpochStateCallback", __name__)

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

from kadril.keras.family import FAMILY
from kadril.keras.framework import BACKEND
from kadril.shared_keras.derived import callback_class

if BACKEND == "tensorflow":
    from kadril.tensorflow.elastic import run
    from kadril.tensorflow.keras.elastic import KerasState
else:
    from kadril.keras.torch_state import KerasState  # type: ignore[assignment]
    from kadril.torch.elastic import run

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]

CommitStateCallback = callback_class(FAMILY, "CommitStateCallback", __name__)
UpdateBatchStateCallback = callback_class(FAMILY, "UpdateBatchStateCallback", __name__)
UpdateEpochStateCallback = callback_class(FAMILY, "UpdateEpochStateCallback", __name__)

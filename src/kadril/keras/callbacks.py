"""Callbacks for `model.fit`; what they do is in `kadril.shared_keras`.

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size()),
    ]

Averages are seen by the callbacks that come after MetricAverageCallback.
"""

from __future__ import annotations

from kadril.keras.family import FAMILY
from kadril.shared_keras.derived import callback_class

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

BroadcastGlobalVariablesCallback = callback_class(
    FAMILY, "BroadcastGlobalVariablesCallback", __name__
)
MetricAverageCallback = callback_class(FAMILY, "MetricAverageCallback", __name__)
LearningRateScheduleCallback = callback_class(FAMILY, "LearningRateScheduleCallback", __name__)
LearningRateWarmupCallback = callback_class(FAMILY, "LearningRateWarmupCallback", __name__)
BestModelCheckpoint = callback_class(FAMILY, "BestModelCheckpoint", __name__)

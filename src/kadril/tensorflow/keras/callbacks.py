"""Callbacks for `model.fit`; what they do is in `kadril.shared_keras`.

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01 * hvd.size()),
    ]

Averages are seen by the callbacks that come after MetricAverageCallback.
"""

from __future__ import annotations

from typing import Any

from kadril.shared_keras import callbacks, learning_rate
from kadril.tensorflow.keras.family import FAMILY

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

_Callback: Any = FAMILY.keras.callbacks.Callback
_ModelCheckpoint: Any = FAMILY.keras.callbacks.ModelCheckpoint


class BroadcastGlobalVariablesCallback(callbacks.BroadcastVariables, _Callback):  # type: ignore[misc]
    """Gives all ranks the root's weights and optimizer before the first step."""

    family = FAMILY


class MetricAverageCallback(callbacks.MetricAverage, _Callback):  # type: ignore[misc]
    """Replaces the metrics of an epoch by their means over all ranks."""

    family = FAMILY


class LearningRateScheduleCallback(learning_rate.LearningRateSchedule, _Callback):  # type: ignore[misc]
    """Sets the learning rate to a multiple of the initial one."""

    family = FAMILY


class LearningRateWarmupCallback(learning_rate.LearningRateWarmup, _Callback):  # type: ignore[misc]
    """Raises the learning rate from initial_lr / size() to initial_lr."""

    family = FAMILY


class BestModelCheckpoint(callbacks.BestModel, _ModelCheckpoint):  # type: ignore[misc]
    """Saves the best model so far, on rank 0 only."""

    family = FAMILY

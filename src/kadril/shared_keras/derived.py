"""Callbacks of a package: each is what it does, mixed with a callback of the package's Keras."""

from __future__ import annotations

from typing import Any

from kadril.shared_keras import callbacks, elastic, learning_rate
from kadril.shared_keras.family import KerasFamily

__all__ = ["callback_class"]

# What each does, and the class of Keras that it is beside.
PARTS: dict[str, tuple[type[Any], str]] = {
    "BroadcastGlobalVariablesCallback": (callbacks.BroadcastVariables, "Callback"),
    "MetricAverageCallback": (callbacks.MetricAverage, "Callback"),
    "LearningRateScheduleCallback": (learning_rate.LearningRateSchedule, "Callback"),
    "LearningRateWarmupCallback": (learning_rate.LearningRateWarmup, "Callback"),
    "BestModelCheckpoint": (callbacks.BestModel, "ModelCheckpoint"),
    "CommitStateCallback": (elastic.CommitState, "Callback"),
    "UpdateBatchStateCallback": (elastic.UpdateBatchState, "Callback"),
    "UpdateEpochStateCallback": (elastic.UpdateEpochState, "Callback"),
}


def callback_class(family: KerasFamily, name: str, module: str) -> Any:
    """The callback of that name for a family, as a class of a module."""
    part, base = PARTS[name]
    described = {"family": family, "__module__": module, "__doc__": part.__doc__}
    return type(name, (part, getattr(family.keras.callbacks, base)), described)

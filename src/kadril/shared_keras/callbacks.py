"""Work of the callbacks. A package mixes each with the `Callback` of its Keras.

Callbacks of one Keras also work in a `fit` of the other: what Keras 2 asks of a callback is here.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np

from kadril.shared_engine.basics import rank
from kadril.shared_engine.process_sets import ProcessSet, global_process_set
from kadril.shared_keras.family import KerasFamily
from kadril.shared_keras.optimizer_access import build, untracked_rates, variables_of

__all__ = ["BestModel", "BroadcastVariables", "CallbackPart", "MetricAverage"]


class CallbackPart:
    """Beside a `Callback`: its family, and what a callback of Keras 2 has."""

    family: ClassVar[KerasFamily]
    model: Any
    params: dict[str, Any]

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


class BroadcastVariables(CallbackPart):
    """Gives all ranks the root's weights and optimizer before the first step.

    The optimizer's variables are made for it. Of a model that is not built yet, which tf_keras
    allows, weights exist only after the first step: they are broadcast then, with a warning.
    Seeds of layers stay those of each rank, so that dropout differs.

    Where `fit` was not told how much to say (`verbose="auto"`, the default of Keras 3), only rank 0
    shows a progress bar. tf_keras does not tell callbacks: use
    `model.fit(..., verbose=1 if hvd.rank() == 0 else 0)`.

    Args:
        root_rank: that gives the values.
        device: where the ops are placed; on TensorFlow.
        local_variables: a variable, or several, that stay those of each rank.
    """

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.device = device
        self.broadcast_done = False
        self._local: dict[int, Any] = {}  # by id, and kept alive with it
        given = [] if local_variables is None else local_variables
        for variable in [given] if hasattr(given, "assign") else given:
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """Leave a variable to each rank.

        Raises:
            ValueError: it is no variable.
        """
        if not hasattr(var, "assign"):
            raise ValueError(f"a local variable has to be a variable, not {type(var).__name__}")
        self._local[id(var)] = var

    def set_params(self, params: dict[str, Any]) -> None:
        """Take over what `fit` was told; the progress bar comes after this callback."""
        super().set_params(params)  # type: ignore[misc]
        if params and params.get("verbose") == "auto" and rank() != 0:
            params["verbose"] = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Broadcast, once."""
        del logs
        if self.broadcast_done:
            return
        if getattr(self.model, "built", True):
            self._broadcast()
        else:
            warnings.warn(
                "the model is not built, so its first step is made with each rank's own weights;"
                " give it an Input layer, or call model.build(input_shape)",
                stacklevel=2,
            )

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast what did not exist before."""
        del batch, logs
        if not self.broadcast_done:
            self._broadcast()

    def _broadcast(self) -> None:
        variables = list(self.model.weights)
        optimizer = getattr(self.model, "optimizer", None)
        if optimizer is not None:
            build(optimizer, list(self.model.trainable_variables))
            variables += [*variables_of(optimizer), *untracked_rates(optimizer)]
        shared = [each for each in variables if id(each) not in self._local]
        self.family.broadcast_variables(shared, self.root_rank, self.device)
        self.broadcast_done = True


class MetricAverage(CallbackPart):
    """Replaces the metrics of an epoch by their means over all ranks, for the callbacks after it.

    The mean is that of the ranks' values, each with the same weight.

    Args:
        device: taken for scripts' sake.
        process_set: the ranks that take part.
    """

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.device = device
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Average; collective.

        Raises:
            ValueError: ranks have different metrics, on every rank.
        """
        del epoch
        if logs is None or not self.process_set.included():
            return
        own = {name: np.asarray(value, np.float64) for name, value in logs.items()}
        gathered = self.family.allgather_object(own, self.process_set)
        names = [sorted(each) for each in gathered]
        for index, theirs in enumerate(names):
            if theirs != names[0]:
                ranks = self.process_set.ranks
                first, other = (0, index) if ranks is None else (ranks[0], ranks[index])
                raise ValueError(
                    f"metrics differ between ranks: rank {first} has {names[0]}, rank {other} has"
                    f" {theirs}; give all of them the same metrics, and all or none validation_data"
                )
        for name in names[0]:
            mean = np.mean([each[name] for each in gathered], axis=0)
            logs[name] = float(mean) if mean.ndim == 0 else mean


class BestModel(CallbackPart):
    """Saves the best model so far, on rank 0 only. Put a MetricAverageCallback before it.

    Args:
        monitor: name of the metric.
        verbose: 1 to say when it saves.
        save_weights_only: whether the file holds weights only, and ends in `.weights.h5`.
        mode: "min", "max" or "auto": what is better.
        save_freq: "epoch", or every so many batches.
        filepath: of the file; or set the attribute `filepath` before `fit`.
    """

    filepath: str | None

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: Any = "epoch",
        filepath: Any = None,
    ) -> None:
        unnamed = "model.weights.h5" if save_weights_only else "model.keras"
        super().__init__(  # type: ignore[call-arg]
            filepath=unnamed if filepath is None else filepath,
            monitor=monitor,
            verbose=verbose,
            save_best_only=True,
            save_weights_only=save_weights_only,
            mode=mode,
            save_freq=save_freq,
        )
        if filepath is None:
            self.filepath = None

    def on_train_begin(self, logs: Any = None) -> None:
        """See that there is a file to save to.

        Raises:
            ValueError: there is none.
        """
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint needs a file: pass filepath=, or set .filepath")
        super().on_train_begin(logs)  # type: ignore[misc]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Save, on rank 0, if it is time."""
        if rank() == 0:
            super().on_train_batch_end(batch, logs)  # type: ignore[misc]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save, on rank 0, if it is the best."""
        if rank() == 0:
            super().on_epoch_end(epoch, logs)  # type: ignore[misc]

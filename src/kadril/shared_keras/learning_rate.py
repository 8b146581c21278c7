"""The callbacks that change the learning rate while a model trains.

    schedule:   lr(epoch) = initial_lr * multiplier(epoch)
    warmup:     lr(epoch) = initial_lr / n * (epoch * (n - 1) / warmup_epochs + 1)       of n ranks

Momentum correction ("Accurate, Large Minibatch SGD", 2.3): velocities of Keras are in units of the
learning rate, so when that changes they are to change with it. Horovod multiplies the momentum of
one step by new / old; Keras 3 has it as a constant of the compiled step. Here the velocities
themselves are multiplied, which is the same sum, and right for Nesterov's momentum too:

    v' = (m * new/old) * v - new * g   =   m * (new/old * v) - new * g
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kadril.shared_engine.basics import rank, size
from kadril.shared_keras.callbacks import CallbackPart
from kadril.shared_keras.optimizer_access import (
    check_rate_is_plain,
    learning_rate,
    scale_momentum,
    set_learning_rate,
)

__all__ = ["LearningRateSchedule", "LearningRateWarmup"]


class LearningRateSchedule(CallbackPart):
    """Sets the learning rate to a multiple of the initial one, in an interval of epochs.

    Args:
        initial_lr: the rate that is multiplied.
        multiplier: a function of the epoch, which has a fraction unless `staircase`; or a number,
            to the power of the epoch.
        start_epoch: first epoch of the interval.
        end_epoch: the epoch after its last one; None for no end.
        staircase: whether the rate changes at the start of epochs only, not at every batch.
        momentum_correction: whether velocities of an optimizer with momentum change with it.
        steps_per_epoch: where Keras does not know it.

    Raises:
        ValueError: no initial rate, or, when training begins, a number of steps that is not known.
        TypeError: when training begins: the rate of the optimizer is a schedule already.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required")
        self.initial_lr = initial_lr
        self.multiplier = as_function(multiplier)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """See that the rate can be set, and how many steps an epoch has."""
        del logs
        name = type(self).__name__
        check_rate_is_plain(self.model.optimizer, name)
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(
                    "Could not autodetect the number of steps per epoch. Please specify the"
                    f" steps_per_epoch parameter to the {name}()"
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch."""
        del logs
        self.current_epoch = epoch

    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the rate of this batch, or of the epoch at its first one."""
        del logs
        if self.current_epoch < self.start_epoch:
            return
        if self.end_epoch is not None and self.current_epoch >= self.end_epoch:
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / (self.steps_per_epoch or 1))
        elif batch == 0:
            self._adjust(self.current_epoch)

    def _adjust(self, epoch: float) -> None:
        optimizer = self.model.optimizer
        before, after = learning_rate(optimizer), self.initial_lr * self.multiplier(epoch)
        set_learning_rate(optimizer, after)
        # Of a rate that was zero there are no velocities yet.
        if self.momentum_correction and before not in (0.0, after):
            scale_momentum(optimizer, after / before, list(self.model.trainable_variables))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the rate as "lr"."""
        del epoch
        if logs is not None:
            logs["lr"] = learning_rate(self.model.optimizer)


class LearningRateWarmup(LearningRateSchedule):
    """Raises the learning rate from initial_lr / size() to initial_lr, batch by batch.

    Args:
        initial_lr: the rate after the warmup: already multiplied by the number of ranks.
        warmup_epochs: how long it takes.
        momentum_correction: see `LearningRateScheduleCallback`.
        steps_per_epoch: where Keras does not know it.
        verbose: 1 to say on rank 0 when it is done.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            self._multiplier,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose

    def _multiplier(self, epoch: float) -> float:
        # Of the end of the batch, so that an epoch ends with a round number.
        done = epoch + 1.0 / (self.steps_per_epoch or 1)
        return (done * (size() - 1) / self.warmup_epochs + 1) / size()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Log the rate, and say when the warmup is done."""
        super().on_epoch_end(epoch, logs)
        if epoch == self.warmup_epochs - 1 and self.verbose > 0 and rank() == 0:
            rate = learning_rate(self.model.optimizer)
            text = f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {rate:g}."
            print(text)  # noqa: T201 - `verbose` asks for it


def as_function(multiplier: float | Callable[[float], float]) -> Callable[[float], float]:
    """A multiplier of an epoch; a number is that of exponential decay."""
    if callable(multiplier):
        return multiplier
    base = multiplier
    return lambda epoch: base**epoch

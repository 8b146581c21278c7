"""Callbacks of elastic training: they keep a state up to date, and commit it."""

from __future__ import annotations

from typing import Any

from kadril.shared_keras.callbacks import CallbackPart

__all__ = ["CommitState", "UpdateBatchState", "UpdateEpochState"]


class CommitState(CallbackPart):
    """Commits a state every so many batches, and at the end of an epoch.

    Args:
        state: of elastic training.
        batches_per_commit: how often; a lost rank costs what was done since.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Count anew, the same on ranks that were there and ranks that came."""
        del logs
        self.batches_remaining = self.batches_per_commit

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit, if it is time; collective."""
        del batch, logs
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.state.commit()
            self.batches_remaining = self.batches_per_commit

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit; collective."""
        del epoch, logs
        self.state.commit()


class UpdateBatchState(CallbackPart):
    """Keeps `state.batch` at the last batch of this epoch; 0 between epochs.

    `fit` still begins an epoch with its first batch: to continue in the middle, give it the
    remaining data or `steps_per_epoch=steps - state.batch`.

    Args:
        state: of elastic training.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state

    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the batch."""
        del logs
        self.state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Begin anew."""
        del epoch, logs
        self.state.batch = 0


class UpdateEpochState(CallbackPart):
    """Keeps `state.epoch` at the number of epochs done, also by calls of `fit` before this one.

    Put it before the CommitStateCallback.

    Args:
        state: of elastic training.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Any = None) -> None:
        """Note the epoch that Keras counts from."""
        del logs
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note that it is done."""
        del logs
        self.state.epoch = self.initial_epoch + epoch + 1

"""Schedules: momentum and learning rate as functions of the epoch.

momentum: {type: linear_monotone, initial_coef: 0.5, start_epoch: 2, saturate_epoch: 6,
           saturated_coef: 0.9}
learning_rate: 0.1
learning_rate: {type: step, initial: 0.1, factor: 0.5, every: 2}

v <- m(epoch) v - rate(epoch) update            w <- w + v
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

__all__ = ["Coefficient", "LearningRate", "Momentum", "momentum_at", "rate_at"]

# With 1 and more, steps would never shrink.
Coefficient = Annotated[float, msgspec.Meta(ge=0, lt=1)]


class Momentum(msgspec.Struct, forbid_unknown_fields=True):
    """The share of the last step that is taken again.

    Attributes:
        type: "constant" is `coef` always; "linear_monotone" goes from `initial_coef`, where it is
            until `start_epoch`, to `saturated_coef`, where it is from `saturate_epoch` on;
            "nesterov" is the same, and looks ahead.
        coef: of "constant".
        initial_coef: see `type`.
        start_epoch: see `type`.
        saturate_epoch: see `type`.
        saturated_coef: see `type`; `initial_coef` where None.
    """

    type: Literal["constant", "linear_monotone", "nesterov"] = "constant"
    coef: Coefficient = 0.0
    initial_coef: Coefficient = 0.0
    start_epoch: int = 0
    saturate_epoch: int = 0
    saturated_coef: Coefficient | None = None

    def at(self, epoch: int) -> float:
        """Return the coefficient of an epoch."""
        if self.type == "constant":
            return self.coef
        last = self.initial_coef if self.saturated_coef is None else self.saturated_coef
        if epoch >= self.saturate_epoch:
            return last
        if epoch <= self.start_epoch:
            return self.initial_coef
        share = (epoch - self.start_epoch) / (self.saturate_epoch - self.start_epoch)
        return self.initial_coef + share * (last - self.initial_coef)


class LearningRate(msgspec.Struct, forbid_unknown_fields=True):
    """The length of a step.

    Attributes:
        type: "constant"; "step" multiplies by `factor` every `every` epochs; "exponential" by
            `factor` each epoch; "linear" goes to `final` in `epochs` epochs.
        initial: in the first epoch.
        factor: see `type`.
        every: see `type`.
        final: see `type`.
        epochs: see `type`.
    """

    type: Literal["constant", "step", "exponential", "linear"] = "constant"
    initial: float = 0.0
    factor: float = 1.0
    every: Annotated[int, msgspec.Meta(ge=1)] = 1
    final: float = 0.0
    epochs: Annotated[int, msgspec.Meta(ge=1)] = 1

    def at(self, epoch: int) -> float:
        """Return the rate of an epoch."""
        if self.type == "step":
            return self.initial * self.factor ** (epoch // self.every)
        if self.type == "exponential":
            return float(self.initial * self.factor**epoch)
        if self.type == "linear":
            share = min(1.0, epoch / self.epochs)
            return self.initial + share * (self.final - self.initial)
        return self.initial


def momentum_at(momentum: Momentum | Mapping[str, Any] | float | None, epoch: int) -> float:
    """Return the momentum of an epoch; a number is the same in all, None is none."""
    if momentum is None:
        return 0.0
    if isinstance(momentum, (int, float)):
        return float(momentum)
    return msgspec.convert(momentum, Momentum).at(epoch)


def looks_ahead(momentum: Momentum | Mapping[str, Any] | float | None) -> bool:
    """Whether the momentum is Nesterov's."""
    if momentum is None or isinstance(momentum, (int, float)):
        return False
    return msgspec.convert(momentum, Momentum).type == "nesterov"


def rate_at(rate: LearningRate | Mapping[str, Any] | float, epoch: int) -> float:
    """Return the learning rate of an epoch; a number is the same in all."""
    if isinstance(rate, (int, float)):
        return float(rate)
    return msgspec.convert(rate, LearningRate).at(epoch)

"""Learning rate, momentum and variables of optimizers of Keras 3, tf_keras and its legacy ones."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "build",
    "check_rate_is_plain",
    "copy_variables",
    "innermost",
    "learning_rate",
    "scale_momentum",
    "set_learning_rate",
    "untracked_rates",
    "variables_of",
]


def innermost(optimizer: Any) -> Any:
    """The optimizer that steps, inside one that scales the loss."""
    while getattr(optimizer, "inner_optimizer", None) is not None:
        optimizer = optimizer.inner_optimizer
    return optimizer


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer: a list in Keras 3, a function in legacy ones."""
    owned = optimizer.variables
    return list(owned() if callable(owned) and not isinstance(owned, list) else owned)


def untracked_rates(optimizer: Any) -> list[Any]:
    """Variables of learning rate and the like that Keras 2 does not count among an optimizer's."""
    inner = innermost(optimizer)
    rates = [getattr(inner, "_learning_rate", None), *getattr(inner, "_hyper", {}).values()]
    known = {id(each) for each in variables_of(optimizer)}
    return [each for each in rates if hasattr(each, "assign") and id(each) not in known]


def build(optimizer: Any, variables: list[Any]) -> None:
    """Make the variables of an optimizer now, where it would make them at its first step."""
    if hasattr(optimizer, "_create_all_weights"):  # a legacy one, which makes each only once
        optimizer._create_all_weights(variables)
    elif not is_built(optimizer):
        optimizer.build(variables)


def is_built(optimizer: Any) -> bool:
    """Whether its variables are there; Keras 2 keeps it to itself."""
    return bool(getattr(optimizer, "built", False) or getattr(optimizer, "_built", False))


def copy_variables(source: Any, target: Any, trainable: list[Any]) -> None:
    """Give one optimizer the values of another of the same class.

    Args:
        source: built, or there is nothing to copy.
        target: is built where it is not.
        trainable: the variables of the model.

    Raises:
        ValueError: they have different variables.
    """
    values = [np.asarray(variable.numpy()) for variable in variables_of(source)]
    build(target, trainable)
    owned = variables_of(target)
    if len(values) > len(owned):
        raise ValueError(f"{len(values)} variables of an optimizer for one that has {len(owned)}")
    # One that has not been built has its counter and its learning rate, which come first.
    for variable, value in zip(owned, values, strict=False):
        variable.assign(value)


def learning_rate(optimizer: Any) -> float:
    """The learning rate of now."""
    rate = innermost(optimizer).learning_rate
    return float(np.asarray(rate.numpy() if hasattr(rate, "numpy") else rate))


def check_rate_is_plain(optimizer: Any, who: str) -> None:
    """See that a learning rate can be set.

    Raises:
        TypeError: it is a schedule, which computes it from the number of the step.
    """
    rate = innermost(optimizer).get_config()["learning_rate"]
    if isinstance(rate, dict):
        raise TypeError(
            f"{who} sets the learning rate, but that of this {type(optimizer).__name__} is the"
            f" schedule {rate.get('class_name', rate)}: give the optimizer a number, or leave the"
            " callback out and put the warmup into the schedule"
        )


def set_learning_rate(optimizer: Any, rate: float) -> None:
    """Change the learning rate from the next step on."""
    innermost(optimizer).learning_rate = rate


def scale_momentum(optimizer: Any, factor: float, trainable: list[Any]) -> None:
    """Multiply the velocities of an optimizer with momentum.

    Raises:
        ValueError: it has momentum, but not where the optimizers of Keras keep it.
    """
    inner = innermost(optimizer)
    if not getattr(inner, "momentum", None):
        return
    if hasattr(inner, "get_slot"):
        is_made = "momentum" in inner.get_slot_names()
        velocities = [inner.get_slot(each, "momentum") for each in trainable] if is_made else []
    elif not is_built(inner):
        velocities = []  # they begin with zero
    else:
        found = getattr(inner, "momentums", None) or getattr(inner, "_momentums", None)
        if not found:
            raise ValueError(
                f"the momentum of {type(inner).__name__} is not in `momentums`, so that it cannot"
                " be corrected; pass momentum_correction=False"
            )
        velocities = list(found)
    for velocity in velocities:
        if velocity is not None:
            velocity.assign(velocity * factor)

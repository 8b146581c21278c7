"""Optimizers that can be sharded, and how.

elementwise     every element is stepped by itself, so a piece may be any range of elements
matrix          looks at a parameter as a matrix, or at its norm: needs whole parameters
unknown         a class that torch does not have: assumed to need whole parameters
refused         looks at all parameters at once, or at sparse gradients

A new optimizer of torch's is one name in one of the sets below.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.optimizer.eager_class import OptimizerClass, torch_class
from kadril.sharded.optimizer.option_names import check_options, in_torch_words

__all__ = ["OptimizerClass", "choose_rule", "find_optimizer", "is_elementwise", "is_of_torch"]

logger = logging.getLogger("kadril")

ELEMENTWISE = frozenset(
    {
        "ASGD",
        "Adadelta",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
        "SGD",
    }
)

MATRIX = frozenset({"Adafactor", "Muon"})

REFUSED = {
    "LBFGS": (
        "it works on the dot products of all parameters together, several times a step. Use an"
        " optimizer such as Adam, or kadril.torch.DistributedOptimizer(LBFGS(...)), which keeps"
        " whole state on every rank"
    ),
    "SparseAdam": (
        "it takes sparse gradients, which cannot be cut into parts. Use Adam with sparse=False in"
        " the embedding, or kadril.torch.DistributedOptimizer(SparseAdam(...))"
    ),
}


def find_optimizer(
    optimizer: str | OptimizerClass, options: Mapping[str, Any] | None
) -> tuple[OptimizerClass, dict[str, Any]]:
    """Return the class, and its options in torch's words.

    Args:
        optimizer: a class, or the name of one of torch's in any case.
        options: options of the optimizer; for a name also in Gluon's words (`learning_rate`, `wd`,
            `beta1`, ...).

    Raises:
        ValueError: there is no optimizer of that name, or it has no such option.
        TypeError: it is neither a name nor a class.
        UnsupportedError: it cannot be sharded.
    """
    options = dict(options or {})
    if isinstance(optimizer, str):
        found = find_by_name(optimizer)
        options = in_torch_words(options)
    else:
        found = optimizer
        check_is_class(optimizer)
    check_can_be_sharded(found)
    check_options(found, options)
    return found, options


def find_by_name(name: str) -> OptimizerClass:
    """Return one of torch's optimizers, by its name in any case."""
    names = {each.lower(): each for each in ELEMENTWISE | MATRIX | REFUSED.keys()}
    if name.lower() not in names:
        raise ValueError(
            f"there is no optimizer {name!r}; use one of"
            f" {', '.join(sorted(ELEMENTWISE | MATRIX))}, or give a class"
        )
    found: OptimizerClass = getattr(torch.optim, names[name.lower()])
    return found


def check_is_class(optimizer: Any) -> None:
    """Raise `TypeError` for anything but a class of optimizers."""
    if isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"give the class, torch.optim.{type(optimizer).__name__}, and its options: an optimizer"
            " that is made already has state for whole parameters"
        )
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise TypeError(f"optimizer must be a name or a class, got {type(optimizer).__name__}")


def check_can_be_sharded(optimizer: OptimizerClass) -> None:
    """Raise `UnsupportedError` for an optimizer that cannot be sharded."""
    for each in optimizer.__mro__:
        reason = REFUSED.get(each.__name__) if is_of_torch(each) else None
        if reason is not None:
            raise UnsupportedError(f"{optimizer.__name__} cannot be sharded: {reason}")


def is_of_torch(kind: OptimizerClass) -> bool:
    """Whether a class is one of torch's own."""
    return getattr(torch.optim, kind.__name__, None) is torch_class(kind)


def is_elementwise(optimizer: OptimizerClass) -> bool:
    """Whether an optimizer of torch's steps every element by itself."""
    return is_of_torch(optimizer) and optimizer.__name__ in ELEMENTWISE


def choose_rule(optimizer: OptimizerClass, rule: str | None) -> str:
    """Choose the partition rule: `flat` where the optimizer works element by element.

    Args:
        optimizer: class of the optimizer.
        rule: the rule that was asked for. `flat` for a class that torch does not have states that
            it works element by element.

    Raises:
        UnsupportedError: `flat` was asked for, and the optimizer needs whole parameters.
    """
    name = optimizer.__name__
    if is_elementwise(optimizer):
        return rule or "flat"
    if rule == "flat" and is_of_torch(optimizer) and name in MATRIX:
        raise UnsupportedError(
            f"{name} needs whole parameters, which rule 'flat' cuts; use 'largest_first'"
        )
    if rule is not None:
        return rule
    logger.info(
        "partition rule largest_first: %s %s, so parameters are not cut",
        name,
        "needs whole parameters"
        if name in MATRIX
        else "is not known to work element by element (rule='flat' says that it does)",
    )
    return "largest_first"

"""Options of optimizers in torch's words, from those of torch or of Gluon."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from kadril.sharded.optimizer.eager_class import OptimizerClass
from kadril.sharded.ownership.parameter_groups import Group

__all__ = ["check_options", "groups_in_torch_words", "in_torch_words"]

# Names of options in Gluon, and what torch calls them.
GLUON_OPTIONS = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def groups_in_torch_words(
    optimizer: str | OptimizerClass, groups: Sequence[Group], options: Mapping[str, Any]
) -> list[Group]:
    """Return groups with their options in torch's words.

    As in torch, groups may have anything in them; those of a class stay as they are.

    Args:
        optimizer: as it was given, a name or a class.
        groups: as they were given.
        options: options of the optimizer, in torch's words: defaults for those of a group.
    """
    if not isinstance(optimizer, str):
        return list(groups)
    return [
        group._replace(options=in_torch_words(dict(group.options), options)) for group in groups
    ]


def in_torch_words(
    options: dict[str, Any], outer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return options with Gluon's names replaced by torch's.

    Args:
        options: the options; `beta1` and `beta2` are removed from it.
        outer: options of the optimizer, if `options` are those of a group.
    """
    betas = (options.pop("beta1", None), options.pop("beta2", None))
    if betas != (None, None):
        defaults = options.get("betas") or (outer or {}).get("betas") or (0.9, 0.999)
        options["betas"] = tuple(
            default if beta is None else beta for beta, default in zip(betas, defaults, strict=True)
        )
    return {GLUON_OPTIONS.get(name, name): value for name, value in options.items()}


def check_options(optimizer: OptimizerClass, options: Mapping[str, Any]) -> None:
    """Raise `ValueError` for an option that the optimizer does not have."""
    known = inspect.signature(optimizer).parameters
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in known.values()):
        return
    for name in options:
        if name not in known:
            possible = [each for each in known if each != "params"]
            raise ValueError(
                f"{optimizer.__name__} has no option {name!r}; it has {', '.join(possible)}"
            )

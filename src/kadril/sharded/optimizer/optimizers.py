"""Which optimizers can be sharded, and how.

elementwise     every element is stepped by itself, so a piece may be any range of elements
matrix          looks at a parameter as a matrix, or at its norm: needs whole parameters
unknown         a class that torch does not have: taken for one that needs whole parameters
refused         looks at all parameters at once, or at sparse gradients
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.optimizer.eager_class import OptimizerClass, eager_class, torch_class
from kadril.sharded.ownership.parameter_list import Group, ParameterList

__all__ = [
    "OptimizerClass",
    "check_parameters",
    "choose_rule",
    "complete_momentum",
    "find_optimizer",
    "groups_in_torch_words",
    "is_elementwise",
    "is_of_torch",
    "may_fuse",
    "without_compiler",
]

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

# Those with a fused kernel for CPUs.
FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})

# Names of options as Gluon has them.
GLUON_OPTIONS = {"learning_rate": "lr", "wd": "weight_decay", "epsilon": "eps"}


def find_optimizer(
    optimizer: str | OptimizerClass, options: Mapping[str, Any] | None
) -> tuple[OptimizerClass, dict[str, Any]]:
    """The class, and its options in torch's words.

    Args:
        optimizer: a class, or the name of one of torch's in any case.
        options: of it; for a name also in Gluon's words (`learning_rate`, `wd`, `beta1`, ...).

    Raises:
        ValueError: there is no such name, or no such option.
        TypeError: neither a name nor a class.
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
    """One of torch's optimizers."""
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
            " that is there already has state for whole parameters"
        )
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise TypeError(f"optimizer must be a name or a class, got {type(optimizer).__name__}")


def check_can_be_sharded(optimizer: OptimizerClass) -> None:
    """Raise `UnsupportedError` for one that cannot be."""
    for each in optimizer.__mro__:
        reason = REFUSED.get(each.__name__) if is_of_torch(each) else None
        if reason is not None:
            raise UnsupportedError(f"{optimizer.__name__} cannot be sharded: {reason}")


def is_of_torch(kind: OptimizerClass) -> bool:
    """Whether a class is one of torch's own."""
    return getattr(torch.optim, kind.__name__, None) is torch_class(kind)


def groups_in_torch_words(
    optimizer: str | OptimizerClass, groups: Sequence[Group], options: Mapping[str, Any]
) -> list[Group]:
    """Groups with their options in torch's words, as `find_optimizer` has those of the optimizer.

    As in torch, groups may have anything in them; those of a class stay as they are.

    Args:
        optimizer: as it was given, a name or a class.
        groups: as they were given.
        options: of the optimizer, in torch's words; what a group does not say is taken from there.
    """
    if not isinstance(optimizer, str):
        return list(groups)
    return [
        group._replace(options=in_torch_words(dict(group.options), options)) for group in groups
    ]


def in_torch_words(
    options: dict[str, Any], outer: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Options with Gluon's names as torch calls them.

    Args:
        options: Gluon's betas are taken out of it.
        outer: options of the optimizer, where these are of a group.
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


def is_elementwise(optimizer: OptimizerClass) -> bool:
    """Whether an optimizer of torch's steps every element by itself."""
    return is_of_torch(optimizer) and optimizer.__name__ in ELEMENTWISE


def choose_rule(optimizer: OptimizerClass, rule: str | None) -> str:
    """The partition rule: `flat` where the optimizer works element by element.

    Args:
        optimizer: its class.
        rule: that was asked for. `flat` for a class that torch does not have says that it works
            element by element.

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


def without_compiler(
    optimizer: OptimizerClass, options: Sequence[Mapping[str, Any]]
) -> OptimizerClass:
    """The class to make: one of torch's that does not load its compiler, where that does the same.

    Args:
        optimizer: its class.
        options: of the optimizer, and of each parameter group.
    """
    if not is_of_torch(optimizer) or any(each.get("differentiable") for each in options):
        return optimizer
    return eager_class(optimizer)


def check_parameters(
    optimizer: OptimizerClass, options: Mapping[str, Any], parameters: ParameterList
) -> None:
    """Raise what an optimizer of torch's would for these parameters, before anything is shared.

    It is made for stand-ins that have shapes, and no memory to speak of.

    Args:
        optimizer: its class.
        options: of it.
        parameters: to be stepped.

    Raises:
        UnsupportedError: it does not step parameters of such shapes; names one.
        ValueError, TypeError, RuntimeError: what torch raises for its options.
    """
    if torch_class(optimizer).__name__ == "Muon":
        for name, tensor in zip(parameters.names, parameters.tensors, strict=True):
            if tensor.dim() != 2:
                raise UnsupportedError(
                    f"Muon steps matrices, and parameter {name!r} has shape"
                    f" {tuple(tensor.shape)}; give it to a trainer of its own, with AdamW perhaps"
                )
    if not is_of_torch(optimizer):
        return  # what others do when they are made is not ours to do twice
    groups: list[dict[str, Any]] = [{**each, "params": []} for each in parameters.options]
    for tensor, number in zip(parameters.tensors, parameters.groups, strict=True):
        stand_in = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        groups[number]["params"].append(torch.nn.Parameter(stand_in))
    optimizer(groups, **options)


def complete_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Give momentum to parameters that are stepped for the first time, where others have some.

    Torch's fused kernel of SGD takes it from all parameters or from none, and fails where some are
    used later than others. It begins as the gradient, which is what zeros become.
    """
    if torch_class(type(optimizer)) is not torch.optim.SGD:
        return
    for group in optimizer.param_groups:
        if not group["fused"] or not group["momentum"] or group["dampening"]:
            continue
        stepped = [each for each in group["params"] if each.grad is not None]
        new = [each for each in stepped if optimizer.state[each].get("momentum_buffer") is None]
        if 0 < len(new) < len(stepped):
            for each in new:
                optimizer.state[each]["momentum_buffer"] = torch.zeros_like(each)


def may_fuse(
    optimizer: OptimizerClass,
    options: Sequence[Mapping[str, Any]],
    tensors: Iterable[torch.Tensor],
) -> bool:
    """Whether torch has one kernel for the whole step, and nobody asked for another.

    Args:
        optimizer: its class.
        options: of the optimizer, and of each parameter group.
        tensors: that it is to step.
    """
    if optimizer.__name__ not in FUSED or not is_of_torch(optimizer):
        return False
    for each in options:
        asked = ("fused", "foreach", "differentiable", "capturable")
        if any(each.get(name) is not None for name in asked):
            return False
        # With dampening a buffer cannot begin as zeros; see `complete_momentum`.
        if isinstance(each.get("lr"), torch.Tensor) or each.get("dampening"):
            return False
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    return all(tensor.dtype in kinds and tensor.device.type == "cpu" for tensor in tensors)

"""The optimizer that a user asked for, checked before anything is shared between ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kadril.errors import UnsupportedError
from kadril.sharded.optimizer.eager_class import OptimizerClass, eager_class, torch_class
from kadril.sharded.optimizer.fused_kernel import may_fuse
from kadril.sharded.optimizer.option_names import groups_in_torch_words
from kadril.sharded.optimizer.supported_optimizers import find_optimizer, is_of_torch
from kadril.sharded.ownership.parameter_groups import Group
from kadril.sharded.ownership.parameter_list import ParameterList

__all__ = ["OptimizerChoice", "without_compiler"]


class OptimizerChoice:
    """A class of optimizers and its options, as the user gave them and as they are used.

    Args:
        optimizer: name of one of torch's, or a class.
        options: options of the optimizer; for a name also in Gluon's words.

    Attributes:
        kind: the class that was asked for.
        made: the class to construct: `kind`, or the same without torch's compiler.
        options: options to construct it with, in torch's words.

    Raises:
        ValueError, TypeError, UnsupportedError: see `find_optimizer`.
    """

    def __init__(self, optimizer: str | OptimizerClass, options: Mapping[str, Any] | None) -> None:
        self._asked = optimizer
        self.kind, self.options = find_optimizer(optimizer, options)
        self.made = self.kind

    def translate(
        self, groups: Sequence[Group], defaults: Mapping[str, Any] | None = None
    ) -> list[Group]:
        """Return parameter groups with their options in torch's words.

        Args:
            groups: as the user gave them.
            defaults: options of the optimizer; those it is constructed with where None.
        """
        outer = self.options if defaults is None else defaults
        return groups_in_torch_words(self._asked, groups, outer)

    def choose_kernels(self, parameters: ParameterList) -> None:
        """Choose fused kernels and a class without torch's compiler, where both are possible."""
        options = [self.options, *parameters.options]
        if isinstance(self._asked, str) and may_fuse(self.kind, options, parameters.tensors):
            self.options["fused"] = True
        self.made = without_compiler(self.kind, [self.options, *parameters.options])

    def check(self, parameters: ParameterList) -> None:
        """Raise for parameters that the optimizer does not step; see `check_parameters`."""
        check_parameters(self.made, self.options, parameters)

    def make(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Construct the optimizer for parameter groups."""
        made: torch.optim.Optimizer = self.made(groups, **self.options)
        return made


def without_compiler(
    optimizer: OptimizerClass, options: Sequence[Mapping[str, Any]]
) -> OptimizerClass:
    """Return the class to construct: one without torch's compiler, where that does the same.

    Args:
        optimizer: class of the optimizer.
        options: options of the optimizer, and of each parameter group.
    """
    if not is_of_torch(optimizer) or any(each.get("differentiable") for each in options):
        return optimizer
    return eager_class(optimizer)


def check_parameters(
    optimizer: OptimizerClass, options: Mapping[str, Any], parameters: ParameterList
) -> None:
    """Raise what torch's optimizer would raise for these parameters, before anything is shared.

    The optimizer is constructed once for placeholders that have shapes and almost no memory.

    Args:
        optimizer: class of the optimizer.
        options: options of the optimizer.
        parameters: the parameters to step.

    Raises:
        UnsupportedError: it does not step parameters of such shapes; names the parameter.
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
        return  # construction of other classes may have effects, so it happens once only
    groups: list[dict[str, Any]] = [{**each, "params": []} for each in parameters.options]
    for tensor, number in zip(parameters.tensors, parameters.groups, strict=True):
        placeholder = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)
        groups[number]["params"].append(torch.nn.Parameter(placeholder))
    optimizer(groups, **options)

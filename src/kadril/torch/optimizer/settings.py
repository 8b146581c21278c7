"""Settings of `DistributedOptimizer`: its arguments, checked once."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from kadril.shared_engine.process_set_reference import ProcessSetReference
from kadril.shared_engine.process_sets import ProcessSet
from kadril.shared_engine.reduce_ops import OP_NAMES, Average
from kadril.torch.compression import Compressor

__all__ = ["Groups", "Settings", "check_settings"]

# How many groups to make, the groups themselves, or nothing said.
Groups: TypeAlias = int | Sequence[Sequence[torch.Tensor]] | None


@dataclasses.dataclass(frozen=True)
class Settings:
    """The arguments of `DistributedOptimizer`, but for the optimizer and the names.

    Attributes:
        compression: what gradients go through on their way.
        num_passes: backward passes that are added up before a reduction.
        op: the reduction.
        predivide: how much of an average is divided before the sum rather than after.
        groups: the buckets the user asked for.
        sparse_as_dense: whether sparse gradients travel as dense ones.
        process_set: the ranks that share gradients.
    """

    compression: type[Compressor]
    num_passes: int
    op: int
    predivide: float
    groups: Groups
    sparse_as_dense: bool
    process_set: ProcessSet

    @property
    def prescale(self) -> float:
        """Factor on each rank's gradient before the reduction."""
        return 1.0 / self.predivide

    @property
    def postscale(self) -> float:
        """Factor on the result; with `prescale` and Average it makes the mean."""
        return self.predivide

    def __deepcopy__(self, memo: dict[int, Any]) -> Settings:
        # Groups hold parameters, and follow those of a copied optimizer.
        return dataclasses.replace(self, groups=copy.deepcopy(self.groups, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        reference = ProcessSetReference(fields.pop("process_set"))
        return revive_settings, (fields, reference)


def revive_settings(fields: dict[str, Any], reference: ProcessSetReference) -> Settings:
    """Settings out of a pickle."""
    return Settings(**fields, process_set=reference.process_set)


def check_settings(settings: Settings, num_groups: int) -> Settings:
    """Refuse what makes no sense, and take the deprecated `num_groups` for `groups`.

    Raises:
        ValueError: an argument that makes no sense; the message says which.
    """
    check_passes(settings.num_passes)
    if settings.op not in OP_NAMES:
        raise ValueError(
            f"op={settings.op!r} is no reduction; give hvd.Average, hvd.Sum or hvd.Adasum"
        )
    if settings.predivide <= 0:
        raise ValueError(
            f"gradient_predivide_factor={settings.predivide} must be positive;"
            " 1.0 divides after the sum, the number of ranks before it"
        )
    if settings.predivide != 1.0 and settings.op != Average:
        raise ValueError(
            f"gradient_predivide_factor={settings.predivide} splits the division of an average, so"
            f" it needs op=hvd.Average, not {OP_NAMES[settings.op]}; leave it out"
        )
    if num_groups < 0:
        raise ValueError(f"num_groups={num_groups} must not be negative")
    groups = settings.groups
    if num_groups:
        warnings.warn(
            "num_groups is deprecated; give groups, which takes a number or the groups themselves",
            DeprecationWarning,
            stacklevel=3,
        )
        groups = num_groups if groups is None else groups
    return dataclasses.replace(settings, groups=check_groups(groups))


def check_passes(num_passes: int) -> None:
    """Raise `ValueError` where a number of backward passes is none."""
    if num_passes <= 0 or num_passes != int(num_passes):
        raise ValueError(
            f"backward_passes_per_step={num_passes!r} must be a number of at least 1: how many"
            " backward passes you make before each step()"
        )


def check_groups(groups: Groups) -> Groups:
    """A number of groups, or groups of tensors as tuples."""
    if groups is None or isinstance(groups, int):
        if groups is not None and groups < 0:
            raise ValueError(f"groups={groups} must not be negative")
        return groups or None
    check_is_list(groups, "groups")
    for group in groups:
        check_is_list(group, "an entry of groups")
        for parameter in group:
            check_is_tensor(parameter)
    return tuple(tuple(group) for group in groups)


def check_is_list(value: Any, what: str) -> None:
    """Raise `ValueError` for what is no list; a tensor would pass for one."""
    if isinstance(value, torch.Tensor | str) or not isinstance(value, Sequence):
        raise ValueError(  # noqa: TRY004 - misuse found locally is a ValueError here
            f"{what} is a {type(value).__name__}; give a number of groups, or a list of lists of"
            " parameters that are reduced together"
        )


def check_is_tensor(value: Any) -> None:
    """Raise `ValueError` for what is no tensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(  # noqa: TRY004
            f"groups has a {type(value).__name__} in a group; give parameters"
        )

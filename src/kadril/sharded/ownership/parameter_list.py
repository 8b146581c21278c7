"""The parameters of a trainer: named, each once, in the order of their groups."""

from __future__ import annotations

import re
from typing import Any

import torch

from kadril.sharded.ownership.memory_order import dims_in_memory
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.ownership.parameter_groups import Group

__all__ = ["ParameterList"]

# Names of parameters that were given without one (parameter_groups.py); a prefix may come before.
NUMBERED = re.compile(r"parameter\.(\d+)$")


class ParameterList:
    """Named parameters, each once, in the order of their groups.

    Attributes:
        names: name of each parameter; the first one of a tied parameter.
        tensors: the parameters.
        groups: number of the group of each parameter.
        options: options of each group.
        given: places of the parameters in the order in which the user gave them, which is the order
            in which torch numbers them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.groups: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.given: list[int] = []
        self._place: dict[int, int] = {}

    def add_group(self, group: Group) -> None:
        """Append a group.

        Raises:
            ValueError: it has a parameter of another group, or a name that another parameter has.
            TypeError: it has something that is not a parameter.
        """
        names, tensors, options, given = group
        for name, tensor in zip(names, tensors, strict=True):
            check_parameter(name, tensor)
            place = self._place.get(id(tensor))
            if place is None:
                continue
            if self.groups[place] != len(self.options):
                raise ValueError(
                    f"parameter {name!r} is in group {self.groups[place]} already, as"
                    f" {self.names[place]!r}; give each parameter to one group"
                )
        taken = set(self.names)
        for name, tensor in zip(names, tensors, strict=True):
            if id(tensor) in self._place:
                continue
            if name in taken:
                raise ValueError(
                    f"two parameters are called {name!r}; give them names of their own"
                )
            taken.add(name)
            self._place[id(tensor)] = len(self.tensors)
            self.names.append(name)
            self.tensors.append(tensor)
            self.groups.append(len(self.options))
        self.given += dict.fromkeys(self._place[id(tensors[index])] for index in given)
        self.options.append(options)

    def place_of(self, tensor: torch.Tensor) -> int | None:
        """Return the place of a parameter in this list, by identity; None if it is not there."""
        return self._place.get(id(tensor))

    @property
    def next_number(self) -> int:
        """The first number that no parameter is named by: `first` of `read_groups`.

        Parameters without a name are numbered as the items of the list that was given. A list that
        has one parameter twice has higher numbers than there are parameters.
        """
        found = [NUMBERED.search(name) for name in self.names]
        return max([len(self.names), *(int(each[1]) + 1 for each in found if each)])

    def entries(self, begin: int = 0) -> list[Entry]:
        """Describe the parameters from a place on, for a plan."""
        return [
            Entry(
                self.names[place],
                tuple(self.tensors[place].shape),
                self.tensors[place].dtype,
                dims_in_memory(self.tensors[place]),
                self.groups[place],
                not self.tensors[place].requires_grad,
                self.tensors[place].device,
            )
            for place in range(begin, len(self.tensors))
        ]

    def members(self) -> list[list[torch.Tensor]]:
        """Return the parameters of each group."""
        groups: list[list[torch.Tensor]] = [[] for _ in self.options]
        for tensor, number in zip(self.tensors, self.groups, strict=True):
            groups[number].append(tensor)
        return groups

    def copy(self) -> ParameterList:
        """Return a list of the same parameters, to which further groups can be appended."""
        copied = ParameterList()
        copied.names = list(self.names)
        copied.tensors = list(self.tensors)
        copied.groups = list(self.groups)
        copied.options = list(self.options)
        copied.given = list(self.given)
        copied._place = dict(self._place)
        return copied


def check_parameter(name: str, tensor: Any) -> None:
    """Raise `TypeError` or `ValueError` for what cannot be a parameter of a trainer."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name!r} is a {type(tensor).__name__}, not a parameter")
    if isinstance(tensor, torch.nn.parameter.UninitializedParameter):
        raise ValueError(  # noqa: TRY004 - it is of the right type, and too early
            f"parameter {name!r} has no shape yet; run the model once before it is sharded"
        )
    if not tensor.is_leaf:
        raise ValueError(f"parameter {name!r} is the result of an operation, not a leaf")
    if tensor.layout != torch.strided:
        raise ValueError(f"parameter {name!r} is {tensor.layout}; only dense ones can be sharded")
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise ValueError(f"parameter {name!r} is {tensor.dtype}, which has no gradients")

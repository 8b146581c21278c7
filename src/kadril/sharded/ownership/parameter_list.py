"""What users give as parameters, as a list of groups of named ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from kadril.sharded.ownership.memory_order import dims_in_memory
from kadril.sharded.ownership.ownership_plan import Entry

__all__ = ["Group", "ParameterList", "Parameters", "in_order", "read_groups"]

Parameters: TypeAlias = (
    torch.nn.Module
    | Mapping[str, torch.Tensor]
    | Iterable[torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
    | Iterable[dict[str, Any]]
)

# What parameters without a name are called; a prefix may come before.
NUMBERED = re.compile(r"parameter\.(\d+)$")


class Group(NamedTuple):
    """One parameter group.

    Attributes:
        names: of the parameters.
        tensors: the parameters.
        options: of the group.
        given: places in these lists, in the order in which the user gave them.
    """

    names: list[str]
    tensors: list[torch.Tensor]
    options: dict[str, Any]
    given: list[int]


class ParameterList:
    """Named parameters, each once, in the order of their groups.

    Attributes:
        names: one for each parameter; of a tied one the first.
        tensors: the parameters.
        groups: number of the group of each.
        options: of each group.
        given: places in the order in which the user gave them, in which torch numbers them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.groups: list[int] = []
        self.options: list[dict[str, Any]] = []
        self.given: list[int] = []
        self._place: dict[int, int] = {}

    def add_group(self, group: Group) -> None:
        """Take a group in.

        Raises:
            ValueError: a parameter of another group, a name that is taken, or something that is
                no parameter.
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
        """Where a parameter is in this list, by identity."""
        return self._place.get(id(tensor))

    @property
    def next_number(self) -> int:
        """A number from which on no parameter is called by one: `first` of `read_groups`.

        Numbers are those of the items that were given. Where one parameter was given twice, they
        go further than there are parameters.
        """
        found = [NUMBERED.search(name) for name in self.names]
        return max([len(self.names), *(int(each[1]) + 1 for each in found if each)])

    def entries(self, begin: int = 0) -> list[Entry]:
        """The parameters from a place on, as a plan sees them."""
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


def read_groups(parameters: Parameters, *, first: int = 0) -> list[Group]:
    """Groups of what may be a module, a dict by name, a list, or a list of groups.

    Args:
        parameters: a dict is taken in the order of its sorted keys, anything else in its own.
        first: number of the first parameter without a name.

    Raises:
        TypeError: something else, or a set, which has no order that ranks could share.
        ValueError: there are none.
    """
    if isinstance(parameters, torch.nn.Module):
        named = list(parameters.named_parameters())
        return [in_order([name for name, _ in named], [each for _, each in named], {})]
    if isinstance(parameters, Mapping):
        names = sorted(parameters)
        given = [names.index(name) for name in parameters]
        return [Group(names, [parameters[name] for name in names], {}, given)]
    if isinstance(parameters, torch.Tensor) or not isinstance(parameters, Iterable):
        raise TypeError(
            "parameters must be a module, a dict by name, a list of parameters or a list of"
            f" groups, got {type(parameters).__name__}"
        )
    check_has_order(parameters)
    items: list[Any] = list(parameters)
    if not items:
        raise ValueError(
            "there are no parameters; was a generator such as model.parameters() used up?"
        )
    if not isinstance(items[0], dict):
        return [read_members(items, first, {})]
    groups = []
    for item in items:
        if not isinstance(item, dict) or "params" not in item:
            raise TypeError(
                "a parameter group is a dict with 'params'; do not mix them with others"
            )
        options = {
            key: value for key, value in item.items() if key not in ("params", "param_names")
        }
        groups.append(read_group(item["params"], item.get("param_names"), first, options))
        first += len(groups[-1].names)
    return groups


def read_group(members: Any, names: list[str] | None, first: int, options: dict[str, Any]) -> Group:
    """One group: its members may be given as `read_groups` takes them.

    Raises:
        TypeError: they are a set.
    """
    if isinstance(members, torch.Tensor):
        members = [members]
    if isinstance(members, torch.nn.Module | Mapping):
        (found,) = read_groups(members)
        return found._replace(options=options)
    check_has_order(members)
    read = read_members(list(members), first, options)
    return read if names is None else read._replace(names=list(names))


def read_members(items: list[Any], first: int, options: dict[str, Any]) -> Group:
    """Parameters, or pairs of name and parameter."""
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    for place, item in enumerate(items, first):
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            names.append(item[0])
            tensors.append(item[1])
        else:
            names.append(f"parameter.{place}")
            tensors.append(item)
    return in_order(names, tensors, options)


def in_order(names: list[str], tensors: list[torch.Tensor], options: dict[str, Any]) -> Group:
    """A group as it was given."""
    return Group(names, tensors, options, list(range(len(names))))


def check_has_order(members: Any) -> None:
    """Raise `TypeError` for a set: every rank would number its members in another way."""
    if isinstance(members, set | frozenset):
        raise TypeError(
            f"parameters are in a {type(members).__name__}, whose order is another one on every"
            " rank; give a list, in the same order on all ranks"
        )


def check_parameter(name: str, tensor: Any) -> None:
    """Raise where something cannot be trained by this library."""
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

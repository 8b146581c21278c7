"""Parameter groups, read from what users give: a module, a dict, a list, or torch's groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch

from kadril.sharded.ownership.group_options import options_of

__all__ = ["Group", "Parameters", "read_groups", "with_prefix"]

Parameters: TypeAlias = (
    torch.nn.Module
    | Mapping[str, torch.Tensor]
    | Iterable[torch.Tensor]
    | Iterable[tuple[str, torch.Tensor]]
    | Iterable[dict[str, Any]]
)


class Group(NamedTuple):
    """One parameter group.

    Attributes:
        names: names of the parameters.
        tensors: the parameters.
        options: options of the group.
        given: indices into these lists, in the order in which the user gave the parameters.
    """

    names: list[str]
    tensors: list[torch.Tensor]
    options: dict[str, Any]
    given: list[int]


def read_groups(parameters: Parameters, *, first: int = 0) -> list[Group]:
    """Read groups from a module, a dict by name, a list of parameters, or a list of groups.

    Args:
        parameters: a dict is taken in the order of its sorted keys, anything else in its own.
        first: number of the first parameter without a name.

    Raises:
        TypeError: it is something else, or a set, which has no order that ranks could share.
        ValueError: there are no parameters.
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
        groups.append(read_group(item["params"], item.get("param_names"), first, options_of(item)))
        first += len(groups[-1].names)
    return groups


def read_group(members: Any, names: list[str] | None, first: int, options: dict[str, Any]) -> Group:
    """Read one group, whose members may be given in any form that `read_groups` takes.

    Raises:
        TypeError: the members are a set.
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
    """Read a list of parameters, or of pairs of name and parameter."""
    names: list[str] = []
    tensors: list[torch.Tensor] = []
    for number, item in enumerate(items, first):
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            names.append(item[0])
            tensors.append(item[1])
        else:
            names.append(f"parameter.{number}")
            tensors.append(item)
    return in_order(names, tensors, options)


def in_order(names: list[str], tensors: list[torch.Tensor], options: dict[str, Any]) -> Group:
    """Make a group whose parameters are in the order in which they were given."""
    return Group(names, tensors, options, list(range(len(names))))


def check_has_order(members: Any) -> None:
    """Raise `TypeError` for a set: every rank would number its members differently."""
    if isinstance(members, set | frozenset):
        raise TypeError(
            f"parameters are in a {type(members).__name__}, whose order differs from rank to"
            " rank; give a list, in the same order on all ranks"
        )


def with_prefix(groups: list[Group], prefix: str | None) -> list[Group]:
    """Put a prefix before the names of the parameters of all groups."""
    if not prefix:
        return groups
    return [group._replace(names=[prefix + name for name in group.names]) for group in groups]

"""Names: of parameters, for messages and order; of requests, which ranks match by.

A request is called

    gradients.1f0a33c2.0.bucket.3
              |        | |
              |        | which part of the gradients
              |        counts optimizers over equally named parameters, in the order they were made
              hash of the parameters' names

An optimizer keeps its number as ranks meet again: a rank that is new counts those it has made, and
the others may use theirs in another order.

so that the two optimizers of a GAN never meet, also where both models call their layers "0" and
"1"; and a rank that joined late and made only one optimizer still meets the right one. Shapes are
not in the hash: ranks whose shapes differ shall meet, and be told.
"""

from __future__ import annotations

import collections
import hashlib
import itertools
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from kadril.shared_engine.process_sets import ProcessSet
from kadril.world import World, current

__all__ = ["ParameterNames", "RequestPrefix"]

# Numbers of optimizers that are taken in a world, by process set and hash. All ranks of a world
# count alike, also one that joined later: it is then another world.
_taken: WeakKeyDictionary[World, dict[tuple[int | None, str], set[int]]] = WeakKeyDictionary()


class ParameterNames:
    """The names of an optimizer's parameters.

    Args:
        named_parameters: pairs of name and parameter, or None. It may name more than the optimizer
            has.

    Raises:
        ValueError: not pairs of name and tensor, or a name twice.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, torch.Tensor]] | None) -> None:
        self.given = None if named_parameters is None else list(named_parameters)
        self.check_given()
        # Ids are safe as keys: `given` keeps the parameters alive.
        self.by_id: dict[int, str] = {}
        for name, parameter in self.given or ():
            self.by_id.setdefault(id(parameter), name)

    def check_given(self) -> None:
        """Raise `ValueError` for what are not pairs of unique name and tensor."""
        entry: Any
        for entry in self.given or ():
            if not (
                isinstance(entry, tuple)
                and len(entry) == 2
                and isinstance(entry[0], str)
                and isinstance(entry[1], torch.Tensor)
            ):
                raise ValueError(
                    f"named_parameters has an entry of type {type(entry).__name__}; give pairs of"
                    " name and parameter, usually model.named_parameters()"
                )
        counts = collections.Counter(name for name, _ in self.given or ())
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise ValueError(
                f"named_parameters has names twice: {', '.join(twice)}. Names tell parameters"
                " apart; where you join several models, put a prefix before each one's names"
            )

    def of(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        """Names and parameters of an optimizer, in the order of the model where that is known.

        Parameters that no name was given for have one by their place.
        """
        parameters = {
            id(parameter): (f"param.{number}.{index}", parameter)
            for number, group in enumerate(optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
        }
        if self.given is None:
            return list(parameters.values())
        named = [
            (name, parameters.pop(key)[1]) for key, name in self.by_id.items() if key in parameters
        ]
        return named + list(parameters.values())

    def check_complete(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise `ValueError` where names were given, but not for all parameters."""
        if self.given is None:
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        unnamed = [describe(p) for p in parameters if id(p) not in self.by_id]
        if unnamed:
            raise ValueError(
                f"named_parameters does not name {len(unnamed)} of the optimizer's"
                f" {len(parameters)} parameters, of shapes {', '.join(unnamed[:4])}"
                f"{', ...' if len(unnamed) > 4 else ''}. Name all of them, or leave"
                " named_parameters out"
            )


def describe(parameter: torch.Tensor) -> str:
    """A parameter in a few words."""
    if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
        return "(uninitialized)"
    return str(tuple(parameter.shape))


class RequestPrefix:
    """The start of all request names of one optimizer; the same on every rank.

    Attributes:
        text: in the world that it was last taken in.
    """

    def __init__(self) -> None:
        self.text = ""
        self._number = 0

    def take(self, names: Iterable[str], process_set: ProcessSet) -> None:
        """Take the number of the last world in this one, or the next that is free."""
        digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:8]
        taken = _taken.setdefault(current(), {})
        numbers = taken.setdefault((process_set.process_set_id, digest), set())
        free = itertools.count(self._number)
        self._number = next(number for number in free if number not in numbers)
        numbers.add(self._number)
        self.text = f"gradients.{digest}.{self._number}"

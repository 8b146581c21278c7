"""Gradient plans under keys, by which compiled graphs find them.

A compiled graph is code that outlives the call that made it, and its operators take only tensors,
numbers and text. So a plan is registered under a key, which is text, and found by it at run time:

    compiled graph --"1f0a33c2.0"--> registry --> plan --> transport
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import weakref
from collections.abc import Iterable
from weakref import WeakValueDictionary

import torch

from kadril.errors import StateError
from kadril.sharded.graph.gradient_plan import GradientPlan

__all__ = [
    "Registration",
    "find_plan",
    "living_serials",
    "note_change",
    "num_changes",
    "register_plan",
    "registration",
]

logger = logging.getLogger("kadril")


_serials = itertools.count()


class Registration:
    """A plan under its key, with what graphs of this process agree on.

    Attributes:
        key: names it in compiled graphs.
        plan: the plan.
        serial: a number that no other one has, or had.
        keeps_local: whether gradients that graphs drop are kept by copying them; set by
            `kadril.sharded.backward` for one pass.
        dropped: names of parameters whose gradient a graph has sent away and not handed out, since
            the plan has last looked.
    """

    def __init__(self, key: str, plan: GradientPlan) -> None:
        self.key = key
        self.plan = plan
        self.serial = next(_serials)
        self.keeps_local = False
        self.dropped: set[str] = set()
        self._positions: dict[str, int] = {}

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Names in the order in which all graphs of this process reduce them.

        The first graph that has a gradient decides, so that a graph compiled later, on one rank
        only, for another batch size, does not come with another order than its peers.

        Args:
            names: in the order of the graph at hand.
        """
        names = list(names)
        for name in names:
            self._positions.setdefault(name, len(self._positions))
        return sorted(names, key=self._positions.__getitem__)


_registrations: WeakValueDictionary[str, Registration] = WeakValueDictionary()
_changes = itertools.count()
_num_changes = next(_changes)


def note_change() -> None:
    """Count a change: plans know other parameters than before."""
    global _num_changes  # noqa: PLW0603 - as the registry itself
    _num_changes = next(_changes)


def num_changes() -> int:
    """Return a number that is another one whenever plans have come, gone or changed."""
    return _num_changes


def living_serials() -> set[int]:
    """Return the serial numbers of the plans that are registered."""
    return {each.serial for each in list(_registrations.values())}


def register_plan(plan: GradientPlan) -> Registration:
    """Make a plan known to the graphs of this process, for as long as the result lives.

    The key depends on the names and on how many such plans live, not on addresses or time: graphs
    of the next run have the same text, and the compiler's caches hold.
    """
    digest = hashlib.sha256("\n".join(plan.names).encode()).hexdigest()[:8]
    key = next(
        key
        for key in (f"{digest}.{number}" for number in itertools.count())
        if key not in _registrations
    )
    made = Registration(key, plan)
    _registrations[key] = made
    note_change()
    weakref.finalize(made, note_change).atexit = False
    return made


def registration(key: str) -> Registration:
    """Return the registration of a key.

    Raises:
        StateError: there is none, or not any more.
    """
    found = _registrations.get(key)
    if found is None:
        raise StateError(
            f"a compiled graph asks for the gradient plan {key!r}, but the trainer that made it is"
            " gone. Keep the trainer for as long as the model is trained"
        )
    return found


def find_plan(parameters: Iterable[torch.Tensor]) -> Registration | None:
    """Find the plan that knows any of these parameters; the latest, where there are several.

    One graph has the reductions of one plan only: those of two would be two chains, which compilers
    of two ranks may interleave differently, and each would wait for the other.
    """
    parameters = list(parameters)
    found = [
        each
        for each in list(_registrations.values())
        if any(each.plan.name_of(parameter) is not None for parameter in parameters)
    ]
    if len(found) > 1:
        logger.warning(
            "%d trainers know parameters of one graph, which reduces the gradients of the latest"
            " trainer and hands out all others. Name the trainer that you mean by"
            " options=trainer.generate_graph_pass_options()",
            len(found),
        )
    return found[-1] if found else None

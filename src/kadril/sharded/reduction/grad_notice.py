"""A notice to whoever looks for gradients where stage 2 leaves none.

With stage 2 a gradient goes to its owners during the backward pass, and `.grad` is None after it.
`torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)` then finds nothing to clip and returns 0,
`model.zero_grad()` drops nothing, and neither says so. Both read `.grad` in Python, which is where
they are told: parameters of the trainer get a class of their own, whose `.grad` is the usual one,
and which warns, once for each trainer, when it is read and there is none.

Autograd itself reads and writes gradients in C++ and does not get here. The compiler does when it
traces a model, and is not a user to be warned.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch._guards import TracingContext

from kadril.sharded.ownership.gradient_memory import GRAD, raw_grad

__all__ = ["GradNotice"]

TEXT = (
    ".grad was looked at between backward() and step(), and it is None: with stage 2 gradients are"
    " given to their owners during the backward pass. torch.nn.utils.clip_grad_norm_() clips"
    " nothing then and model.zero_grad() drops nothing. Call clip_grad_norm_() and zero_grad() of"
    " the trainer or of ShardedOptimizer, or keep gradients with stage=1"
)


class WatchedParameter(torch.nn.Parameter):
    """A parameter whose `.grad` is read by somebody else than the trainer."""

    _notice: Callable[[], None]

    @property
    def grad(self) -> torch.Tensor | None:
        """The gradient, as torch has it."""
        found = raw_grad(self)
        if found is None:
            self._notice()
        return found

    @grad.setter
    def grad(self, value: torch.Tensor | None) -> None:
        GRAD.__set__(self, value)

    @grad.deleter
    def grad(self) -> None:
        GRAD.__delete__(self)

    def __repr__(self) -> str:  # type: ignore[override]
        return repr(torch.nn.Parameter(self.data, self.requires_grad))

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Parameter:
        """Copy to an ordinary parameter: nobody takes the gradients of a copy."""
        copied: torch.nn.Parameter = super().__deepcopy__(memo)  # type: ignore[no-untyped-call]
        copied.__class__ = torch.nn.Parameter
        return copied


class Giver(Protocol):
    """Takes gradients from their parameters.

    Attributes:
        gives_away: whether it does so during the backward pass.
        has_given_away: whether it has any of this round.
    """

    @property
    def gives_away(self) -> bool: ...

    @property
    def has_given_away(self) -> bool: ...


class GradNotice:
    """Warns once when gradients are looked for that were given away.

    Args:
        giver: who gives them away.
    """

    def __init__(self, giver: Giver) -> None:
        self._giver = giver
        self._was_given = False
        self._watched: list[torch.Tensor] = []
        itself = weakref.ref(self)

        def notice(_: object = None) -> None:
            living = itself()
            if living is not None:
                living.warn()

        # A class for each trainer, since instances are saved with all that they carry.
        self._watched_class: Any = type("Parameter", (WatchedParameter,), {"_notice": notice})

    def warn(self) -> None:
        """Warn, where there is a reason and nobody was warned yet."""
        is_traced = TracingContext.try_get() is not None
        if not self._was_given and self._giver.has_given_away and not is_traced:
            self._was_given = True
            warnings.warn(TEXT, UserWarning, stacklevel=5)

    def watch(self, parameters: Sequence[torch.Tensor]) -> None:
        """Notice whoever reads the gradients of these, where they are of torch's own class."""
        for parameter in parameters:
            if self._giver.gives_away and type(parameter) is torch.nn.Parameter:
                parameter.__class__ = self._watched_class
                self._watched.append(parameter)

    def stop(self) -> None:
        """Make them ordinary parameters again."""
        for parameter in self._watched:
            parameter.__class__ = torch.nn.Parameter
        self._watched.clear()

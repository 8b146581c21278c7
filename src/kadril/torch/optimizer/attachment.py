"""Attachment of an optimizer object: the state that it gets when it is distributed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from kadril import world
from kadril.shared_engine.basics import is_initialized
from kadril.shared_engine.context import context
from kadril.torch.optimizer.naming import ParameterNames, RequestPrefix
from kadril.torch.optimizer.reducer import Reducer
from kadril.torch.optimizer.settings import Settings

__all__ = ["Attachment"]


class Attachment:
    """Settings, names, and the reducer of the current world.

    Attributes:
        settings: of the optimizer.
        names: of its parameters.
        world: that this was set up for, or None before there was one.
        reducer: of the gradients; None where there is nobody to share them with: a world of one,
            or a rank outside of the process set.
        reduces_gradients: whether there is to be a reducer at all.
        prefix: start of the names of its requests.
        skips: whether `step()` leaves gradients as they are.
        is_synchronized: whether the program called `synchronize()` since the last step.
        inner_step: what a program had put in place of the optimizer's `step`, or None.
    """

    def __init__(
        self, settings: Settings, names: ParameterNames, *, reduces_gradients: bool
    ) -> None:
        self.settings = settings
        self.reduces_gradients = reduces_gradients
        self.names = names
        self.world: world.World | None = None
        self.reducer: Reducer | None = None
        self.prefix = RequestPrefix()
        self._finalizer: weakref.finalize[[], torch.optim.Optimizer] | None = None
        self.skips = False
        self.is_synchronized = False
        self.inner_step: Callable[..., Any] | None = None

    @property
    def has_peers(self) -> bool:
        """Whether there is another rank to share gradients with."""
        process_set = self.settings.process_set
        return process_set.included() and (process_set.size() or 1) > 1

    @property
    def is_outdated(self) -> bool:
        """Whether the ranks have met again since this was set up."""
        if self.reducer is not None and self.reducer.engine is not context().engine:
            return True
        return world.current() is not self.world

    def detach(self) -> None:
        """Let go of the parameters."""
        if self._finalizer is not None:
            self._finalizer()
        self._finalizer = self.reducer = self.world = None

    def refresh(self, optimizer: torch.optim.Optimizer) -> bool:
        """Set up for the current world, where that is not the one it is set up for.

        Returns:
            whether there was anything to do.

        Raises:
            ValueError: names or groups do not match the optimizer's parameters.
        """
        if not is_initialized() or not self.is_outdated:
            return False
        self.detach()
        named = self.names.of(optimizer)
        check_groups_are_parameters(self.settings, named)
        self.world = world.current()
        if not self.has_peers:
            return True
        self.prefix.take([name for name, _ in named], self.settings.process_set)
        if self.reduces_gradients:
            reducer = Reducer(self.prefix.text, self.settings)
            reducer.add(named, self.settings.groups)
            self.reducer = reducer
            # The hooks on the parameters must not outlive the optimizer that waits for them.
            self._finalizer = weakref.finalize(optimizer, self.reducer.detach)
            self._finalizer.atexit = False
        return True


def check_groups_are_parameters(settings: Settings, named: list[tuple[str, torch.Tensor]]) -> None:
    """Raise `ValueError` where a group holds a tensor that the optimizer does not have."""
    if settings.groups is None or isinstance(settings.groups, int):
        return
    known = {id(parameter) for _, parameter in named}
    for number, group in enumerate(settings.groups):
        for parameter in group:
            if id(parameter) not in known:
                raise ValueError(
                    f"groups: group {number} has a tensor of shape {tuple(parameter.shape)} that is"
                    " no parameter of the optimizer; give its parameters themselves, not copies"
                )

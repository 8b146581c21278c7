"""Hooks that report when a gradient is in `.grad`."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Protocol

import torch
from torch.utils.hooks import RemovableHandle

from kadril.sharded.ownership.gradient_memory import layout_of_grad

__all__ = ["ArrivalHooks", "Listener"]


class Listener(Protocol):
    """Receiver of reports that gradients have arrived."""

    def arrived(self, place: int, layout: torch.layout) -> None:
        """Take note of a gradient in `.grad`, which nothing else refers to.

        Args:
            place: of the parameter among all.
            layout: of the gradient.
        """
        ...


class ArrivalHooks:
    """Reports every gradient that autograd has accumulated to a listener.

    Args:
        listener: gets the reports. It is not kept alive: a parameter keeps alive what its hook
            refers to, unseen by the garbage collector, long after the trainer.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = weakref.ref(listener)
        self._hooks: list[RemovableHandle] = []
        self._frozen: list[tuple[int, torch.Tensor]] = []  # parameters without a hook
        weakref.finalize(listener, remove, self._hooks).atexit = False

    def watch(self, parameters: Iterable[tuple[int, torch.Tensor]]) -> None:
        """Watch parameters, given with their places; frozen ones once they are frozen no more."""
        self._frozen += parameters
        self.watch_thawed()

    def watch_thawed(self) -> None:
        """Watch parameters that want gradients now, and did not before."""
        for place, tensor in self._frozen:
            if tensor.requires_grad:
                hook = functools.partial(tell, self._listener, place)
                self._hooks.append(tensor.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]
        self._frozen = [each for each in self._frozen if not each[1].requires_grad]

    def detach(self) -> None:
        """Stop watching."""
        remove(self._hooks)


def tell(listener: weakref.ReferenceType[Listener], place: int, tensor: torch.Tensor) -> None:
    """Report a gradient; called by autograd after it has accumulated one."""
    living = listener()
    # Autograd calls also where a compiled graph has sent the gradient away, and there is none.
    layout = layout_of_grad(tensor)  # and no reference to the gradient, which may be written to
    if living is not None and layout is not None:
        living.arrived(place, layout)


def remove(hooks: list[RemovableHandle]) -> None:
    """Take hooks off their parameters."""
    for hook in hooks:
        hook.remove()
    hooks.clear()

"""Have `torch.amp.GradScaler` look at reduced gradients.

A scaler looks at gradients before `step()`: it divides them by its scale, and decides by what it
finds whether there is a step at all. All ranks have to decide alike, so the gradients of a
distributed optimizer have to be reduced by then, those too that only some ranks have. torch has no
hook for that. So two methods of the class are wrapped, when the first optimizer is distributed; for
any other optimizer they do what they did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["wrap_grad_scaler"]


@functools.cache
def wrap_grad_scaler() -> None:
    """Wrap the methods that look at gradients; once."""
    scaler = torch.amp.GradScaler
    scaler.unscale_ = after_reduction(scaler.unscale_)  # type: ignore[method-assign]
    scaler.step = after_reduction(scaler.step)  # type: ignore[method-assign]


def after_reduction(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a scaler that reduces an optimizer's gradients first, where it has to."""

    @functools.wraps(method)
    def call(
        self: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any
    ) -> Any:
        attachment = getattr(optimizer, "_kadril", None)
        if attachment is not None and self.is_enabled():
            is_new = attachment.refresh(optimizer)
            reducer = attachment.reducer
            # A reducer that is new has not seen the gradients come.
            if reducer is not None and (reducer.has_news or is_new):
                reducer.synchronize()
        return method(self, optimizer, *args, **kwargs)

    return call

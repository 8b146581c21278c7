"""Make a torch optimizer a distributed one, in place; and back from a pickle."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kadril.shared_engine.context import is_given_up
from kadril.torch.optimizer.attachment import Attachment
from kadril.torch.optimizer.grad_scaler import wrap_grad_scaler
from kadril.torch.optimizer.naming import ParameterNames
from kadril.torch.optimizer.settings import Settings, check_passes

__all__ = ["DistributedBase", "distribute"]


class DistributedBase(torch.optim.Optimizer):
    """Base of all distributed optimizers; see wrapped.py for how they are made."""

    _kadril: Attachment

    # Whether gradients are reduced, by a reducer.
    reduces_gradients = True

    @property
    def _parameter_names(self) -> dict[torch.Tensor, str]:
        """The name of each parameter, under the name by which Horovod's programs ask for it."""
        return {parameter: name for name, parameter in self._kadril.names.of(self)}

    def kadril_refresh(self) -> None:
        """Listen to the gradients for the ranks that have met again, before any comes."""
        self._kadril.refresh(self)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes are added up before a step; between steps.

        Raises:
            ValueError: not a number of at least 1.
        """
        check_passes(passes)
        attachment = self._kadril
        attachment.settings = dataclasses.replace(attachment.settings, num_passes=passes)
        if attachment.reducer is not None:
            attachment.reducer.drop_round()
            attachment.reducer.num_passes = passes
            attachment.reducer.rearm()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load state and options, as torch does.

        Where the ranks go back to a commit, gradients go with the step that they were made for:
        they are parts of it, or sums with a rank that is lost, and a rank that comes new has none.
        """
        if is_given_up():
            for group in self.__dict__["param_groups"]:
                for parameter in group["params"]:
                    parameter.grad = None
        super().load_state_dict(state_dict)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # The class was made at run time, so it is not pickled but made again. Settings and names
        # travel in the same pickle as the state: their tensors stay the optimizer's parameters.
        attachment = self._kadril
        return revive, (
            type(self).__bases__[0],
            type(self).__bases__[1],
            self.__getstate__(),
            attachment.settings,
            attachment.names.given,
        )


def distribute(
    optimizer: torch.optim.Optimizer,
    kind: type[DistributedBase],
    settings: Settings,
    names: ParameterNames,
) -> torch.optim.Optimizer:
    """Give an optimizer object a class with the methods of `kind` before those of its own.

    One that is distributed already is set up anew.

    Raises:
        ValueError: names or groups do not match the optimizer's parameters.
    """
    names.check_complete(optimizer)
    if kind.reduces_gradients:
        wrap_grad_scaler()
    before = dict(optimizer.__dict__)
    own_class = previous_class = type(optimizer)
    attachment = Attachment(settings, names, reduces_gradients=kind.reduces_gradients)
    attachment.inner_step = take_patched_step(optimizer)
    if isinstance(optimizer, DistributedBase):
        own_class = previous_class.__bases__[1]
        optimizer._kadril.detach()
        attachment.inner_step = attachment.inner_step or optimizer._kadril.inner_step
    optimizer.__dict__["_kadril"] = attachment
    optimizer.__class__ = distributed_class(kind, own_class)
    try:
        attachment.refresh(optimizer)
    except BaseException:
        optimizer.__class__ = previous_class
        optimizer.__dict__.clear()
        optimizer.__dict__.update(before)
        raise
    return optimizer


_classes: dict[tuple[type, type], type[torch.optim.Optimizer]] = {}


def distributed_class(
    kind: type[DistributedBase], own_class: type[torch.optim.Optimizer]
) -> type[torch.optim.Optimizer]:
    """The subclass of an optimizer class with the methods of `kind`; made once."""
    made = _classes.get((kind, own_class))
    if made is None:
        made = type(own_class.__name__, (kind, own_class), {"__doc__": own_class.__doc__})
        made.__module__ = kind.__module__
        _classes[kind, own_class] = made
    return made


def take_patched_step(optimizer: torch.optim.Optimizer) -> Any:
    """A `step` that was put into the object itself: it would be found before the class's.

    A scheduler's only notes that it was called, as ours does; anything else runs inside ours.
    """
    patched = optimizer.__dict__.pop("step", None)
    return None if hasattr(patched, "_wrapped_by_lr_sched") else patched


def revive(
    kind: type[DistributedBase],
    own_class: type[torch.optim.Optimizer],
    state: dict[str, Any],
    settings: Settings,
    named_parameters: list[tuple[str, torch.Tensor]] | None,
) -> torch.optim.Optimizer:
    """An optimizer out of a pickle, or a deep copy; distributed where there is a world."""
    optimizer = own_class.__new__(own_class)
    optimizer.__setstate__(state)
    return distribute(optimizer, kind, settings, ParameterNames(named_parameters))

"""The state of a training program: model, optimizer, sampler, counters."""

from __future__ import annotations

from typing import Any

import torch

from kadril.shared_engine.basics import size
from kadril.shared_engine.elastic.state import all_or_nothing
from kadril.torch.elastic.handlers import StateHandler, handler_of
from kadril.torch.elastic.sampler import ElasticSampler
from kadril.torch.elastic.state import ObjectState
from kadril.torch.ops import allgather
from kadril.torch.optimizer.distributed import DistributedBase

__all__ = ["TorchState"]


class TorchState(ObjectState):
    """State made of models, optimizers, samplers, schedulers and plain values: its attributes.

        state = TorchState(model, optimizer, sampler=sampler, batch=0)
        state.model, state.batch += 1

    A plain value is copied when it is saved; models, optimizers, samplers, and all else that has
    `state_dict` and `load_state_dict`, save their state and keep their identity.

    Args:
        model: usually the only one; others may be given by any name.
        optimizer: usually the only one; others may be given by any name.
        **kwargs: names and values.
    """

    _handlers: dict[str, StateHandler]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        named = {"model": model, "optimizer": optimizer, **kwargs}
        handlers = {name: handler_of(value) for name, value in named.items()}
        self.__dict__["_handlers"] = {
            name: handler for name, handler in handlers.items() if handler is not None
        }
        plain = {
            name: value
            for name, value in named.items()
            if name not in self._handlers and not (name in ("model", "optimizer") and value is None)
        }
        super().__init__(**plain)
        for name, handler in self._handlers.items():
            self.__dict__[name] = handler.value

    def __setattr__(self, name: str, value: Any) -> None:
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)
        super().__setattr__(name, value)

    def save(self) -> None:
        """Remember all states and values."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """Go back to what was saved."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """Take over what rank 0 has, and save it; collective.

        Where a rank is lost on the way, what was saved before stays saved, all of it: a later
        `restore()` must not mix the states of two commits.
        """
        with all_or_nothing([self, *self._handlers.values()]):
            for handler in self._handlers.values():
                handler.sync()
            super().sync()

    @property
    def always_syncs(self) -> bool:
        """Whether ranks that met again need `sync` also where all of them had the state."""
        return any(handler.always_syncs for handler in self._handlers.values())

    def detach(self) -> None:
        """Stop sharing memory with the other ranks, of which one is lost."""
        for handler in self._handlers.values():
            handler.detach()

    def gather(self) -> None:
        """Learn what other ranks have used and hold; collective, if there is anything to learn."""
        self._gather_samples()
        for handler in self._handlers.values():
            handler.gather()

    def _gather_samples(self) -> None:
        """Learn how many samples each rank has used; collective where there is a sampler."""
        samplers = [
            handler.value
            for handler in self._handlers.values()
            if isinstance(handler.value, ElasticSampler)
        ]
        if not samplers or size() == 1:
            return
        used = torch.tensor([[sampler.num_used for sampler in samplers]])
        counts = allgather(used, name="elastic.sampler.used").T.tolist()
        for sampler, own in zip(samplers, counts, strict=True):
            sampler.set_counts(own)

    def reset(self) -> None:
        """Adapt samplers and optimizers to the ranks there are."""
        for handler in self._handlers.values():
            if isinstance(handler.value, ElasticSampler):
                handler.value.reset()
            elif isinstance(handler.value, DistributedBase):
                handler.value.kadril_refresh()

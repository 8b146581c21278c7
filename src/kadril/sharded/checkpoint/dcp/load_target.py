"""The target of a load: separate memory, and the objects once all was read and found to match.

    state of trainers            for each value in the checkpoint, the range that this rank owns
    parameters of trainers       the range that this rank owns
    other tensors                a copy
    the rest                     replaced in the state_dict that was given

Objects of users may raise in `load_state_dict()`, so they are called before trainers are changed.
Modules that trainers train, and other objects with such parameters, come after the parameters: they
may look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.stateful import Stateful

from kadril.errors import CheckpointError
from kadril.sharded.checkpoint.dcp.optimizer_target import optimizer_target
from kadril.sharded.cut_tensor import CutTensor
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.sharded_optimizer import ShardedOptimizer, trainer_of
from kadril.sharded.state.given_state import read_state
from kadril.sharded.state.load_state import cut_state
from kadril.sharded.state.own_state import as_part

__all__ = ["Target", "state_of"]


def state_of(value: Any) -> Any:
    """Return what is to be saved of an object."""
    if isinstance(value, ShardedOptimizer):
        value = value.sharded
    return value.state_dict() if isinstance(value, Stateful) else value


class Target:
    """The target of one load.

    Args:
        state_dict: what was given to `load`.
        metadata: metadata of the checkpoint.

    Attributes:
        staged: the state_dict to load into.

    Raises:
        CheckpointError: the checkpoint has state of another model.
    """

    def __init__(self, state_dict: dict[str, Any], metadata: Metadata) -> None:
        self.state_dict = state_dict
        self.trainers = {
            key: trainer
            for key, value in state_dict.items()
            if (trainer := trainer_of(value)) is not None
        }
        self._pieces = dict(self.find_parameters())
        self._loaded: list[tuple[torch.Tensor, CutTensor]] = []
        self._with_parameters: set[str] = set()
        self._states: dict[str, Any] = {}
        self.staged: dict[str, Any] = {}
        for key, value in state_dict.items():
            if key in self.trainers:
                self.staged[key] = optimizer_target(
                    self.trainers[key].shards, self.trainers[key].optimizer, metadata, key
                )
            else:
                self._states[key] = state_of(value)
                self.staged[key] = self.stage(self._states[key])
                if self.has_parameters(self._states[key]):
                    self._with_parameters.add(key)

    def find_parameters(self) -> Iterator[tuple[tuple[int, torch.Size], tuple[Shards, int]]]:
        """Yield parameters of trainers by their memory: a module's state_dict has other tensors."""
        for trainer in self.trainers.values():
            shards = trainer.shards
            for place, tensor in enumerate(shards.parameters.tensors):
                if tensor.numel():
                    yield (tensor.data_ptr(), tensor.shape), (shards, place)

    def stage(self, value: Any) -> Any:
        """Return what to load into in place of a value."""
        if isinstance(value, Mapping):
            staged = {key: self.stage(each) for key, each in value.items()}
            # Other ranks load what they own.
            return {
                key: each for key, each in staged.items() if each is not None or is_none(value, key)
            }
        if isinstance(value, list):
            return [self.stage(each) if is_container(each) else copy_of(each) for each in value]
        if isinstance(value, torch.Tensor) and not isinstance(value, CutTensor):
            found = self.find_piece(value)
            return copy_of(value) if found is None else self.stage_piece(*found)
        return value

    def find_piece(self, value: torch.Tensor) -> tuple[Shards, int] | None:
        """Return the shards and the place of a tensor that is a parameter of a trainer."""
        return self._pieces.get((value.data_ptr(), value.shape)) if value.numel() else None

    def has_parameters(self, value: Any) -> bool:
        """Whether a value contains a parameter of a trainer, whichever rank owns it."""
        if isinstance(value, Mapping):
            return any(self.has_parameters(each) for each in value.values())
        if isinstance(value, list):
            return any(self.has_parameters(each) for each in value)
        if isinstance(value, torch.Tensor) and not isinstance(value, CutTensor):
            return self.find_piece(value) is not None
        return False

    def stage_piece(self, shards: Shards, place: int) -> CutTensor | None:
        """Return memory for what this rank owns of a parameter; None if it owns nothing."""
        own = shards.own_piece(place)
        if own is None:
            return None
        flat = shards.bucket_of(place).elements_of(own.piece)
        staged = as_part(flat, shards, own)
        self._loaded.append((flat, staged))
        return staged

    def check(self) -> None:
        """Raise `CheckpointError` if the state that was read does not match; changes nothing."""
        for key, trainer in self.trainers.items():
            stored = read_state(self.staged[key], trainer.shards, trainer.optimizer)
            cut_state(trainer.shards, trainer.optimizer, stored)

    def settle(self) -> None:
        """Wait until no rank computes with the parameters any more; collective."""
        for trainer in self.trainers.values():
            trainer.settle_to_load()

    def apply_to_objects(self) -> None:
        """Load users' objects, except those with parameters of trainers; local.

        Raises:
            CheckpointError: one of them has raised. Those before it are loaded.
        """
        for key, value in self.state_dict.items():
            if key not in self._with_parameters:
                self.load_object(key, value)

    def apply(self) -> None:
        """Overwrite parameters of trainers, and drop their gradients; collective."""
        with torch.no_grad():
            for flat, staged in self._loaded:
                flat.copy_(staged.local)
        for trainer in self.trainers.values():
            trainer.shards.publish()
        for trainer in self.trainers.values():
            trainer.zero_grad()

    def apply_rest(self) -> None:
        """Load state of trainers, and objects with their parameters; replace the rest; local.

        Raises:
            CheckpointError: an object has raised. Trainers are loaded.
        """
        for key in self.trainers:
            self.state_dict[key].load_state_dict(self.staged[key])
        for key, value in self.state_dict.items():
            if key in self._with_parameters:
                self.load_object(key, value)
        for key, value in self.state_dict.items():
            if key not in self.trainers and not isinstance(value, Stateful):
                self.state_dict[key] = rebuilt(self._states[key], self.staged[key])

    def load_object(self, key: str, value: Any) -> None:
        """Call `load_state_dict()` of an object of a user; do nothing for anything else."""
        if key in self.trainers or not isinstance(value, Stateful):
            return
        try:
            value.load_state_dict(rebuilt(self._states[key], self.staged[key]))
        except Exception as caught:  # objects of users may raise anything
            raise CheckpointError(
                f"load: load_state_dict() of {key!r} raised {caught!r}"
            ) from caught


def is_container(value: Any) -> bool:
    """Whether a value holds other values."""
    return isinstance(value, Mapping | list)


def is_none(values: Mapping[Any, Any], key: Any) -> bool:
    """Whether a value is None, and so to be replaced."""
    return values[key] is None


def copy_of(value: Any) -> Any:
    """Return a copy of a tensor; anything else as it is."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def rebuilt(value: Any, staged: Any) -> Any:
    """Return a value with what was read in it; tensors keep their memory."""
    if isinstance(value, Mapping):
        return {
            key: rebuilt(each, staged[key]) if key in staged else each
            for key, each in value.items()
        }
    if isinstance(value, list) and isinstance(staged, list):
        return [rebuilt(*pair) for pair in zip(value, staged, strict=True)]
    if isinstance(value, torch.Tensor) and not isinstance(value, CutTensor):
        if not isinstance(staged, CutTensor):  # those were copied already
            with torch.no_grad():
                value.copy_(staged)
        return value
    return staged

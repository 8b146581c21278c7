"""Where a checkpoint is loaded to: first memory of its own, and then, once it fits, what there is.

trainers      for each value in the checkpoint, the range that this rank owns
parameters    of these trainers: the range that this rank owns
tensors       a copy
the rest      is replaced

Objects of users may raise when they are given their state, so they are given it while trainers are
as they were. Modules that trainers train, and others with such parameters, come after these
parameters: they may look at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.stateful import Stateful

from kadril.errors import CheckpointError
from kadril.sharded.cut_tensor import CutTensor
from kadril.sharded.optimizer.optimizers import is_elementwise
from kadril.sharded.ownership.ownership_plan import Entry
from kadril.sharded.ownership.shards import Shards
from kadril.sharded.sharded_optimizer import ShardedOptimizer, ShardedState
from kadril.sharded.state.optimizer_state import load_state, part_of, read_state
from kadril.sharded.state.stored_state import SCALAR_KEYS, unknown_parameter
from kadril.sharded.trainer import POS_Trainer

__all__ = ["Target", "state_of"]


def trainer_of(value: Any) -> POS_Trainer | None:
    """The trainer that has the state of something, if there is one."""
    if isinstance(value, ShardedState):
        value = value.optimizer
    if isinstance(value, ShardedOptimizer):
        value = value.trainer
    return value if isinstance(value, POS_Trainer) else None


def state_of(value: Any) -> Any:
    """What is to be saved of something."""
    if isinstance(value, ShardedOptimizer):
        value = value.sharded
    return value.state_dict() if isinstance(value, Stateful) else value


class Target:
    """What a checkpoint is loaded to.

    Args:
        state_dict: that was given to `load`.
        metadata: of the checkpoint.

    Attributes:
        staged: what to load into.

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
        self._followers: set[str] = set()
        self._states: dict[str, Any] = {}
        self.staged: dict[str, Any] = {}
        for key, value in state_dict.items():
            if key in self.trainers:
                self.staged[key] = destinations(self.trainers[key], metadata, key)
            else:
                self._states[key] = state_of(value)
                self.staged[key] = self.stage(self._states[key])
                if self.has_parameters(self._states[key]):
                    self._followers.add(key)

    def find_parameters(self) -> Iterator[tuple[tuple[int, torch.Size], tuple[Shards, int]]]:
        """Parameters of the trainers, by their memory: a module's state_dict has other tensors."""
        for trainer in self.trainers.values():
            shards = trainer._shards
            for place, tensor in enumerate(shards.parameters.tensors):
                if tensor.numel():
                    yield (tensor.data_ptr(), tensor.shape), (shards, place)

    def stage(self, value: Any) -> Any:
        """What to load into in place of something."""
        if isinstance(value, Mapping):
            staged = {key: self.stage(each) for key, each in value.items()}
            # What other ranks own is theirs to load.
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
        """Whose parameter a tensor is, and which, where it is one of the trainers."""
        return self._pieces.get((value.data_ptr(), value.shape)) if value.numel() else None

    def has_parameters(self, value: Any) -> bool:
        """Whether a parameter of the trainers is in something, whoever owns it."""
        if isinstance(value, Mapping):
            return any(self.has_parameters(each) for each in value.values())
        if isinstance(value, list):
            return any(self.has_parameters(each) for each in value)
        if isinstance(value, torch.Tensor) and not isinstance(value, CutTensor):
            return self.find_piece(value) is not None
        return False

    def stage_piece(self, shards: Shards, place: int) -> CutTensor | None:
        """What this rank owns of a parameter."""
        own = shards.own_piece(place)
        if own is None:
            return None
        bucket = shards.bucket_of(place)
        entry = bucket.entry_of(own.piece)
        begin = bucket.begin + own.piece.offset
        flat = bucket.flat[begin : begin + own.piece.end - own.piece.begin]
        staged = CutTensor(flat, entry.shape, entry.dims, own.piece.begin, part_of(shards))
        self._loaded.append((flat, staged))
        return staged

    def check(self) -> None:
        """Raise `CheckpointError` where what was read does not fit; changes nothing."""
        for key, trainer in self.trainers.items():
            stored = read_state(self.staged[key], trainer._shards, trainer.optimizer)
            load_state(trainer._shards, trainer.optimizer, stored)

    def settle(self) -> None:
        """Let nobody compute with the parameters any more; collective."""
        for trainer in self.trainers.values():
            trainer._settle_to_load()

    def apply_to_objects(self) -> None:
        """Give users' objects their state, but for those with parameters of trainers; local.

        Raises:
            CheckpointError: one of them has raised. Those before it have their state.
        """
        for key, value in self.state_dict.items():
            if key not in self._followers:
                self.give(key, value)

    def apply(self) -> None:
        """Take parameters of trainers, and drop the gradients of those before; collective."""
        with torch.no_grad():
            for flat, staged in self._loaded:
                flat.copy_(staged.local)
        for trainer in self.trainers.values():
            trainer._shards.publish()
        for trainer in self.trainers.values():
            trainer.zero_grad()

    def apply_rest(self) -> None:
        """Take state of trainers, objects with parameters of these, and what is replaced; local.

        Raises:
            CheckpointError: an object has raised. Trainers are loaded.
        """
        for key in self.trainers:
            self.state_dict[key].load_state_dict(self.staged[key])
        for key, value in self.state_dict.items():
            if key in self._followers:
                self.give(key, value)
        for key, value in self.state_dict.items():
            if key not in self.trainers and not isinstance(value, Stateful):
                self.state_dict[key] = rebuilt(self._states[key], self.staged[key])

    def give(self, key: str, value: Any) -> None:
        """Give an object of a user its state; others are left as they are."""
        if key in self.trainers or not isinstance(value, Stateful):
            return
        try:
            value.load_state_dict(rebuilt(self._states[key], self.staged[key]))
        except Exception as caught:  # users raise what they like
            raise CheckpointError(
                f"load: load_state_dict() of {key!r} raised {caught!r}"
            ) from caught


def is_container(value: Any) -> bool:
    """Whether something holds others."""
    return isinstance(value, Mapping | list)


def is_none(values: Mapping[Any, Any], key: Any) -> bool:
    """Whether there is a None to be replaced."""
    return values[key] is None


def copy_of(value: Any) -> Any:
    """A tensor with memory of its own; others as they are."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def rebuilt(value: Any, staged: Any) -> Any:
    """What was given, with what was read in it; tensors keep their memory."""
    if isinstance(value, Mapping):
        return {
            key: rebuilt(each, staged[key]) if key in staged else each
            for key, each in value.items()
        }
    if isinstance(value, list) and isinstance(staged, list):
        return [rebuilt(*pair) for pair in zip(value, staged, strict=True)]
    if isinstance(value, torch.Tensor) and not isinstance(value, CutTensor):
        if not isinstance(staged, CutTensor):  # those are in their place already
            with torch.no_grad():
                value.copy_(staged)
        return value
    return staged


# ---- trainers -----------------------------------------------------------------------------------


def destinations(trainer: POS_Trainer, metadata: Metadata, prefix: str) -> dict[str, Any]:
    """A state_dict of this rank with room for everything that a checkpoint has for it.

    Raises:
        CheckpointError: it has no such state, or that of another model.
    """
    shards = trainer._shards
    places = {entry.name: place for place, entry in enumerate(shards.parameters.entries())}
    entries = shards.parameters.entries()
    is_free = not is_elementwise(type(trainer.optimizer))
    state: dict[str, dict[str, Any]] = {}
    for key, stored in metadata.state_dict_metadata.items():
        if not key.startswith(f"{prefix}.state."):
            continue
        name, _, value = key.removeprefix(f"{prefix}.state.").rpartition(".")
        if name not in places:
            raise unknown_parameter(name, list(places))
        entry = entries[places[name]]
        if isinstance(stored, TensorStorageMetadata):
            check_value(value, stored, entry, is_free=is_free)
        if shards.own_piece(places[name]) is not None:
            state.setdefault(name, {})[value] = destination(value, stored, shards, places[name])
    return {"state": state, "param_groups": group_destinations(metadata, prefix)}


def check_value(key: str, stored: TensorStorageMetadata, entry: Entry, *, is_free: bool) -> None:
    """Raise `CheckpointError` for a value that cannot be one of a parameter."""
    if is_free or not stored.size:
        return
    if tuple(stored.size) != entry.shape:
        raise CheckpointError(
            f"state {key!r} of parameter {entry.name!r} has shape {tuple(stored.size)}, but the"
            f" parameter {entry.shape}; is it of another model?",
            parameter=entry.name,
        )
    if stored.properties.dtype != entry.dtype:
        raise CheckpointError(
            f"state {key!r} of parameter {entry.name!r} is {stored.properties.dtype}, but the"
            f" parameter {entry.dtype}",
            parameter=entry.name,
        )


def destination(key: str, stored: Any, shards: Shards, place: int) -> Any:
    """Room for one value."""
    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype, size = stored.properties.dtype, tuple(stored.size)
    own = shards.own_piece(place)
    assert own is not None  # noqa: S101 - asked for what it owns
    bucket = shards.bucket_of(place)
    entry = bucket.entry_of(own.piece)
    if not size and (entry.shape or key in SCALAR_KEYS):
        return torch.empty((), dtype=dtype)
    if size == entry.shape:
        local = torch.zeros(own.piece.end - own.piece.begin, dtype=dtype, device=entry.device)
        return CutTensor(local, size, entry.dims, own.piece.begin, part_of(shards))
    local = torch.zeros(torch.Size(size).numel(), dtype=dtype, device=entry.device)
    return CutTensor(local, size, tuple(range(len(size))), 0, part_of(shards))


def group_destinations(metadata: Metadata, prefix: str) -> list[dict[str, Any]]:
    """Room for the options of parameter groups."""
    found: dict[int, dict[str, Any]] = {}
    for key, stored in metadata.state_dict_metadata.items():
        if not key.startswith(f"{prefix}.param_groups."):
            continue
        number, _, option = key.removeprefix(f"{prefix}.param_groups.").partition(".")
        if not number.isdecimal():
            raise CheckpointError(
                f"the checkpoint has {key!r}: options of each parameter rather than of groups. Save"
                " it without flatten_optimizer_state_dict"
            )
        is_tensor = isinstance(stored, TensorStorageMetadata)
        found.setdefault(int(number), {})[option] = (
            torch.empty(stored.size, dtype=stored.properties.dtype) if is_tensor else None  # type: ignore[union-attr]
        )
    if not all("params" in group for group in found.values()) or not found:
        begins = sorted({key.partition(".")[0] for key in metadata.state_dict_metadata})
        raise CheckpointError(
            f"the checkpoint has no state of an optimizer under {prefix!r}, where parameters are"
            f" called by name; it has {', '.join(map(repr, begins))}"
        )
    return [found[number] for number in sorted(found)]

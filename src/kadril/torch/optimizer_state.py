"""Broadcast the state of an optimizer: what a rank that starts late, or fresh, has to catch up.

No step is taken to make missing state appear, so no weight changes (weight decay would change it).
Instead the root says what its state looks like, the others build it, and then the tensors move:

    root                          others
    state, options                state, options of their own, or none yet
      |                             |
    form (tensors as numbers) --> form
      |                             | tensors of these shapes: their own where they fit, or empty
    tensors -------------------> tensors
                                    | install
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import torch

from kadril.shared_engine.basics import rank
from kadril.torch.agreement import check_same
from kadril.torch.objects import broadcast_object
from kadril.torch.parameters import broadcast_tensors

__all__ = ["broadcast_optimizer_state"]

OPERATION = "broadcast_optimizer_state"


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Give every rank the root's optimizer state and options; collective.

    Momenta, step counts and the like, and the options of every parameter group (learning rate,
    weight decay, ...) become those of the root. State that a rank does not have yet is made; state
    that the root does not have is dropped. Parameters and gradients are not touched. Any optimizer
    works whose state is made of tensors, numbers, lists and dicts, LBFGS included; a wrapped one
    works as a plain one.

    Args:
        optimizer: with the same parameter groups on every rank.
        root_rank: the rank whose state all others take.
        model: not needed; taken because programs pass it.

    Raises:
        MismatchError: on every rank, where parameter groups differ between ranks.
        ValueError: on every rank, where the root has state that cannot be pickled.
        TypeError: not a torch optimizer.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"broadcast_optimizer_state takes a torch optimizer, not a {type(optimizer).__name__}"
        )
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    check_same(OPERATION, describe_groups(optimizer))
    packer = Packer()
    form: Any = packer.pack(portable(optimizer, parameters)) if rank() == root_rank else None
    form = broadcast_object(form, root_rank, name=f"{OPERATION}.form", allow_pickle=True)
    if rank() == root_rank:
        broadcast_tensors(OPERATION, packer.named(), root_rank)
        return
    builder = Builder()
    built = builder.build_all(form, portable(optimizer, parameters), parameters)
    broadcast_tensors(OPERATION, builder.named(), root_rank)
    install(optimizer, parameters, built)


def describe_groups(optimizer: torch.optim.Optimizer) -> list[str]:
    """Describe what has to be equal on all ranks: parameters by group."""
    return [
        f"parameter {index} of group {number}: {p.dtype} {tuple(p.shape)}"
        for number, group in enumerate(optimizer.param_groups)
        for index, p in enumerate(group["params"])
    ]


def portable(
    optimizer: torch.optim.Optimizer, parameters: list[torch.nn.Parameter]
) -> dict[str, Any]:
    """State and options, with places of parameters instead of the parameters."""
    places = {id(p): place for place, p in enumerate(parameters)}
    state: dict[Any, Any] = dict(optimizer.state)
    return {
        "state": {
            places[id(key)] if isinstance(key, torch.Tensor) else ("global", key): value
            for key, value in state.items()
            if not isinstance(key, torch.Tensor) or id(key) in places
        },
        "groups": [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ],
    }


def install(
    optimizer: torch.optim.Optimizer,
    parameters: list[torch.nn.Parameter],
    built: dict[str, Any],
) -> None:
    """Put what came into the optimizer, in the objects that are there: others may hold them."""
    state: dict[Any, Any] = {
        parameters[key] if isinstance(key, int) else key[1]: value
        for key, value in built["state"].items()
    }
    if not isinstance(optimizer.state, defaultdict):
        optimizer.state = defaultdict(dict)
    optimizer.state.clear()
    optimizer.state.update(state)
    for group, options in zip(optimizer.param_groups, built["groups"], strict=True):
        for key in set(group) - set(options) - {"params"}:
            del group[key]
        group.update(options)


@dataclasses.dataclass(frozen=True)
class TensorForm:
    """A tensor that travels by itself: its number, and how to make room for it."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_cpu: bool


class Packer:
    """Takes the tensors out of nested lists and dicts, and leaves their forms there."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def pack(self, value: Any) -> Any:
        """The same nest with forms instead of tensors."""
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            # Several entries may hold one tensor; each gets its own, as in a saved state_dict.
            self.tensors.append(value)
            return TensorForm(
                len(self.tensors) - 1,
                tuple(value.shape),
                value.dtype,
                value.device.type == "cpu",
            )
        if type(value) is dict:
            return {key: self.pack(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.pack(each) for each in value)
        return value

    def named(self) -> dict[str, torch.Tensor]:
        """The tensors under the names they travel by."""
        return {str(number): tensor for number, tensor in enumerate(self.tensors)}


class Builder:
    """Makes room for tensors, and uses what is there already where it fits."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.taken: set[int] = set()

    def build_all(
        self, form: dict[str, Any], present: dict[str, Any], parameters: list[torch.nn.Parameter]
    ) -> dict[str, Any]:
        """State and options of a form, with tensors to receive into.

        Args:
            form: what the root has.
            present: what this rank has.
            parameters: by place; their state lies on their device.
        """
        home = parameters[0].device
        state = {
            key: self.build(
                each,
                present["state"].get(key),
                parameters[key].device if isinstance(key, int) else home,
            )
            for key, each in form["state"].items()
        }
        return {"state": state, "groups": self.build(form["groups"], present["groups"], home)}

    def build(self, form: Any, present: Any, device: torch.device) -> Any:
        """The nest of one form. `present` is what this rank has in its place, if anything."""
        if isinstance(form, TensorForm):
            self.tensors[form.number] = self.room(form, present, device)
            return self.tensors[form.number]
        if type(form) is dict:
            others = present if isinstance(present, dict) else {}
            return {key: self.build(each, others.get(key), device) for key, each in form.items()}
        if type(form) in (list, tuple):
            row = present if isinstance(present, list | tuple) else ()
            return type(form)(
                self.build(each, row[place] if place < len(row) else None, device)
                for place, each in enumerate(form)
            )
        return form

    def room(self, form: TensorForm, present: Any, device: torch.device) -> torch.Tensor:
        """A tensor to receive into: the one that is there where it fits, since others may hold it.

        One that is there twice is received into once.
        """
        if (
            isinstance(present, torch.Tensor)
            and present.layout == torch.strided
            and tuple(present.shape) == form.shape
            and present.dtype == form.dtype
            and id(present) not in self.taken
        ):
            self.taken.add(id(present))
            return present
        return torch.empty(form.shape, dtype=form.dtype, device="cpu" if form.on_cpu else device)

    def named(self) -> dict[str, torch.Tensor]:
        """The tensors under the names they travel by."""
        return {str(number): self.tensors[number] for number in sorted(self.tensors)}

"""Prepares a model for tracing: state without memory, modules that report their calls.

Everything is restored afterwards, also where tracing fails.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from kadril.nn.distribution.rules.call import DistributeError
from kadril.nn.distribution.rules.layers.parametrized import computed_weights
from kadril.nn.distribution.tracing.recorder import Recorder
from kadril.nn.distribution.tracing.tracked_tensor import as_meta

__all__ = [
    "calls_recorded",
    "nothing_drawn",
    "number_places",
    "numbers_of",
    "refuse_counting",
    "state_without_memory",
]

HOOKS = ("_forward_pre_hooks", "_forward_hooks")

# By identity of a tensor: its path in the model, and what stands for it.
Attributes = dict[int, tuple[str, torch.Tensor]]


@contextmanager
def state_without_memory(model: nn.Module) -> Iterator[Attributes]:
    """Put tensors on the meta device in the place of parameters and buffers.

    Raises:
        DistributeError: `forward` has put others in their place, or keeps tensors elsewhere: they
            would not be what they are in the ordinary model.
    """
    metas: dict[int, torch.Tensor] = {}
    found: Attributes = {}
    saved: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = []
    for path, module in model.named_modules():
        for own in (module._parameters, module._buffers):
            saved.append((path, own, dict(own), replaced(path, own, metas, found)))
    plain = [(path, each, dict(each.__dict__)) for path, each in model.named_modules()]
    try:
        yield found
        check_state(saved)
        check_plain(plain)
    finally:
        for _, own, before, _ in saved:
            own.clear()
            own.update(before)
        for _, module, before in plain:
            module.__dict__.clear()
            module.__dict__.update(before)


def replaced(
    path: str, own: dict[str, Any], metas: dict[int, torch.Tensor], found: Attributes
) -> dict[str, Any]:
    """Replace parameters or buffers by tensors on the meta device; return what is there now."""
    for name, tensor in own.items():
        if tensor is None:
            continue
        if id(tensor) not in metas:
            meta = as_meta(tensor)
            if isinstance(tensor, nn.Parameter):
                meta = nn.Parameter(meta, requires_grad=tensor.requires_grad)
            metas[id(tensor)] = meta
            full = f"{path}.{name}" if path else name
            found[id(tensor)] = found[id(meta)] = (full, meta)
        own[name] = metas[id(tensor)]
    return dict(own)


def check_state(saved: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]]) -> None:
    """Refuse a model whose `forward` has put other tensors in the place of its state."""
    for path, own, _, given in saved:
        for name in {*own, *given}:
            if own.get(name) is not given.get(name):
                raise kept_by_forward(path, name, "change it in place instead")


def check_plain(plain: list[tuple[str, nn.Module, dict[str, Any]]]) -> None:
    """Refuse a model whose `forward` keeps tensors in attributes of modules."""
    for path, module, before in plain:
        for name, value in module.__dict__.items():
            # Hooks that compute a weight assign it in each pass, and the twin does that too.
            is_new = before.get(name) is not value and name not in computed_weights(module)
            if is_new and isinstance(value, torch.Tensor):
                raise kept_by_forward(path, name, "return it, or make it a buffer")


def number_places(model: nn.Module) -> list[tuple[str, dict[str, Any], str]]:
    """Return where the model keeps plain values that `forward` may read: path, place and name.

    Those of torch's own modules are no part of it: they belong to the layers.
    """
    return [
        (f"{path}.{name}" if path else name, module.__dict__, name)
        for path, module in model.named_modules()
        if not type(module).__module__.startswith(("torch.", "kadril."))
        for name, value in module.__dict__.items()
        if isinstance(value, (bool, int, float, str)) and name != "training"
    ]


def numbers_of(model: nn.Module) -> dict[str, Any]:
    """Return the plain values that a model keeps, by path."""
    return {path: place[name] for path, place, name in number_places(model)}


def refuse_counting(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse a model whose `forward` changes a value each time.

    Raises:
        DistributeError: after the second time, values are others than after the first.
    """
    for path, value in second.items():
        if first.get(path) != value:
            why = "`forward` counts in it, which the twin would not do; make it an argument"
            raise DistributeError(f"it cannot be traced: {path}: {why}", [(path, "attribute", why)])


def kept_by_forward(path: str, name: str, hint: str) -> DistributeError:
    """Return the error for a `forward` that assigns to attributes."""
    full = f"{path}.{name}" if path else name
    why = f"`forward` assigns to it, which the twin would not do; {hint}"
    return DistributeError(f"it cannot be traced: {full}: {why}", [(full, "attribute", why)])


@contextmanager
def calls_recorded(
    model: nn.Module, recorder: Recorder, is_leaf: Callable[[nn.Module], bool]
) -> Iterator[None]:
    """Let modules that are not traced into tell the recorder when they are called.

    Modules of torch that are traced into tell it too, for errors.
    """
    changed: list[tuple[nn.Module, dict[str, Any]]] = []
    try:
        for path, module in model.named_modules():
            if "forward" in module.__dict__:
                continue  # the user's own
            changed.append((module, dict(module.__dict__)))
            if is_leaf(module):
                # A rule knows what to make of hooks, and of weights that they compute.
                hidden: dict[str, Any] = {name: OrderedDict() for name in HOOKS}
                plain = {name: as_meta(each) for name, each in module.__dict__.items()}
                call = partial(recorder.call_module, path, module, module.forward)
                module.__dict__.update({**plain, **hidden, "forward": call})
            elif type(module).__module__.startswith("torch.nn") and not is_container(module):
                owner = (path, type(module).__name__)
                module.__dict__["forward"] = partial(run_as, recorder, owner, module.forward)
            else:
                changed.pop()
        yield
    finally:
        for module, before in changed:
            module.__dict__.clear()
            module.__dict__.update(before)


def is_container(module: nn.Module) -> bool:
    """Whether a module only holds others."""
    return isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict))


def run_as(
    recorder: Recorder,
    owner: tuple[str, str],
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a module that is traced into, and note that it is the owner of the calls."""
    recorder.owners.append(owner)
    try:
        return forward(*args, **kwargs)
    finally:
        recorder.owners.pop()


@contextmanager
def nothing_drawn() -> Iterator[None]:
    """Refuse a model that draws numbers besides torch: they would be the same in every call.

    Raises:
        DistributeError: `random` or `numpy.random` was asked.
    """
    before, numpy_before = random.getstate(), np.random.get_state()
    yield
    numpy_after = np.random.get_state()
    is_same = all(np.array_equal(a, b) for a, b in zip(numpy_before, numpy_after, strict=True))
    if random.getstate() != before or not is_same:
        random.setstate(before)
        np.random.set_state(numpy_before)
        why = "`forward` draws numbers from `random` or `numpy.random`, each worker its own"
        raise DistributeError(
            f"it cannot be traced: {why}; draw them outside, and pass them",
            [("forward", "random", why)],
        )

"""Optimizers that do not load torch's compiler are otherwise torch's own."""

from __future__ import annotations

import pickle

import pytest
import torch

from kadril.sharded.optimizer.eager_class import eager_class, torch_class
from kadril.sharded.optimizer.optimizer_choice import without_compiler
from kadril.sharded.optimizer.supported_optimizers import ELEMENTWISE, MATRIX, is_of_torch

KINDS = [getattr(torch.optim, name) for name in sorted(ELEMENTWISE | MATRIX)]


def stepped(kind: type[torch.optim.Optimizer]) -> tuple[torch.optim.Optimizer, torch.Tensor]:
    parameter = torch.nn.Parameter(torch.arange(1.0, 7.0).reshape(2, 3))
    optimizer = kind([parameter], lr=0.125)  # type: ignore[call-arg]
    for number in range(3):
        parameter.grad = torch.full_like(parameter, 2.0 - number)
        optimizer.step()
    return optimizer, parameter.detach()


@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_states_are_those_of_the_class(kind: type[torch.optim.Optimizer]) -> None:
    eager = eager_class(kind)
    optimizer, found = stepped(eager)
    plain, expected = stepped(kind)
    assert torch.equal(found, expected)
    assert repr(optimizer) == repr(plain)
    assert repr(optimizer.state_dict()) == repr(plain.state_dict())
    optimizer.load_state_dict(plain.state_dict())
    assert repr(optimizer.state_dict()) == repr(plain.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_pickled_as_the_class(kind: type[torch.optim.Optimizer]) -> None:
    optimizer, _ = stepped(eager_class(kind))
    restored = pickle.loads(pickle.dumps(optimizer))  # noqa: S301 - just made
    assert type(restored) is kind
    assert repr(restored.state_dict()) == repr(optimizer.state_dict())


def test_hooks_of_a_step_are_called() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = eager_class(torch.optim.SGD)([parameter], lr=1.0)  # type: ignore[call-arg]
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    parameter.grad = torch.ones(1)
    optimizer.step()
    assert calls == ["before", "after"]


def test_only_classes_of_torch_have_one() -> None:
    class Adam(torch.optim.Adam):
        pass

    assert without_compiler(Adam, []) is Adam
    assert without_compiler(torch.optim.Adam, [{"differentiable": True}]) is torch.optim.Adam
    eager = without_compiler(torch.optim.Adam, [{}])
    assert eager is not torch.optim.Adam
    assert torch_class(eager) is torch.optim.Adam
    assert is_of_torch(eager)
    assert not is_of_torch(Adam)

"""State in one process: kinds of values, numbers of parameters, and lists that grow."""

from __future__ import annotations

import pytest
import torch

from kadril.errors import CheckpointError
from kadril.sharded.optimizer.optimizer_choice import OptimizerChoice
from kadril.sharded.ownership.group_options import copy_options, options_of
from kadril.sharded.ownership.parameter_groups import read_groups, with_prefix
from kadril.sharded.ownership.parameter_list import ParameterList
from kadril.sharded.state.plain_state import name_parameters
from kadril.sharded.state.value_kinds import check_storable, dtype_from, kind_of


@pytest.mark.parametrize(
    ("key", "shape", "parameter_shape", "kind"),
    [
        ("exp_avg", (2, 3), (2, 3), "cut"),
        ("step", (), (2, 3), "scalar"),
        ("row_var", (2, 1), (2, 3), "whole"),
        # Of a parameter that is one number, only known names are numbers of the whole parameter.
        ("step", (), (), "scalar"),
        ("exp_avg", (), (), "cut"),
        ("exp_avg", (0,), (0,), "cut"),
    ],
)
def test_kinds_of_values(
    key: str, shape: tuple[int, ...], parameter_shape: tuple[int, ...], kind: str
) -> None:
    assert kind_of(key, shape, parameter_shape) == kind


def test_what_json_cannot_hold_is_refused_by_name() -> None:
    check_storable([1, "a", None], "note", "w")
    with pytest.raises(CheckpointError, match="'note' in the state of parameter 'w' cannot") as e:
        check_storable({1, 2}, "state.note", "w")
    assert e.value.parameter == "w"


def test_dtypes_are_read_with_and_without_the_name_of_torch() -> None:
    assert dtype_from("torch.bfloat16") is dtype_from("bfloat16") is torch.bfloat16


def listed(**shapes: tuple[int, ...]) -> ParameterList:
    parameters = ParameterList()
    named = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in shapes.items()]
    for group in read_groups(named):
        parameters.add_group(group)
    return parameters


def test_numbers_of_a_plain_optimizer_become_names() -> None:
    parameters = listed(a=(2,), b=(3,))
    optimizer = torch.optim.SGD(parameters.tensors, lr=0.5, momentum=0.5)
    parameters.tensors[1].grad = torch.ones(3)
    optimizer.step()
    named = name_parameters(optimizer.state_dict(), parameters.entries())
    assert named["param_groups"][0]["params"] == ["a", "b"]
    assert {*named["state"]} == {"b"}
    assert torch.equal(named["state"]["b"]["momentum_buffer"], torch.ones(3))
    with pytest.raises(CheckpointError, match="has 2 parameters, the trainer has 1"):
        name_parameters(optimizer.state_dict(), parameters.entries()[:1])


def test_a_copied_list_grows_by_itself() -> None:
    parameters = listed(a=(2,), b=(3,))
    copied = parameters.copy()
    (group,) = with_prefix(read_groups({"c": torch.nn.Parameter(torch.zeros(4))}), "more.")
    copied.add_group(group)
    assert (parameters.names, copied.names) == (["a", "b"], ["a", "b", "more.c"])
    assert [len(each) for each in copied.members()] == [2, 1]
    assert copied.place_of(parameters.tensors[1]) == 1
    assert parameters.place_of(copied.tensors[2]) is None
    with pytest.raises(ValueError, match="'x' is in group 0 already, as 'a'"):
        copied.add_group(read_groups([("x", parameters.tensors[0])])[0])


def test_a_choice_is_fused_by_name_only() -> None:
    parameters = listed(a=(2,))
    by_name = OptimizerChoice("adam", {"learning_rate": 0.5})
    by_class = OptimizerChoice(torch.optim.Adam, {"lr": 0.5})
    for choice in (by_name, by_class):
        choice.choose_kernels(parameters)
        choice.check(parameters)
        assert choice.kind is torch.optim.Adam
        assert choice.made is not torch.optim.Adam  # the one that does not load the compiler
    assert by_name.options == {"lr": 0.5, "fused": True}
    assert by_class.options == {"lr": 0.5}


def test_options_are_copied_without_parameters() -> None:
    source = {"params": [1], "param_names": ["a"], "lr": 0.5, "betas": (0.1, 0.2)}
    target = {"params": [2], "lr": 1.0}
    copy_options([source], [target])
    assert target == {"params": [2], "lr": 0.5, "betas": (0.1, 0.2)}
    assert options_of(source) == {"lr": 0.5, "betas": (0.1, 0.2)}

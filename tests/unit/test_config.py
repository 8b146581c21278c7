"""Options: each has one variable, a default, a type; nothing is ignored silently."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.config import IDENTITY_VARIABLES, OTHER_VARIABLES, TRANSPORTS, Config, variable
from kadril.errors import ConfigError

FIELDS = {field.name: field for field in dataclasses.fields(Config)}


def test_defaults_without_variables() -> None:
    assert Config.from_environment({}) == Config()


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("transport", "c10d:nccl", "c10d:nccl"),
        ("patience", "12.5", 12.5),
        ("stall_warning", "3", 3.0),
        ("connect_timeout", "1e2", 100.0),
        ("shared_capacity", "1048576", 1048576),
        ("shared_backing", "named", "named"),
        ("spin", "200", "200"),
        ("host_label", "left", "left"),
        ("log_level", "DEBUG", "DEBUG"),
        ("fusion_threshold", "1024", 1024),
        ("cache_capacity", "0", 0),
        ("timeline", "trace.json", "trace.json"),
        ("timeline_mark_cycles", "1", True),
        ("stall_check", "0", False),
        ("allow_pickle", "1", True),
        ("fault", "allreduce:kill", "allreduce:kill"),
    ],
)
def test_each_variable_is_read_as_the_type_of_its_option(
    name: str, text: str, value: object
) -> None:
    config = Config.from_environment({variable(name): text})
    assert getattr(config, name) == value
    assert type(getattr(config, name)) is type(FIELDS[name].default)
    assert dataclasses.replace(config, **{name: FIELDS[name].default}) == Config()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "true", "YES", "on")),
        *((text, False) for text in ("0", "False", "no", " off ")),
    ],
)
def test_switches(text: str, value: bool) -> None:
    assert Config.from_environment({"KADRIL_STALL_CHECK": text}).stall_check is value


def test_every_option_has_a_variable_and_a_word_in_the_docstring() -> None:
    text = inspect.getdoc(Config) or ""
    for name in FIELDS:
        assert variable(name) == f"KADRIL_{name.upper()}"
        assert f"{name}:" in text
    assert not IDENTITY_VARIABLES & {variable(name) for name in FIELDS}


def test_every_transport_can_be_asked_for_and_has_a_word_in_the_docstring() -> None:
    text = inspect.getdoc(Config) or ""
    for name in TRANSPORTS:
        assert Config.from_environment({"KADRIL_TRANSPORT": name}).transport == name
        assert f'"{name}"' in text
    with pytest.raises(ConfigError, match=", ".join(TRANSPORTS)):
        Config(transport="pigeon")


def test_an_argument_wins_over_its_variable() -> None:
    environment = {"KADRIL_PATIENCE": "5", "KADRIL_SPIN": "7"}
    config = Config.from_environment(environment, patience=9.0, spin=None)
    assert (config.patience, config.spin) == (9.0, "7")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("patience", "soon"),
        ("patience", "0"),
        ("patience", "-1"),
        ("stall_warning", "0"),
        ("connect_timeout", ""),
        ("shared_capacity", "1.5"),
        ("shared_capacity", "many"),
        ("shared_backing", "tape"),
        ("transport", "pigeon"),
        ("transport", ""),
        ("fusion_threshold", "-1"),
        ("fusion_threshold", "64MB"),
        ("cache_capacity", "-1"),
        ("stall_check", ""),
        ("stall_check", "perhaps"),
        ("timeline_mark_cycles", "2"),
        ("spin", "-1"),
        ("spin", "fast"),
    ],
)
def test_values_that_make_no_sense(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_environment({variable(name): text})
    assert variable(name) in str(caught.value), "the message names the variable"
    assert isinstance(caught.value, ValueError)


def test_an_option_that_does_not_exist() -> None:
    with pytest.raises(TypeError, match="unknown options: patiance"):
        Config.from_environment({}, patiance=3)


def test_an_unknown_variable_is_warned_of_with_the_nearest_name() -> None:
    with pytest.warns(UserWarning, match=r"KADRIL_TRANSPROT .* did you mean KADRIL_TRANSPORT\?"):
        Config.from_environment({"KADRIL_TRANSPROT": "shm"})
    with pytest.warns(UserWarning, match="KADRIL_QQQQQQQQ is not an option of kadril$"):
        Config.from_environment({"KADRIL_QQQQQQQQ": "1"})


def test_variables_of_the_launcher_and_of_others_are_no_options() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.from_environment(dict.fromkeys(IDENTITY_VARIABLES, "1")) == Config()
        assert Config.from_environment(dict.fromkeys(OTHER_VARIABLES, "1")) == Config()
        assert Config.from_environment({"PATIENCE": "1", "KADRILLE": "dance"}) == Config()
        Config.from_environment({"HOROVOD_TIMELINE": "x"})


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().patience = 3.0  # type: ignore[misc]


@given(environment=st.dictionaries(st.sampled_from(sorted(FIELDS)), st.text(max_size=20)))
def test_no_text_raises_anything_else(environment: dict[str, str]) -> None:
    variables = {variable(name): text for name, text in environment.items()}
    with contextlib.suppress(ConfigError):
        assert isinstance(Config.from_environment(variables), Config)

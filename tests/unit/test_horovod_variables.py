"""HOROVOD_* variables: each is honoured, or said to have no effect; none is lost in silence."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.config import Config, variable
from kadril.errors import ConfigError
from kadril.horovod_variables import HONOURED, IDENTITY, IDLE, NEVER, remarks

OPTIONS = {field.name for field in dataclasses.fields(Config)}

READ = [
    ("FUSION_THRESHOLD", "1048576", "fusion_threshold", 1048576),
    ("FUSION_THRESHOLD", "0", "fusion_threshold", 0),
    ("CACHE_CAPACITY", "7", "cache_capacity", 7),
    ("TIMELINE", "/tmp/t.json", "timeline", "/tmp/t.json"),  # noqa: S108 - nothing is written
    ("TIMELINE", "DYNAMIC", "timeline", "DYNAMIC"),
    ("TIMELINE_MARK_CYCLES", "1", "timeline_mark_cycles", True),
    ("TIMELINE_MARK_CYCLES", "", "timeline_mark_cycles", False),
    ("STALL_CHECK_DISABLE", "1", "stall_check", False),
    ("STALL_CHECK_DISABLE", "0", "stall_check", True),
    ("STALL_CHECK_TIME_SECONDS", "5", "stall_warning", 5.0),
    ("STALL_SHUTDOWN_TIME_SECONDS", "90", "patience", 90.0),
    ("STALL_SHUTDOWN_TIME_SECONDS", "0", "patience", float(NEVER)),
    ("START_TIMEOUT", "33", "connect_timeout", 33.0),
    ("GLOO_TIMEOUT_SECONDS", "44", "connect_timeout", 44.0),
    ("LOG_LEVEL", "trace", "log_level", "DEBUG"),
    ("LOG_LEVEL", "WARNING", "log_level", "WARNING"),
    ("LOG_LEVEL", "fatal", "log_level", "CRITICAL"),
]


@pytest.mark.parametrize(("name", "text", "option", "value"), READ)
def test_a_variable_with_a_meaning_sets_its_option_and_no_other(
    name: str, text: str, option: str, value: object
) -> None:
    config = Config.from_environment({f"HOROVOD_{name}": text})
    assert getattr(config, option) == value
    assert type(getattr(config, option)) is type(value)
    assert dataclasses.replace(config, **{option: getattr(Config(), option)}) == Config()


def test_every_variable_of_the_table_is_tested_and_every_option_exists() -> None:
    assert {f"HOROVOD_{name}" for name, *_ in READ} == set(HONOURED)
    assert {each.option for each in HONOURED.values()} <= OPTIONS
    assert not HONOURED.keys() & IDLE.keys()


@pytest.mark.parametrize(("name", "text", "option", "value"), READ)
def test_the_variable_of_kadril_and_an_argument_win(
    name: str, text: str, option: str, value: object
) -> None:
    default = getattr(Config(), option)
    environment = {f"HOROVOD_{name}": text, variable(option): str(default)}
    assert Config.from_environment(environment) == Config()
    assert (
        getattr(Config.from_environment({f"HOROVOD_{name}": text}, **{option: default}), option)
        == default
    )


def test_of_two_start_timeouts_the_longer_is_taken() -> None:
    for first, second in (("9", "200"), ("200", "9"), ("200", "10.5")):
        both = {"HOROVOD_START_TIMEOUT": first, "HOROVOD_GLOO_TIMEOUT_SECONDS": second}
        assert Config.from_environment(both).connect_timeout == max(float(first), float(second))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("FUSION_THRESHOLD", "lots", "HOROVOD_FUSION_THRESHOLD must be of type int, got 'lots'"),
        ("FUSION_THRESHOLD", "-1", r"must be 0 or more, got -1 \(from HOROVOD_FUSION_THRESHOLD\)"),
        ("STALL_CHECK_TIME_SECONDS", "0", r"\(from HOROVOD_STALL_CHECK_TIME_SECONDS\)"),
        ("START_TIMEOUT", "soon", "HOROVOD_START_TIMEOUT must be of type float"),
        ("LOG_LEVEL", "loud", "HOROVOD_LOG_LEVEL must be one of TRACE"),
        ("TIMELINE_MARK_CYCLES", "maybe", "HOROVOD_TIMELINE_MARK_CYCLES must be of type bool"),
    ],
)
def test_a_value_without_sense_is_an_error_that_names_the_variable(
    name: str, text: str, message: str
) -> None:
    """Horovod reads "lots" as 0 and goes on."""
    with pytest.raises(ConfigError, match=message):
        Config.from_environment({f"HOROVOD_{name}": text})


@pytest.mark.parametrize("name", IDLE)
def test_a_variable_without_meaning_is_warned_of_with_the_reason(name: str) -> None:
    with pytest.warns(UserWarning, match=f"^{name} has no effect: ") as caught:
        assert Config.from_environment({name: "1"}) == Config()
    assert [str(each.message) for each in caught] == [f"{name} has no effect: {IDLE[name]}"]


def test_the_warning_points_at_the_caller() -> None:
    with pytest.warns(UserWarning, match="HOROVOD_CYCLE_TIME") as caught:
        Config.from_environment({"HOROVOD_CYCLE_TIME": "5"})
    assert caught[0].filename == __file__


def test_a_switch_that_is_off_asks_for_what_is_so() -> None:
    assert remarks({"HOROVOD_AUTOTUNE": "0", "HOROVOD_HIERARCHICAL_ALLREDUCE": "0"}) == {}
    assert list(remarks({"HOROVOD_CYCLE_TIME": "0"})) == ["HOROVOD_CYCLE_TIME"]


def test_variables_of_the_build_are_told_in_one_line() -> None:
    """Docker images of Horovod leave a dozen of them behind."""
    names = ["HOROVOD_CUDA_HOME", "HOROVOD_GPU_OPERATIONS", "HOROVOD_WITHOUT_MPI"]
    (line,) = remarks(dict.fromkeys([*names, "HOROVOD_WITH_PYTORCH"], "1")).values()
    assert line.startswith(", ".join([*names, "HOROVOD_WITH_PYTORCH"]))


def test_an_unknown_variable_is_told_with_the_nearest_name() -> None:
    said = remarks({"HOROVOD_FUSION_TRESHOLD": "1", "HOROVOD_QQQQQQ": "1"})
    assert said["HOROVOD_FUSION_TRESHOLD"].endswith("did you mean HOROVOD_FUSION_THRESHOLD?")
    assert said["HOROVOD_QQQQQQ"].endswith("reads")


def test_who_a_rank_is_and_what_is_read_elsewhere_is_not_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Config.from_environment(dict.fromkeys(IDENTITY, "1")) == Config()
        Config.from_environment({"HOROVOD_HOSTNAME": "a", "HOROVOD_DYNAMIC_PROCESS_SETS": "1"})


def test_what_the_launcher_has_told_ranks_do_not_tell_again() -> None:
    environment = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_AUTOTUNE": "1", "KADRIL_PATIENSE": "1"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = {"KADRIL_TOLD": "HOROVOD_AUTOTUNE,HOROVOD_CYCLE_TIME,KADRIL_PATIENSE"}
        Config.from_environment({**environment, **told})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Config.from_environment({**environment, "KADRIL_TOLD": "HOROVOD_CYCLE_TIME"})
    assert sorted(str(each.message).split()[0] for each in caught) == [
        "HOROVOD_AUTOTUNE",
        "KADRIL_PATIENSE",
    ]


@given(environment=st.dictionaries(st.sampled_from(sorted(HONOURED)), st.text(max_size=12)))
def test_no_text_raises_anything_else(environment: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        assert isinstance(Config.from_environment(environment), Config)

"""`kadril env`."""

from __future__ import annotations

import dataclasses

import pytest

from kadril.cli import main
from kadril.config import OTHER_VARIABLES, Config, variable
from kadril.launch.verbs.option_table import describe, meanings, page


def test_every_option_is_listed_with_its_meaning() -> None:
    names = [field.name for field in dataclasses.fields(Config)]
    assert list(meanings()) == names
    assert all(meanings().values())
    table = describe({})
    for name in names:
        assert f"{variable(name)}=" in table


def test_variables_that_are_no_options_are_listed_too() -> None:
    table = describe({"KADRIL_SSH": "rsh -4"}).splitlines()
    assert "KADRIL_SSH=rsh -4    (default ssh)" in table
    assert "KADRIL_TENSORFLOW_OPS=auto    (default)" in table
    for name, other in OTHER_VARIABLES.items():
        assert f"| `{name}` | `{other.default}` | {other.meaning} |\n" in page()


def test_values_and_defaults() -> None:
    table = describe({"KADRIL_PATIENCE": "7", "KADRIL_RANK": "3", "PATH": "/bin"}).splitlines()
    assert "KADRIL_PATIENCE=7    (default 300.0)" in table
    assert "KADRIL_TRANSPORT=auto    (default)" in table
    assert table[-2:] == ["set by a launcher for this process:", "KADRIL_RANK=3"]


def test_values_of_horovods_variables() -> None:
    variables = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "90", "HOROVOD_START_TIMEOUT": "7"}
    table = describe({**variables, "KADRIL_CONNECT_TIMEOUT": "9"}).splitlines()
    origin = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    assert f"KADRIL_PATIENCE=90    (from {origin}, default 300.0)" in table
    assert "KADRIL_CONNECT_TIMEOUT=9    (default 120.0)" in table


def test_bad_values_and_misspelt_names_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KADRIL_PATIENSE", "1")
    assert main(["env"]) == 0
    assert "did you mean KADRIL_PATIENCE?" in capsys.readouterr().err
    monkeypatch.setenv("HOROVOD_LOG_LEVEL", "loud")
    assert main(["env"]) == 1
    assert "HOROVOD_LOG_LEVEL must be one of" in capsys.readouterr().err
    monkeypatch.delenv("HOROVOD_LOG_LEVEL")
    monkeypatch.setenv("KADRIL_PATIENCE", "long")
    assert main(["env"]) == 1
    assert "KADRIL_PATIENCE must be of type float" in capsys.readouterr().err

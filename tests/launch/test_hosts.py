"""`--hosts` and `--hostfile`: how they are read, and this host by any of its names."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from launch_playground import Playground

from kadril.errors import ConfigError
from kadril.launch.mapping.host_lookup import look_up
from kadril.launch.mapping.hosts import (
    Host,
    check_slots,
    is_this_host,
    parse_hosts,
    read_hostfile,
)


def test_reading_a_list() -> None:
    assert parse_hosts("a:2, b.c-d:4,e") == [Host("a", 2), Host("b.c-d", 4), Host("e", 1)]
    assert parse_hosts("[::1]:3") == [Host("::1", 3)]


@pytest.mark.parametrize("text", ["", "a:", "a:0", "a:-1", "a:two", ":2", "a:2,,b:2", "a b:2"])
def test_lists_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME:SLOTS"):
        parse_hosts(text)


def test_reading_a_file(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all\na slots=2\n\nb.c  slots = 4  # fast\ne\n")
    assert read_hostfile(str(file)) == [Host("a", 2), Host("b.c", 4), Host("e", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a slots=2\nb cores=2\n", "line 2: expected `NAME slots=N`, got 'b cores=2'"),
        ("# none\n", "names no host"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hosts"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_hostfile(str(file))
    with pytest.raises(ConfigError, match="No such file"):
        read_hostfile(str(tmp_path / "other"))


def test_names_of_this_host() -> None:
    for name in ("localhost", "127.0.0.1", "127.5.5.5", socket.gethostname()):
        assert is_this_host(name), name


@pytest.mark.parametrize("name", ["192.0.2.1", "no-such-host.invalid", "8.8.8.8.8", "x" * 300])
def test_other_hosts(name: str) -> None:
    assert not is_this_host(name)


@pytest.mark.parametrize("code", ["EAI_AGAIN", "EAI_FAIL", "EAI_SYSTEM"])
def test_a_resolver_that_cannot_be_asked_says_nothing(
    monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(getattr(socket, code), "no answer")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert look_up("node7.cluster") is None
    assert look_up("localhost") is True


def test_slots_of_all_names_count_together() -> None:
    check_slots([Host("localhost", 2), Host("127.0.0.1", 2)], 4)
    with pytest.raises(ConfigError, match="-np 5 is more than the 4 slots of localhost:2,127"):
        check_slots([Host("localhost", 2), Host("127.0.0.1", 2)], 5)


def test_real_runs(playground: Playground) -> None:
    file = playground.write("hosts", "localhost slots=2\n")
    for words in (("-H", "localhost:2"), ("--hosts", "127.0.0.1:4"), ("-hostfile", file)):
        result = playground.run("-np", "2", *words, "echo", "x")
        assert (result.code, sorted(result.out.splitlines())) == (0, [b"[0] x", b"[1] x"])
    result = playground.run("-np", "2", "-H", "localhost:1", "touch", "started")
    assert result.code == 2
    assert b"more than the 1 slots" in result.err
    assert not (playground.directory / "started").exists()

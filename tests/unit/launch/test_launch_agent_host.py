"""Host of an agent: variables of ranks, addresses and ports, its own identity."""

from __future__ import annotations

import socket
import sys

import pytest

from kadril.compat import rank_variables as horovod_variables
from kadril.launch.options import LaunchError
from kadril.launch.remote.agent import hello, host_identity, rank_variables
from kadril.launch.remote.network_address import find_address, free_port


def test_variables_of_the_launcher_and_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/there")
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 40000 10.0.0.2 22")
    monkeypatch.setenv("ONLY_THERE", "1")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    launcher = {
        "HOME": "/home/here",
        "TMPDIR": "/scratch/here",
        "PATH": "/bin:/here",
        "XDG_RUNTIME_DIR": "/run/user/7",
        "SSH_AUTH_SOCK": "/here",
        "HOROVOD_HOSTNAME": "here",
        "GIVEN": "not yet",
    }
    found = rank_variables(launcher, {"GIVEN": "by -x", "TMPDIR": "/scratch"})
    assert found["HOME"] == "/home/there"
    assert found["PATH"] == "/bin:/here"
    assert (found["GIVEN"], found["TMPDIR"]) == ("by -x", "/scratch")
    assert found["HOROVOD_HOSTNAME"] == socket.gethostname()
    assert found["KADRIL_PYTHON"] == sys.executable
    assert not {"SSH_CONNECTION", "SSH_AUTH_SOCK", "ONLY_THERE"} & found.keys()


def test_horovod_is_told_of_hosts() -> None:
    found = [horovod_variables("horovod", rank, ((0, 2), (1,))) for rank in range(3)]
    names = ("LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    assert [" ".join(each[f"HOROVOD_{name}"] for name in names) for each in found] == [
        "0 2 0 2",
        "0 1 1 2",
        "1 2 0 1",
    ]


def test_addresses_of_interfaces() -> None:
    assert find_address("lo") == "127.0.0.1"
    assert find_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(LaunchError, match=r"--network-interface eth99 is no interface .* lo \(127"):
        find_address("eth99")


def test_ports() -> None:
    port = free_port("127.0.0.1")
    assert free_port("127.0.0.1", port) == port
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(LaunchError, match=f"127.0.0.1, port {taken}: Address already in use"):
            free_port("127.0.0.1", taken)
    with pytest.raises(LaunchError, match="give another --port, or the --network-interface"):
        free_port("192.0.2.1")


def test_two_agents_of_one_host_are_known() -> None:
    assert host_identity() == hello()["identity"]

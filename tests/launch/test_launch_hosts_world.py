"""Worlds on two hosts, by `kadril run` and `kadril mpirun`: DDL's example, and a lost rank."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from host_playground import HostPlayground

from kadril.launch.mapping.cpu_topology import this_topology
from kadril.launch.mapping.rank_file import format_rank_file
from kadril.launch.verbs.rank_file_command import place_ranks
from kadril.testing import HostNetwork

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddl_mnist.py"

pytestmark = pytest.mark.long


@pytest.fixture
def playground(net: HostNetwork, directory: Path) -> Iterator[HostPlayground]:
    made = HostPlayground(net, directory)
    try:
        yield made
    finally:
        made.close()


def rank_file(playground: HostPlayground) -> str:
    """Write a file in DDL's order."""
    sockets = [len(socket) for socket in this_topology().sockets]
    if sum(sockets) < 2:
        pytest.skip("two ranks on a host need two cores")
    names = [host.name for host in playground.net.hosts]
    return playground.write("ddl.rf", format_rank_file(place_ranks((2, 2), names, sockets, "ddl")))


@pytest.mark.parametrize("verb", ["run", "mpirun"])
def test_the_example_of_ddl(playground: HostPlayground, verb: str) -> None:
    words = ["-rf", rank_file(playground)]
    if verb == "mpirun":
        words += ["-n", "4", "-x", "PATH", "--ssh-args", f"-F {playground.net.ssh_config}"]
        # Ranks of both hosts share the cores, and MPI would spin on them.
        words += ["--mpiarg", "--mca mpi_yield_when_idle 1 --mca btl_tcp_if_include net0"]
    launched = playground.start(
        *words,
        *("python", EXAMPLE, "--mode", "-mode n:2x2", "--epochs", "1"),
        verb=verb,
        env={"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    )
    result = launched.finish(timeout=200)
    text = result.out.decode()
    assert result.code == 0, result.err.decode()
    right = re.findall(r"learner (\d) of 4, device (\d) \(\S+\): (\d+\.\d)% right", text)
    # Two learners on each host, numbered round the hosts: devices are local ranks.
    assert sorted(each[:2] for each in right) == [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")]
    assert len({share for *_, share in right}) == 1
    assert "learners run on" not in result.err.decode()  # which tells of hosts unlike the mode


KILLED = """
import os, signal, torch
import kadril
kadril.init()
kadril.allreduce(torch.ones(4))
if kadril.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
kadril.allreduce(torch.ones(4))
"""


def test_a_rank_that_dies_on_the_other_host_is_named_first(playground: HostPlayground) -> None:
    script = playground.write("killed.py", KILLED)
    launched = playground.start("-H", "host0:1,host1:1", script, env={"KADRIL_PATIENCE": "30"})
    result = launched.finish(timeout=120)
    assert result.code == 137
    assert result.report[0] == "rank 1 on host host1 failed first: killed by signal 9 (SIGKILL)"
    (other,) = [line for line in result.report if line.startswith("rank 0 on host host0: ")]
    assert "having lost a peer" in other or "stopped by the launcher" in other

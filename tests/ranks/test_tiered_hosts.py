"""Traffic on the uplinks of real hosts: namespaces with links of their own, where bytes count."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kadril.testing import HostNetwork, hosts

PROGRAM = Path(__file__).with_name("tier_hosts_program.py")

# Of the meeting, headers and acknowledgements, beside 3 % of the bound.
BYTES_BESIDE = 20_000


def run_ranks(net: HostNetwork, ranks: list[list[int]], **job: Any) -> list[dict[str, Any]]:
    """Run the program with these ranks on these hosts, and return the lines of all ranks."""
    job |= {"hosts": ranks, "address": net.hosts[0].address, "port": 29_511}
    programs = [
        net.hosts[index].popen(
            [sys.executable, str(PROGRAM), json.dumps(job | {"host": index})],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(len(ranks))
    ]
    lines: list[dict[str, Any]] = []
    for program in programs:
        output, errors = program.communicate(timeout=100)
        assert program.returncode == 0, errors
        lines += map(json.loads, output.splitlines())
    assert len(lines) == sum(map(len, ranks)) * len(job["counts"])
    return lines


def check_volume(net: HostNetwork, ranks: list[list[int]], **job: Any) -> None:
    """Each uplink carries at most 1.03 x 2 (H - 1) / H N, in each direction.

    Without what TCP sends again: a slow link loses packets where the machine is busy.
    """
    num_hosts = len(ranks)
    for line in run_ranks(net, ranks, counts=[1_600_000], **job):
        assert line["kind"] == "tiered"
        bound = 2 * (num_hosts - 1) / num_hosts * line["bytes"]
        most = 1.03 * bound + BYTES_BESIDE
        assert 0.99 * bound <= line["received"] <= most, (line, bound)
        assert 0.99 * bound <= line["sent"] <= most + line["sent_again"], (line, bound)


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[HostNetwork]:
    with hosts(2, ranks=4, ssh=False) as net:
        yield net


def test_uneven_hosts_send_no_more_than_they_must(two_hosts: HostNetwork) -> None:
    """Tiers are what is chosen between two hosts, without being asked for."""
    check_volume(two_hosts, [[0, 1, 2], [3, 4]])


@pytest.mark.long
@pytest.mark.parametrize(
    "ranks",
    [
        [[0, 1], [2, 3]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[0, 2, 4, 6], [1, 3, 5, 7]],
        [[0], [1, 2, 3]],
    ],
    ids=["2x2", "2x4", "round robin", "1+3"],
)
def test_two_hosts_send_no_more_than_they_must(
    two_hosts: HostNetwork, ranks: list[list[int]]
) -> None:
    check_volume(two_hosts, ranks)


@pytest.mark.long
def test_compression_halves_what_crosses(two_hosts: HostNetwork) -> None:
    ranks = [[0, 1], [2, 3]]
    for line in run_ranks(two_hosts, ranks, counts=[1_600_000], options={"wire_dtype": "bf16"}):
        assert 0.49 * line["bytes"] <= line["sent"] <= 0.515 * line["bytes"] + BYTES_BESIDE


@pytest.mark.long
def test_four_hosts_send_no_more_than_they_must() -> None:
    with hosts(4, ranks=2, rate="100mbit", ssh=False) as net:
        check_volume(net, [[0, 1], [2, 3], [4, 5], [6, 7]])
        check_volume(net, [[0, 4], [1, 5], [2, 6], [3, 7]])

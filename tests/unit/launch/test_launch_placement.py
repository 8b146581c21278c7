"""Placement of ranks on hosts: by rank file, by list of hosts, and where they contradict."""

from __future__ import annotations

from pathlib import Path

import pytest

from kadril.errors import ConfigError
from kadril.launch.command import parse
from kadril.launch.mapping.hosts import Host
from kadril.launch.mapping.placement import place_on_hosts, place_with_file
from kadril.launch.mapping.rank_file import parse_rank_file


def test_slots_are_filled_in_order() -> None:
    placement = place_on_hosts([Host("192.0.2.1", 2), Host("192.0.2.2", 3)], 4)
    assert placement.numbers == ((0, 1), (2, 3))
    assert [host.name for host in placement.hosts] == ["192.0.2.1", "192.0.2.2"]
    assert placement.needs_ssh
    assert place_on_hosts([Host("192.0.2.1", 2), Host("192.0.2.2", 3)], None).num_ranks == 5


def test_names_of_this_host_are_one_host() -> None:
    placement = place_on_hosts(
        [Host("localhost", 1), Host("192.0.2.1", 1), Host("127.0.0.1", 1)], 3
    )
    assert placement.numbers == ((0, 2), (1,))
    assert [host.is_here for host in placement.hosts] == [True, False]
    assert not place_on_hosts([Host("localhost", 1), Host("127.0.0.1", 1)], 2).needs_ssh


ROUND_ROBIN = """\
rank 0=192.0.2.1 slot=0:0
rank 1=192.0.2.2 slot=0:0
rank 2=192.0.2.1 slot=0:1
"""


def test_ranks_are_where_the_file_says() -> None:
    placement = place_with_file(parse_rank_file(ROUND_ROBIN), "f", None, None)
    assert placement.numbers == ((0, 2), (1,))
    assert placement.source == "f"


def test_number_of_ranks_and_hosts_must_agree_with_the_file() -> None:
    ranks = parse_rank_file(ROUND_ROBIN)
    hosts = [Host("192.0.2.1", 2), Host("192.0.2.2", 1)]
    assert place_with_file(ranks, "f", 3, hosts).num_ranks == 3
    with pytest.raises(ConfigError, match=r"-np 4 and rank file f, which has ranks 0 to 2"):
        place_with_file(ranks, "f", 4, None)
    with pytest.raises(
        ConfigError, match=r"line 3: no slot .* rank 2 on '192.0.2.1', which has 1 in"
    ):
        place_with_file(ranks, "f", 3, [Host("192.0.2.1", 1), Host("192.0.2.2", 1)])
    with pytest.raises(ConfigError, match=r"line 2: .* '192.0.2.2', which has 0 in"):
        place_with_file(ranks, "f", 3, [Host("192.0.2.1", 2)])


def test_words_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "f.rf"
    file.write_text(ROUND_ROBIN)
    for flag in ("-rf", "-rankfile", "--rankfile"):
        options = parse([flag, str(file), "true"])
        assert options.num_ranks == 3
        assert options.placement is not None
        assert options.placement.numbers == ((0, 2), (1,))
    words = [
        "-p",
        "2222",
        "-i",
        "key",
        "--network-interface",
        "net0",
        "--port",
        "5000",
        "--start-timeout",
        "7",
        "true",
    ]
    options = parse(["-H", "192.0.2.1:2", "--ssh-args", "-F c", *words])
    assert options.num_ranks == 2
    assert options.ssh.arguments == ("-F", "c", "-p", "2222", "-i", "key")
    assert (options.ssh.interface, options.ssh.port, options.ssh.timeout) == ("net0", 5000, 7.0)
    assert options.notices == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-H 192.0.2.1:2 --hostfile f", "say the same"),
        ("-H 192.0.2.1:2 -np 3", "-np 3 is more than the 2 slots"),
        ("-H 192.0.2.1:2 --stdin", "--stdin is for ranks of this host"),
        ("-H 192.0.2.1:2,192.0.2.2:2 --transport shm", "memory of one host, and there are 2"),
        ("-H 192.0.2.1:2 --network-interface a,b", "takes one, got 'a,b'"),
        ("-H 192.0.2.1:2 --port 70000", "--port must be 1 to 65535"),
    ],
)
def test_words_that_make_no_sense(words: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse([*words.split(), "true"])


def test_flags_of_ssh_without_another_host_are_said_to_have_no_effect() -> None:
    options = parse(["-np", "2", "-p", "22", "--network-interfaces", "lo,net0", "true"])
    assert options.notices == (
        "--network-interface has no effect: all ranks are on this host",
        "--ssh-port has no effect: all ranks are on this host",
    )

"""The layout: local and cross ranks, and the transport that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.config import Config
from kadril.errors import ConfigError
from kadril.world.choice import choose_transport
from kadril.world.layout import Layout


def facts(layout: Layout) -> list[tuple[int, int, int, int]]:
    return [
        (
            layout.local_rank(rank),
            layout.local_size(rank),
            layout.cross_rank(rank),
            layout.cross_size(rank),
        )
        for rank in range(layout.size)
    ]


def test_the_example_of_the_module() -> None:
    assert facts(Layout.of("AAABB")) == [
        (0, 3, 0, 2),
        (1, 3, 0, 2),
        (2, 3, 0, 1),
        (0, 2, 1, 2),
        (1, 2, 1, 2),
    ]


def test_hosts_in_turn_and_hosts_of_different_size() -> None:
    layout = Layout.of("BABCAA")
    assert layout.hosts == ((0, 2), (1, 4, 5), (3,))
    assert [layout.cross(rank) for rank in range(6)] == [
        (0, 1, 3),
        (0, 1, 3),
        (2, 4),
        (0, 1, 3),
        (2, 4),
        (5,),
    ]


@given(keys=st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_local_and_cross_are_coordinates(keys: list[int]) -> None:
    layout = Layout.of(keys)
    assert layout.size == len(keys)
    assert sorted(rank for host in layout.hosts for rank in host) == list(range(len(keys)))
    for rank, (local_rank, local_size, cross_rank, cross_size) in enumerate(facts(layout)):
        assert 0 <= local_rank < local_size == keys.count(keys[rank])
        assert 0 <= cross_rank < cross_size <= len(set(keys))
        assert layout.cross(rank)[cross_rank] == rank
        assert layout.host_of(rank)[local_rank] == rank
    # The ranks with local rank 0 are one of each host, in the order of their hosts.
    assert [host[0] for host in layout.hosts] == list(layout.cross(layout.hosts[0][0]))


ONE, TWO_HOSTS, SOLO = Layout.of("AAA"), Layout.of("AAB"), Layout.of("A")
ONE_EACH = Layout.of("AB")


@pytest.mark.parametrize(
    ("transport", "layout", "bootstrap", "expected"),
    [
        ("auto", SOLO, "hub", ("alone", "", "there is one rank")),
        ("auto", ONE, "hub", ("shm", "", "all 3 ranks are on one host")),
        ("auto", ONE, "mpi", ("shm", "", "all 3 ranks are on one host")),
        ("auto", ONE_EACH, "store", ("c10d", "gloo", "the ranks are on 2 hosts")),
        ("auto", ONE_EACH, "mpi", ("mpi", "", "MPI started the ranks, on 2 hosts")),
        (
            "auto",
            TWO_HOSTS,
            "store",
            ("tiered", "c10d", "the 3 ranks are on 2 hosts, c10d between them"),
        ),
        (
            "auto",
            TWO_HOSTS,
            "mpi",
            ("tiered", "mpi", "the 3 ranks are on 2 hosts, mpi between them"),
        ),
        ("tiered", ONE_EACH, "hub", ("tiered", "c10d", "it was asked for")),
        ("tiered:c10d", TWO_HOSTS, "mpi", ("tiered", "c10d", "it was asked for")),
        ("c10d", ONE, "hub", ("c10d", "gloo", "it was asked for")),
        ("c10d:nccl", TWO_HOSTS, "store", ("c10d", "nccl", "it was asked for")),
        ("c10d", SOLO, "hub", ("c10d", "gloo", "it was asked for")),
        ("shm", SOLO, "hub", ("shm", "gloo", "it was asked for")),
        ("mpi", ONE, "mpi", ("mpi", "gloo", "it was asked for")),
    ],
)
def test_choice(transport: str, layout: Layout, bootstrap: str, expected: tuple[str, ...]) -> None:
    choice = choose_transport(Config(transport=transport), layout, bootstrap)
    assert (choice.kind, choice.backend, choice.reason) == expected


@pytest.mark.parametrize("options", [{"tiers": "1x2"}, {"wire_dtype": "bf16"}])
def test_options_of_tiers_are_heeded_with_one_rank_on_each_host(options: dict[str, str]) -> None:
    """Options were left out there without a word."""
    assert choose_transport(Config(**options), ONE_EACH, "store").kind == "tiered"
    with pytest.raises(ConfigError, match=rf"KADRIL_{next(iter(options)).upper()} .*'c10d'"):
        choose_transport(Config(transport="c10d", **options), ONE_EACH, "store")
    assert choose_transport(Config(**options), ONE, "hub").kind == "shm"


@pytest.mark.parametrize(
    ("transport", "layout", "bootstrap", "message"),
    [
        ("shm", TWO_HOSTS, "store", "the ranks are on 2: ranks 0 1 | 2"),
        ("alone", ONE, "hub", "this world has 3"),
        ("mpi", ONE, "hub", "mpirun"),
        ("tiered:mpi", TWO_HOSTS, "store", "mpirun"),
        ("tiered:shm", TWO_HOSTS, "store", "not by 'shm'"),
        ("shm:nccl", ONE, "hub", "only c10d and tiered have something to choose"),
    ],
)
def test_a_choice_that_cannot_work(
    transport: str, layout: Layout, bootstrap: str, message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_transport(Config(transport=transport), layout, bootstrap)
    assert message in str(caught.value)

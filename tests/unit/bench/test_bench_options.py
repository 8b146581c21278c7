"""Options that `kadril bench` accepts, and those that it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kadril.bench.main import main, parse
from kadril.bench.options import BenchOptions, format_size, parse_names, parse_size
from kadril.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("64K", 65536),
        ("64k", 65536),
        ("1M", 1 << 20),
        ("1MiB", 1 << 20),
        ("2 GB", 2 << 30),
        (" 8B ", 8),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "1.5M", "-4", "4T", "four"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="write it like 4, 64K"):
        parse_size(text)


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_whole_sizes_are_written_as_they_are_read(count: int, unit: str) -> None:
    size = parse_size(f"{count}{unit}")
    assert parse_size(format_size(size)) == size


def test_names_are_listed_once() -> None:
    assert parse_names("a, b,,a ,c") == ("a", "b", "c")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ranks": 1}, "at least 2 ranks"),
        ({"collectives": ("allreduse",)}, "no collective 'allreduse'; there are allreduce"),
        ({"collectives": ()}, "nothing to measure"),
        ({"peers": ("nccl",)}, "no peer 'nccl'; there are gloo, openmpi, mpich"),
        ({"sizes": (2,)}, "at least 4 bytes"),
        ({"sizes": ()}, "nothing to measure"),
        ({"settings": ()}, "leave no setting"),
        ({"touch": "maybe"}, "no touch 'maybe'"),
        ({"memory": "huge"}, "no memory 'huge'"),
        ({"num_rounds": 0}, "--rounds must be at least 1"),
        ({"seconds": 0.0}, "--seconds more than 0"),
    ],
)
def test_values_that_make_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BenchOptions(**options)  # type: ignore[arg-type]


def test_arrays_are_touched_where_caches_matter() -> None:
    assert not BenchOptions().touches(4)
    assert BenchOptions().touches(64 << 10)
    assert BenchOptions(touch="on").touches(4)
    assert not BenchOptions(touch="off").touches(64 << 20)


def test_the_command_line() -> None:
    text = "-np 4 --collectives reduce,barrier --sizes 1M,4 --no-unpinned --peers gloo"
    options, words = parse([*text.split(), "--touch", "off", "--rounds", "2", "--seconds", "0.5"])
    assert options == BenchOptions(
        num_ranks=4,
        collectives=("reduce", "barrier"),
        sizes=(4, 1 << 20),
        settings=("pinned",),
        peers=("gloo",),
        touch="off",
        num_rounds=2,
        seconds=0.5,
    )
    assert words.json is None


def test_no_peers_at_all() -> None:
    assert parse(["--peers", ""])[0].peers == ()


def test_quick_gives_way_to_what_is_said() -> None:
    quick, _ = parse(["--quick"])
    assert quick.collectives == ("allreduce",)
    assert len(quick.sizes) * quick.num_rounds < 5 * 5
    assert parse(["--quick", "--rounds", "9"])[0].num_rounds == 9


def test_bad_usage_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no-pinned", "--no-unpinned"]) == 2
    assert "leave no setting" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["--sizes", "big"])
    assert caught.value.code == 2
    assert "write it like 4, 64K" in capsys.readouterr().err

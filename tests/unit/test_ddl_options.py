"""The grammar of DDL's options: what is read, what is refused, and what the refusal says."""

from __future__ import annotations

import pytest

from kadril.ddl.options import ALGORITHMS, Mode, Options, parse_options, read_options
from kadril.ddl.topology import check_product, default_mode, find_contradiction, tiers_of
from kadril.errors import ConfigError
from kadril.world import Layout


def hosts(*sizes: int) -> Layout:
    """Hosts with so many learners each, in blocks."""
    return Layout.of([host for host, size in enumerate(sizes) for _ in range(size)])


def test_the_options_of_the_manual() -> None:
    assert parse_options("-mode n:4x3 -dump_iter 100") == Options(Mode("n", (4, 3)), dump_iter=100)
    assert parse_options("-mode b:4x8x2") == Options(Mode("b", (4, 8, 2)))
    assert parse_options("-mode p:6x2x1x1 ") == Options(Mode("p", (6, 2, 1, 1)))
    assert parse_options("-mode r:12 -rebind_iter 5 -dev_sync 2 -dbg_level 1") == Options(
        Mode("r", (12,)), rebind_iter=5, dev_sync=2, dbg_level=1
    )
    assert parse_options("--mode p") == Options(Mode("p", ())), "ddlrun takes two dashes too"
    assert parse_options("") == Options()


@pytest.mark.parametrize("letter", ALGORITHMS)
def test_every_letter_has_a_way(letter: str) -> None:
    mode = parse_options(f"-mode {letter}:2x2").mode
    assert mode is not None
    assert mode.way in ("tiers", "flat", "scatter", "explore")
    assert (mode.num_learners, str(mode)) == (4, f"{letter}:2x2")


@pytest.mark.parametrize(
    "text",
    ["-mode n:4x3 -dump_iter 100", "-mode p", "-rebind_iter 7 -dev_sync 1 -dbg_level 2", ""],
)
def test_options_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_options(text)) == text
    assert parse_options(str(parse_options(text))) == parse_options(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-mod n:4", "mode: '-mod' is not an option of DDL; did you mean -mode?"),
        ("-dump-iter 5", "did you mean -dump_iter?"),
        ("-dumpiter 5", "did you mean -dump_iter?"),
        ("-mode=n:4", "did you mean -mode?"),
        ("dump_iter 5", "did you mean -dump_iter?"),
        ("n:4x3", "did you mean -mode n:4x3?"),
        ("4x3", "did you mean -mode 4x3?"),
        ("-zzz 1", "options are -mode, -dump_iter, -rebind_iter, -dev_sync, -dbg_level"),
        ("-mode", "-mode needs a value, as in `-mode n:4x3`"),
        ("-dump_iter -mode n:4", "-dump_iter needs a value, as in `-dump_iter 100`"),
        ("-mode n:4 -mode r:4", "-mode is given twice"),
        ("-mode 4x3", "does not name an algorithm; did you mean -mode n:4x3?"),
        ("-mode q:4", "there is no algorithm 'q'; they are b (enhanced NCCL"),
        ("-mode N:4x3", "Did you mean -mode n:4x3?"),
        ("-mode n:4x0", "whole numbers from 1"),
        ("-mode n:", "whole numbers from 1"),
        ("-mode n:4X3", "whole numbers from 1"),
        ("-mode n:2x2x2x2x2", "one to 4 whole numbers"),
        ("-dump_iter many", "-dump_iter must be a whole number from 0, got 'many'"),
        ("-dev_sync 3", "-dev_sync must be 0, 1 or 2, got '3'"),
        ("-dbg_level 1.5", "-dbg_level must be 0, 1 or 2"),
        ("-mode 'n:4", "No closing quotation"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(text)
    assert message in str(caught.value)


def test_the_argument_wins_over_the_variable() -> None:
    environment = {"DDL_OPTIONS": "-mode p:6x2 -dump_iter 10 -dev_sync 1"}
    options, remarks = read_options("-mode n:4x3 -dev_sync 1", environment)
    assert options == Options(Mode("n", (4, 3)), dump_iter=10, dev_sync=1)
    assert remarks == ["-mode n:4x3 of init() wins over -mode p:6x2 of DDL_OPTIONS"]
    assert read_options(None, environment)[0].mode == Mode("p", (6, 2))
    assert read_options(None, {}) == (Options(), [])
    with pytest.raises(ConfigError, match="DDL_OPTIONS: '-moed' is not an option"):
        read_options(None, {"DDL_OPTIONS": "-moed n"})


@pytest.mark.parametrize(
    ("mode", "layout", "message"),
    [
        (Mode("n", (4, 3)), hosts(8), "4 x 3 = 12, but 8 learners run; try n:4x2, or start 12"),
        (Mode("b", (4, 8, 2)), hosts(16), "4 x 8 x 2 = 64, but 16 learners run; try b:4x4"),
        (Mode("b", (4, 2, 3)), hosts(16), "4 x 2 x 3 = 24, but 16 learners run; try b:4x2x2"),
        (Mode("n", (4, 3)), hosts(3, 3), "4 x 3 = 12, but 6 learners run; try n:3x2"),
        (Mode("n", (4, 3)), hosts(3, 2), "4 x 3 = 12, but 5 learners run; try n:5"),
        (Mode("r", (12,)), hosts(2), "-mode r:12: 12, but 2 learners run; try r:2"),
    ],
)
def test_a_wrong_product_shows_the_arithmetic(mode: Mode, layout: Layout, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_product(mode, layout)
    assert message in str(caught.value)


def test_a_right_product_is_right() -> None:
    check_product(Mode("n", (4, 3)), hosts(12))
    check_product(Mode("p", ()), hosts(7))
    assert str(default_mode(hosts(3, 2))) == "r:5"


def test_dimensions_are_held_against_the_real_hosts() -> None:
    """DDL's launcher deals ranks out in turn: `rank // 4` would take strangers for neighbours."""
    assert find_contradiction(Mode("n", (4, 3)), hosts(4, 4, 4)) == ""
    in_turn = Layout.of([rank % 3 for rank in range(12)])
    assert find_contradiction(Mode("n", (4, 3)), in_turn) == ""
    assert find_contradiction(Mode("n", (4, 3, 1)), in_turn) == ""
    assert find_contradiction(Mode("r", (3, 4)), in_turn) == "", "a ring has no tiers"
    told = find_contradiction(Mode("n", (4, 3)), hosts(12))
    assert "says 3 hosts of 4, and the 12 learners run on 1 host of 12." in told
    assert "results are the same" in told
    told = find_contradiction(Mode("b", (3, 2)), hosts(4, 2))
    assert "says 2 hosts of 3, and the 6 learners run on 2 hosts of 4, 2." in told


def test_only_racks_need_an_option() -> None:
    assert tiers_of(Mode("n", (4, 8, 2))) == "4x8x2"
    assert tiers_of(Mode("p", (4, 2, 2, 1))) == "4x2x2"
    for mode in (Mode("n", (4, 3)), Mode("p", (6, 2, 1, 1)), Mode("n", ()), Mode("r", (4, 2, 2))):
        assert tiers_of(mode) == ""

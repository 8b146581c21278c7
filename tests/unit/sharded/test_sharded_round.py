"""The state of a round of gradients, without ranks: every transition of its drawing, and misuse."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kadril.errors import StateError
from kadril.sharded.reduction.round import Round, State

# Parameters 4 and 3 travel together, 2 and 1 by themselves, 0 is frozen.
BUCKETS = [(4, 3), (2,), (1,), (0,)]
ALL = 0b11110


def make(*, sends_early: bool = True) -> Round:
    made = Round(sends_early=sends_early)
    made.add(BUCKETS, in_order=[True, True, True, False])
    return made


def bits_of(number: int) -> int:
    return sum(1 << place for place in BUCKETS[number])


def send(a_round: Round) -> list[int]:
    """Send what is ready; the buckets."""
    sent = []
    while a_round.is_ready:
        sent.append(a_round.take_turn())
        a_round.take(sent[-1], bits_of(sent[-1]), is_given=True)
    return sent


def finish(a_round: Round) -> None:
    """Send the rest of a cycle with nothing in it."""
    while a_round.is_in_cycle:
        a_round.take_turn()


def pass_through(a_round: Round, places: tuple[int, ...] = (4, 3, 2, 1)) -> list[int]:
    """Make a backward pass."""
    sent = []
    for place in places:
        a_round.arrive(place)
        sent += send(a_round)
    return sent


def settled() -> Round:
    a_round = make()
    pass_through(a_round)
    a_round.settle(ALL)
    return a_round


def held() -> Round:
    a_round = make()
    pass_through(a_round)
    a_round.drop()
    return a_round


# ---- open ----------------------------------------------------------------------------------------


def test_a_bucket_is_ready_with_its_last_gradient() -> None:
    a_round = make()
    assert a_round.state is State.OPEN
    a_round.arrive(4)
    assert not a_round.is_ready
    assert not a_round.has_given
    a_round.arrive(3)
    assert a_round.is_ready
    assert send(a_round) == [0]
    assert a_round.is_in_cycle
    assert a_round.has_given
    assert a_round.present == 0b11000


def test_a_bucket_waits_for_its_turn() -> None:
    a_round = make()
    assert pass_through(a_round, (1, 2)) == []
    assert pass_through(a_round, (3, 4)) == [0, 1, 2]
    assert not a_round.is_in_cycle


def test_a_gradient_that_comes_again_counts_once() -> None:
    a_round = make()
    assert pass_through(a_round, (4, 4)) == []
    assert pass_through(a_round, (3,)) == [0]
    assert pass_through(a_round, (4,)) == [], "its bucket has been sent: that is the next cycle"
    assert pass_through(a_round, (2, 1)) == [1, 2]
    assert pass_through(a_round, (3,)) == [0]


def test_a_single_gradient_can_be_sent_where_it_lies_when_nothing_else_waits() -> None:
    a_round = make()
    assert not a_round.is_next_alone(2), "it is not its turn"
    assert not a_round.is_next_alone(4), "it travels with another"
    pass_through(a_round, (4, 3))
    assert a_round.is_next_alone(2)
    assert not a_round.is_next_alone(1)
    a_round.arrive(2)
    assert not a_round.is_next_alone(2), "one is there already, to which it is added"
    assert not held().is_next_alone(2)
    assert not make(sends_early=False).is_next_alone(2)


def test_what_is_left_of_a_cycle_may_be_sent_without_gradients() -> None:
    a_round = make()
    pass_through(a_round, (4, 3))
    finish(a_round)
    assert a_round.present == 0b11000
    a_round.settle(ALL)


def test_sending_nothing_gives_nothing() -> None:
    a_round = make()
    a_round.take(a_round.take_turn(), 0, is_given=True)
    assert not a_round.has_given
    a_round.take(3, 1, is_given=False)
    assert not a_round.has_given, "ranks are together when they reduce what is outside of cycles"
    assert a_round.present == 1


def test_in_stage_one_nothing_is_sent_early() -> None:
    a_round = make(sends_early=False)
    assert pass_through(a_round) == []
    assert a_round.dormant() == [0, 1, 2, 3]
    a_round.settle(ALL)
    assert not a_round.wants_order()
    assert a_round.drop() == []
    assert a_round.state is State.OPEN
    assert a_round.num_drops == 1


# ---- settled -------------------------------------------------------------------------------------


def test_a_settled_round_knows_what_came_anywhere() -> None:
    a_round = settled()
    assert a_round.state is State.SETTLED
    assert a_round.agreed == ALL
    assert not a_round.has_given, "from now on others know"


def test_more_passes_open_a_settled_round_and_add_up() -> None:
    a_round = settled()
    assert pass_through(a_round, (4, 3)) == [0]
    assert a_round.state is State.OPEN
    assert a_round.agreed == ALL
    finish(a_round)
    a_round.settle(ALL)
    assert a_round.state is State.SETTLED


def test_a_step_begins_the_next_round() -> None:
    a_round = settled()
    a_round.begin()
    assert a_round.state is State.OPEN
    assert (a_round.present, a_round.agreed, a_round.num_drops) == (0, 0, 0)
    assert pass_through(a_round) == [0, 1, 2]


def test_gradients_that_wait_stay_over_a_step() -> None:
    a_round = settled()
    a_round.arrive(4)
    a_round.begin()
    assert pass_through(a_round, (3,)) == [0]


def test_the_order_is_the_one_that_was_observed() -> None:
    a_round = make()
    pass_through(a_round, (1, 4, 2, 3))
    a_round.settle(ALL)
    assert a_round.wants_order()
    assert a_round.observed_order() == [2, 1, 0]
    a_round.set_order(a_round.observed_order())
    assert not a_round.wants_order()
    a_round.begin()
    assert pass_through(a_round, (1, 4, 2, 3)) == [2, 1, 0]


def test_buckets_that_did_not_become_complete_are_dormant_until_they_do() -> None:
    a_round = make()
    a_round.arrive(2)
    a_round.arrive(4)
    for _ in range(3):
        number = a_round.take_turn()
        a_round.take(number, bits_of(number) & 0b10100, is_given=True)
    a_round.settle(0b10100)
    a_round.set_order(a_round.observed_order())
    assert a_round.order == [1]
    assert a_round.dormant() == [0, 2, 3]
    assert a_round.wants_order(), "bucket 0 came on some rank: the next round may see it complete"
    a_round.begin()
    assert pass_through(a_round) == [1]
    a_round.settle(ALL)
    a_round.set_order(a_round.observed_order())
    assert a_round.order == [0, 1, 2]
    assert not a_round.wants_order()


def test_the_order_is_learned_anew_where_other_gradients_came() -> None:
    a_round = settled()
    a_round.set_order(a_round.observed_order())
    a_round.begin()
    a_round.settle(0)
    assert not a_round.wants_order(), "a round without gradients teaches nothing"
    pass_through(a_round, (4, 3, 2))
    finish(a_round)
    a_round.settle(0b11100)
    assert a_round.wants_order()


def test_added_buckets_come_last() -> None:
    a_round = settled()
    a_round.set_order([1, 0, 2])
    a_round.add([(5,), (6,)], in_order=[True, False])
    assert a_round.order == [1, 0, 2, 4]
    assert a_round.dormant() == [3, 5]
    assert a_round.wants_order()
    for place in (5, 4, 3, 2, 1):
        a_round.arrive(place)
    assert [a_round.take_turn() for _ in a_round.order] == [1, 0, 2, 4]


# ---- drops ---------------------------------------------------------------------------------------


def test_dropping_nothing_changes_nothing() -> None:
    a_round = make()
    assert a_round.drop() == []
    assert a_round.state is State.OPEN
    assert a_round.num_drops == 0


def test_dropping_what_others_have_holds_the_round() -> None:
    a_round = held()
    assert a_round.state is State.HELD
    assert a_round.is_held
    assert a_round.present == 0
    assert not a_round.has_given


def test_dropping_what_came_and_was_not_given_holds_it_too() -> None:
    """Other ranks that drop the same pass may have given theirs."""
    a_round = make()
    a_round.arrive(4)
    a_round.drop()
    assert a_round.is_held


def test_the_rest_of_a_cycle_is_left_to_be_sent_empty() -> None:
    a_round = make()
    pass_through(a_round, (4, 3))
    assert a_round.drop() == [1, 2]
    assert not a_round.is_in_cycle
    assert a_round.drop() == []


def test_what_comes_while_it_is_held_waits() -> None:
    a_round = held()
    assert pass_through(a_round) == []
    assert a_round.is_held
    a_round.take_turn()  # others go through a cycle: this rank takes part with nothing
    finish(a_round)
    assert a_round.is_held
    a_round.drop()
    assert a_round.is_held, "also where nothing came in between"


def test_a_restart_lets_gradients_go_again() -> None:
    a_round = held()
    a_round.restart()
    assert a_round.state is State.OPEN
    assert pass_through(a_round) == [0, 1, 2]
    a_round.settle(ALL)
    assert a_round.agreed == ALL


def test_settled_gradients_that_are_dropped_are_counted() -> None:
    a_round = settled()
    a_round.drop()
    assert a_round.state is State.OPEN
    assert a_round.num_drops == 1
    a_round.drop()
    assert a_round.num_drops == 1, "there was nothing to drop"
    pass_through(a_round)
    a_round.settle(ALL)
    a_round.begin()
    assert a_round.num_drops == 0


def test_an_abandoned_round_has_nothing_left() -> None:
    a_round = held()
    a_round.abandon()
    assert a_round.state is State.OPEN
    assert a_round.present == 0
    a_round.arrive(4)
    a_round.abandon()
    assert pass_through(a_round, (3,)) == []
    assert a_round.drop() == []


# ---- misuse --------------------------------------------------------------------------------------


def test_no_turn_without_an_order() -> None:
    with pytest.raises(StateError, match="no bucket has a turn"):
        make(sends_early=False).take_turn()


def test_nothing_may_leave_a_held_round() -> None:
    with pytest.raises(StateError, match="bucket 1 is sent before all ranks know"):
        held().take(1, 0b100, is_given=True)


def test_a_held_round_cannot_be_settled() -> None:
    with pytest.raises(StateError, match="restarted before it is settled"):
        held().settle(ALL)


CALLS: dict[str, Callable[[Round], None]] = {
    "settle": lambda a_round: a_round.settle(ALL),
    "change the order": lambda a_round: a_round.set_order([1]),
    "add buckets": lambda a_round: a_round.add([(5,)], in_order=[True]),
}


@pytest.mark.parametrize("what", CALLS)
def test_not_in_the_middle_of_a_cycle(what: str) -> None:
    a_round = make()
    pass_through(a_round, (4, 3))
    with pytest.raises(StateError, match=f"cannot {what} in the middle of a cycle: 1 of 3"):
        CALLS[what](a_round)


def test_a_parameter_that_is_not_known() -> None:
    with pytest.raises(KeyError):
        make().arrive(17)


# ---- any order -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_calls_keeps_what_holds_always(seed: int) -> None:
    """Each bucket is sent once a cycle, in the order; nothing of before a drop is in `present`."""
    dice = random.Random(seed)
    a_round = make()
    sent: list[int] = []
    for _ in range(300):
        call = dice.choice(["arrive"] * 8 + ["settle", "drop", "restart", "begin"])
        if call == "arrive":
            a_round.arrive(dice.randrange(1, 5))
            sent += send(a_round)
        elif call == "drop":
            sent += a_round.drop()
            assert a_round.present == 0
            assert not a_round.is_ready
        elif call == "restart":
            a_round.restart()
        elif not a_round.is_held:
            while a_round.is_in_cycle:
                sent.append(a_round.take_turn())
                a_round.take(sent[-1], 0, is_given=True)
            a_round.settle(a_round.present)
            if call == "begin":
                a_round.begin()
        assert sent == [place % 3 for place in range(len(sent))]
        assert len(sent) % 3 == a_round.turn
        assert not (a_round.is_held and a_round.has_given)

"""Which server an image goes to, on a clock of its own."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.batch.executors.servers import Servers
from triton_sam.errors import InvalidInput

ADDRESSES = ["a:1", "b:1", "c:1"]


def servers(*addresses: str) -> Servers:
    return Servers(addresses or ADDRESSES, patience=600.0)


@given(st.sampled_from([str(number) for number in range(1000)]))
def test_without_a_server_only_its_own_images_move(key: str) -> None:
    chosen = servers()
    first = chosen.order(key)
    assert sorted(first) == [0, 1, 2]
    gone = first[0]
    chosen.states[gone].away(0.0, "dead")
    assert chosen.home(first) == first[1]
    assert all(chosen.home([index, *first]) == index for index in first[1:])


def test_images_are_spread_evenly_and_everyone_chooses_the_same() -> None:
    chosen, others = servers(), servers(*reversed(ADDRESSES))
    homes = [chosen.order(str(number))[0] for number in range(3000)]
    assert all(900 < count < 1100 for count in Counter(homes).values())
    assert [2 - others.order(str(number))[0] for number in range(3000)] == homes


def test_a_server_that_failed_with_an_image_is_avoided_if_there_is_another() -> None:
    chosen = servers()
    assert chosen.home([1, 0, 2], avoid=[1]) == 0
    for index in (0, 2):
        chosen.states[index].away(0.0, "dead")
    assert chosen.home([1, 0, 2], avoid=[1]) == 1
    chosen.states[1].away(0.0, "dead")
    assert chosen.home([1, 0, 2]) is None


def test_a_server_that_is_away_is_asked_with_growing_pauses() -> None:
    state = servers("a:1").states[0]
    assert state.ask_in(0.0) is None
    state.away(100.0, "dead")
    now, pauses = 100.0, []
    for _ in range(8):
        ask_in = state.ask_in(now)
        assert ask_in is not None
        pauses.append(ask_in)
        now += ask_in
        state.asking()
        assert state.ask_in(now) is None
        state.still_away(now, "dead")
    assert pauses[:4] == [0.0, 0.5, 1.0, 2.0]
    assert pauses[-1] == 15.0
    state.back()
    assert state.is_up
    assert state.reason == ""


def test_a_server_that_refuses_for_long_is_passed_over() -> None:
    state = servers("a:1").states[0]
    state.refused(0.0, "full")
    state.refused(19.0, "full")
    assert state.is_up
    state.refused(20.0, "full")
    assert not state.is_up


def test_an_answer_ends_the_count_of_refusals() -> None:
    state = servers("a:1").states[0]
    state.refused(0.0, "full")
    state.answered(15.0)
    state.refused(21.0, "full")
    assert state.is_up


def test_the_patience_ends_only_if_no_server_responds() -> None:
    chosen = servers("a:1", "b:1")
    first, second = chosen.states
    first.troubled(0.0)
    assert chosen.given_up(700.0) is None  # the other may be working on something long
    second.troubled(300.0)
    assert chosen.given_up(700.0) is None
    stopped = chosen.given_up(900.0)
    assert stopped is not None
    assert "none of 2 servers has answered for 600 s (a:1: no answer; b:1: no answer)" in str(stopped)
    second.responds()
    assert chosen.given_up(900.0) is None


def test_a_server_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a:1 is given twice"):
        servers("a:1", "a:1")

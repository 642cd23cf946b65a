from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from triton_sam.core.fair_queue import FairQueue, PeopleFirstQueue


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=40))
def test_nothing_is_lost_and_each_session_keeps_its_order(items: list[tuple[str, int]]) -> None:
    queue: FairQueue[tuple[str, int]] = FairQueue(100)
    for item in items:
        queue.put(item, item[0])
    popped = [queue.pop() for _ in range(len(queue))]
    by_session: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for item in popped:
        by_session[item[0]].append(item)
    assert len(popped) == len(items)
    for session, own in by_session.items():
        assert own == [item for item in items if item[0] == session]


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=30))
def test_no_session_is_served_twice_while_another_waits(sessions: list[str]) -> None:
    queue: FairQueue[str] = FairQueue(100)
    for session in sessions:
        queue.put(session, session)
    popped = [queue.pop() for _ in range(len(queue))]
    shared = 2 * min(sessions.count("a"), sessions.count("b"))
    assert all(popped[index] != popped[index + 1] for index in range(shared - 1))


def test_take_respects_the_limit_and_the_rest_stays() -> None:
    queue: FairQueue[int] = FairQueue(10)
    for number in range(6):
        queue.put(number, number % 2)
    assert queue.take(lambda number: number != 3, limit=2) == [0, 2]
    assert len(queue) == 4
    assert sorted(queue.pop() for _ in range(4)) == [1, 3, 4, 5]


def test_turns_pass_over_those_whose_next_item_may_not_go() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item in ("a1", "a2", "b1", "b2", "c1"):
        queue.put(item, item[0])
    assert queue.pop_if(lambda item: item[0] != "a") == "b1"
    assert queue.pop_if(lambda item: item in ("a2", "b2")) == "b2", "not what stands behind another one"
    assert queue.pop_if(lambda item: item == "a2") is None
    assert len(queue) == 3
    assert [queue.pop() for _ in range(3)] == ["a1", "c1", "a2"]


def test_full_at_its_capacity() -> None:
    queue: FairQueue[int] = FairQueue(1)
    assert not queue.full
    queue.put(1, "a")
    assert queue.full


def test_a_kept_turn_is_inherited_and_given_up_when_nobody_takes_it() -> None:
    queue: FairQueue[str] = FairQueue(10)
    for item, session in (("a1", "a"), ("b1", "b")):
        queue.put(item, session)
    queue.keep_turn("a")
    assert queue.take(lambda item: item == "a1") == ["a1"]
    assert len(queue) == 1
    queue.put("a2", "a")
    queue.release_turn("a")
    assert [queue.pop(), queue.pop()] == ["a2", "b1"]

    queue.put("a3", "a")
    queue.keep_turn("a")
    queue.take(lambda item: True)
    queue.put("b2", "b")
    assert queue.pop() == "b2", "an empty line is passed over"
    queue.release_turn("a")
    queue.put("c1", "c")
    queue.put("a4", "a")
    assert [queue.pop(), queue.pop()] == ["c1", "a4"]


def test_people_come_first_and_background_work_has_half_as_many_places() -> None:
    queue: PeopleFirstQueue[str] = PeopleFirstQueue(4)
    for name in ("job 1", "job 2"):
        assert queue.refusal(background=True) is None
        queue.put(name, "job", background=True)
    assert queue.refusal(background=True) == 2
    for name in "abcd":
        assert queue.refusal(background=False) is None
        queue.put(name, "person", background=False)
    assert queue.refusal(background=False) == 4
    assert len(queue) == 6
    queue.promote("job 2", "person")
    queue.promote("a", "person")
    assert [queue.people.pop() for _ in range(5)] == ["a", "b", "c", "d", "job 2"]
    assert queue.take(lambda item: True) == ["job 1"]
    assert not queue


def test_people_who_fill_the_queue_leave_no_place_for_background_work() -> None:
    queue: PeopleFirstQueue[int] = PeopleFirstQueue(2)
    for number in range(2):
        queue.put(number, number, background=False)
    assert queue.refusal(background=True) == 2

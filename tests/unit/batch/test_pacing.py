"""The pace finds how many requests a server needs, on a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.batch.simulated_server import SimulatedServer
from triton_sam.batch.executors.pacing import MOST_IN_FLIGHT, Pace

SERVICE = 0.1
#: Seconds of the simulation; the second half is judged.
LONG = 120.0


def ran(server: SimulatedServer, most: int = MOST_IN_FLIGHT, seconds: float = LONG) -> tuple[float, float]:
    """(rate, limit) in the second half."""
    pace = Pace(most)
    server.run(pace, seconds, most)
    return server.rate(seconds / 2), server.level(seconds / 2)


@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("capacity", [1, 4, 32])
@pytest.mark.parametrize("batches", [True, False])
def test_a_server_is_kept_busy_with_a_short_queue(capacity: int, batches: bool, says: bool) -> None:
    server = SimulatedServer(capacity, SERVICE, batches=batches, says=says)
    rate, level = ran(server)
    assert rate >= 0.85 * server.best_rate
    assert level <= 4 * capacity + 2


@given(
    capacity=st.sampled_from([1, 4, 32]),
    batches=st.booleans(),
    queue=st.integers(2, 64),
    service=st.sampled_from([0.01, 0.1, 1.0]),
    noise=st.sampled_from([0.0, 0.2, 0.5]),
    seed=st.integers(0, 1000),
)
def test_it_comes_near_the_best_whatever_the_server(
    capacity: int, batches: bool, queue: int, service: float, noise: float, seed: int
) -> None:
    # A batch is filled only by what waits, so a short queue bounds it.
    possible = min(capacity, max(queue, 1)) if batches else capacity
    server = SimulatedServer(capacity, service, queue, batches, noise, transfer=service / 50, seed=seed)
    rate, level = ran(server, seconds=1000 * service)
    assert rate >= 0.6 * possible / service
    assert level <= 4 * capacity + 2


@given(most=st.integers(1, 8), seed=st.integers(0, 100))
def test_the_bound_is_never_exceeded(most: int, seed: int) -> None:
    ran(SimulatedServer(32, SERVICE, seed=seed), most, seconds=20)


def test_it_starts_with_two() -> None:
    assert Pace().room(0.0) == 2


def test_a_refusal_pauses_as_long_as_the_server_says_and_halves_the_number() -> None:
    pace = Pace()
    pace.limit = 8
    sent = [pace.sent(1.0) for _ in range(8)]
    pace.refused(sent[0], 2.0, retry_after=7.0)
    assert pace.limit == 4
    pace.refused(sent[1], 2.0, retry_after=7.0)
    assert pace.limit == 4  # refused together
    for each in sent[2:]:
        pace.answered(each, 3.0)
    assert pace.room(8.9) == 0
    assert pace.pause_left(8.0) == pytest.approx(1.0)
    assert pace.room(9.0) == 4


def test_pauses_grow_while_nothing_is_answered() -> None:
    pace, now, pauses = Pace(), 0.0, []
    for _ in range(8):
        pace.refused(pace.sent(now), now)
        pauses.append(pace.pause_left(now))
        now += pauses[-1]
    assert pauses[:3] == pytest.approx([0.25, 0.5, 1.0])
    assert max(pauses) == pytest.approx(4.0)
    assert pace.room(now) == 1


def test_it_recovers_after_refusals() -> None:
    server = SimulatedServer(8, SERVICE, queue=0, retry_after=1.0)
    pace = Pace()
    server.run(pace, 60.0)
    assert server.refusals
    server.queue = 1000  # others have gone
    server.run(pace, 240.0)
    assert server.rate(200.0) >= 0.85 * server.best_rate


def test_a_full_server_is_not_asked_in_vain_all_the_time() -> None:
    server = SimulatedServer(4, SERVICE, queue=1, retry_after=1.0)
    server.run(Pace(), 300.0)
    assert len([at for at in server.refusals if at > 100]) <= 20
    assert server.rate(100.0) >= 0.7 * server.best_rate


def test_other_peoples_queue_leaves_it_at_two() -> None:
    """Their requests wait with ours: the queue is long whatever we send."""
    pace = Pace()
    now = 0.0
    for _ in range(500):
        sent = [pace.sent(now) for _ in range(pace.room(now))]
        now += 1.0
        for each in sent:
            pace.answered(each, now, 0.9)
    assert pace.limit <= 3


def test_a_job_slower_than_its_server_does_not_raise_the_number() -> None:
    pace = Pace()
    for at in range(200):
        pace.answered(pace.sent(float(at)), at + 0.1, 0.0)
    assert pace.limit == 2


def test_a_request_that_tells_nothing_is_only_counted() -> None:
    pace = Pace()
    pace.sent(0.0)
    pace.dropped()
    assert (pace.in_flight, pace.limit) == (0, 2)


def test_a_server_that_was_away_is_begun_with_two_again() -> None:
    server = SimulatedServer(32, SERVICE)
    pace = Pace()
    server.run(pace, 60.0)
    assert pace.limit > 8
    pace.restart()
    assert pace.limit == 2

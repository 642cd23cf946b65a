from __future__ import annotations

import asyncio
from concurrent.futures import Future

import httpx
import numpy as np
import pytest

from tests.unit.service.helpers import Fake, answer_as_a_segmenter, client_of, refusal
from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call
from triton_sam.errors import Cancelled, InvalidInput, QueueFull
from triton_sam.service.admission.backpressure import Backpressure

CLICK = {"image_key": "a" * 64, "points": [[1, 2]]}
REASON = "17 requests are waiting already: try again in a moment"


def call_of(*inputs: str, model: str = "sam2") -> Call:
    return Call(model, {name: np.zeros(1) for name in inputs}, ())


def answered(outcome: Outputs | BaseException | None) -> Future[Outputs]:
    """None: cancelled by the waiting caller."""
    future: Future[Outputs] = Future()
    if outcome is None:
        future.cancel()
    elif isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
    return future


class Watched:
    """A :class:`Backpressure` with a clock that stands still, which has just seen a refusal of a click."""

    def __init__(self) -> None:
        self.now = 100.0
        self.backpressure = Backpressure(lambda: self.now)
        self.backpressure.watch(call_of("image_key"), answered(QueueFull(REASON)))

    def is_full(self, call: Call) -> bool:
        try:
            self.backpressure.check(call)
        except QueueFull as error:
            return str(error) == REASON
        return False


def test_clicks_on_a_full_model_and_nothing_else() -> None:
    watched = Watched()
    assert watched.is_full(call_of("image_key", "prompt_json"))
    assert watched.is_full(call_of("embedding"))
    assert not watched.is_full(call_of("image", "prompt_json"))
    assert not watched.is_full(call_of("image_b64"))
    assert not watched.is_full(call_of("image_key", model="sam3"))


@pytest.mark.parametrize("outcome", [{}, InvalidInput("no"), Cancelled("gone"), None])
@pytest.mark.parametrize("inputs", ["image", "image_key"])
def test_every_response_but_a_refusal_frees_a_slot(outcome: Outputs | BaseException | None, inputs: str) -> None:
    watched = Watched()
    watched.backpressure.watch(call_of(inputs, model="sam3"), answered(outcome))
    assert watched.is_full(call_of("image_key")), "an answer of another model"
    watched.backpressure.watch(call_of(inputs), answered(outcome))
    assert not watched.is_full(call_of("image_key"))


def test_an_image_that_is_refused_says_nothing_of_clicks() -> None:
    backpressure = Backpressure(lambda: 100.0)
    backpressure.watch(call_of("image"), answered(QueueFull("2 images are waiting already")))
    backpressure.check(call_of("image_key"))


def test_a_refusal_is_remembered_for_a_moment_only() -> None:
    watched = Watched()
    watched.now += 0.04
    assert watched.is_full(call_of("image_key"))
    watched.now += 0.02
    assert not watched.is_full(call_of("image_key"))


def test_the_service_asks_a_full_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.service.admission.backpressure._MAX_SECONDS", 60.0)
    fake = Fake()

    def full(call: Call) -> Outputs:
        raise QueueFull(REASON)

    async def run() -> list[httpx.Response]:
        async with client_of(fake) as client:
            fake.transport.answer = full
            refused = [await client.post("/v1/segment", json=CLICK) for _ in range(5)]
            assert len(fake.transport.calls) == 1
            hover = CLICK | {"session_id": "mine", "latest_wins": True}
            refused.append(await client.post("/v1/segment", json=hover))
            assert len(fake.transport.calls) == 2, "this one may take the place of another"
            fake.transport.answer = answer_as_a_segmenter
            assert (await client.post("/v1/segment", json=hover)).status_code == 200
            assert (await client.post("/v1/segment", json=CLICK)).status_code == 200, "there is a place again"
            return refused

    for answer in asyncio.run(run()):
        assert refusal(answer, 429, "queue_full") == REASON
        assert answer.headers["Retry-After"] == "1"


def test_a_full_share_of_background_requests_is_no_full_queue() -> None:
    job = Call("sam2", {"image_key": np.zeros(1)}, (), {"background": True})
    watched = Watched()
    assert not watched.is_full(job), "its queue is another one"
    watched.backpressure.watch(call_of("image_key"), answered({}))
    watched.backpressure.watch(job, answered(QueueFull(REASON)))
    assert watched.is_full(job)
    assert not watched.is_full(call_of("image_key"))

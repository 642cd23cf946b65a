"""Cache, order and cancelling on the real server, read off its own metrics."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.analytic import png, slow_picture, slowed
from tests.conftest import ServerFactory
from tests.server_readings import counters
from triton_sam import SAM2TritonClient
from triton_sam.client import wire
from triton_sam.client.transport import Transport, connect
from triton_sam.errors import Cancelled, ImageExpired, TritonSamError, Unavailable
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
ONE_EMBEDDING = 16_777_216
POINT = [365, 290]


def metrics(running: RunningServer) -> dict[str, float]:
    return counters(running, "sam2")


@pytest.fixture(scope="module")
def narrow(start_server: ServerFactory) -> Iterator[RunningServer]:
    """A server whose cache holds one image and whose queues are short."""
    with start_server(cache_bytes=str(ONE_EMBEDDING), encode_queue="1", click_queue="4") as running:
        yield running


@pytest.fixture
def pictures(photographs: Path) -> list[bytes]:
    """Two that take as long as with a real network."""
    names = ("coffee.png", "chelsea.png")
    return [png(slowed(Image.open(photographs / name))) for name in names]


def raw(running: RunningServer, protocol: str = "HTTP") -> Transport:
    return connect(wire.Address.parse(running.urls[protocol]), 60.0, {})


def encode_call(image: bytes, **parameters: str | bool) -> wire.Call:
    return wire.Call("sam2", wire.image_inputs(image), ("image_key",), parameters)


def click_call(key: str, **parameters: str | bool) -> wire.Call:
    document = {"points": [POINT], "format": "rle"}
    return wire.Call("sam2", wire.click_inputs(key, document), ("result_json",), parameters)


def outcome(running: RunningServer, call: wire.Call, protocol: str = "HTTP") -> object:
    """The answer or the error, from a connection of its own."""
    transport = raw(running, protocol)
    try:
        return transport.infer(call)
    except TritonSamError as error:
        return error
    finally:
        transport.close()


def test_evicted_images_are_not_found_and_the_client_encodes_again(
    narrow: RunningServer, pictures: list[bytes]
) -> None:
    with SAM2TritonClient(narrow.urls["HTTP"]) as first, SAM2TritonClient(narrow.urls["HTTP"]) as second:
        key = first.set_image(pictures[0])
        expected = first.segment([POINT]).masks.masks
        second.set_image(pictures[1])
        assert isinstance(outcome(narrow, click_call(key)), ImageExpired)
        before = metrics(narrow)
        np.testing.assert_array_equal(first.segment([POINT]).masks.masks, expected)
        after = metrics(narrow)
    assert after["encodes_total"] - before["encodes_total"] == 1
    assert after["cache_bytes"] == ONE_EMBEDDING


def test_equal_new_images_are_encoded_once(narrow: RunningServer) -> None:
    image = slow_picture(1)
    before = metrics(narrow)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: outcome(narrow, encode_call(image)), range(4)))
    assert not [answer for answer in answers if isinstance(answer, TritonSamError)]
    assert metrics(narrow)["encodes_total"] - before["encodes_total"] == 1


def test_overload_is_refused_at_once_and_clearly(narrow: RunningServer) -> None:
    before = metrics(narrow)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda shade: outcome(narrow, encode_call(slow_picture(shade))), range(10, 16)))
    refused = [answer for answer in answers if isinstance(answer, Unavailable)]
    assert refused, "six images at once on a queue of one"
    assert "try again" in str(refused[0])
    assert metrics(narrow)["rejected_total"] - before["rejected_total"] == len(refused)
    served = [answer for answer in answers if not isinstance(answer, TritonSamError)]
    assert len(served) + len(refused) == 6


def test_the_client_retries_a_busy_server(narrow: RunningServer) -> None:
    def encode(shade: int) -> str:
        with SAM2TritonClient(narrow.urls["HTTP"], retries=100) as client:
            return client.set_image(slow_picture(shade))

    with ThreadPoolExecutor(4) as pool:
        keys = list(pool.map(encode, range(20, 24)))
    assert len(set(keys)) == 4


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_latest_wins_and_superseded_clicks_cost_nothing(
    server: RunningServer, pictures: list[bytes], protocol: str
) -> None:
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        key = client.set_image(pictures[0])
    before = metrics(server)
    with ThreadPoolExecutor(16) as pool:
        call = click_call(key, session_id=f"hover-{protocol}", latest_wins=True)
        answers = list(pool.map(lambda _: outcome(server, call, protocol), range(32)))
    after = metrics(server)
    cancelled = [answer for answer in answers if isinstance(answer, Cancelled)]
    answered = [answer for answer in answers if not isinstance(answer, TritonSamError)]
    assert len(cancelled) + len(answered) == 32
    assert cancelled, "32 hovers of one session and none superseded"
    assert after["cancelled_total"] - before["cancelled_total"] == len(cancelled)
    assert after["decodes_total"] - before["decodes_total"] == len(answered)


def test_cancel_request_answers_waiting_requests_of_its_session_only(server: RunningServer) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(outcome, server, encode_call(slow_picture(101)))
        doomed = [
            pool.submit(outcome, server, encode_call(slow_picture(102 + index), session_id="doomed"))
            for index in range(2)
        ]
        spared = pool.submit(outcome, server, encode_call(slow_picture(110), session_id="spared"))
        cancelled = 0
        while not all(
            future.done() for future in doomed
        ):  # the requests arrive when they arrive; each is cancelled as soon as it is there
            call = wire.Call("sam2", {}, ("result_json",), {"session_id": "doomed", "cancel": True})
            transport = raw(server)
            cancelled += json.loads(wire.text_of(transport.infer(call), "result_json"))["cancelled"]
            transport.close()
    assert [repr(future.result()) for future in doomed if not isinstance(future.result(), Cancelled)] == []
    assert cancelled == 2
    for future in (running, spared):
        assert not isinstance(future.result(), TritonSamError)


def test_clicks_pass_an_encode(server: RunningServer, pictures: list[bytes]) -> None:
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        client.set_image(pictures[0])
        with ThreadPoolExecutor(1) as pool:
            encoding = pool.submit(outcome, server, encode_call(slow_picture(120)))
            clicks = 0
            while not encoding.done():
                client.segment([POINT])
                clicks += 1
    assert clicks >= 3, "an encode takes seconds and a click a tenth of one"


def test_threads_share_one_client(server: RunningServer, pictures: list[bytes]) -> None:
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        client.set_image(pictures[0])
        expected = client.segment([POINT]).masks.masks
        with ThreadPoolExecutor(8) as pool:
            for found in pool.map(lambda _: client.segment([POINT]).masks.masks, range(24)):
                np.testing.assert_array_equal(found, expected)


def test_background_requests_come_after_those_of_people(server: RunningServer, pictures: list[bytes]) -> None:
    """A job's images wait for a person's, which came last, and its masks are the same as a person's."""
    finished: list[str] = []

    def send(name: str, number: int, **parameters: bool) -> object:
        found = outcome(server, encode_call(slow_picture(number), **parameters))
        finished.append(name)
        return found

    before = metrics(server)
    with ThreadPoolExecutor(6) as pool:
        job = [pool.submit(send, "job", number, background=True) for number in range(140, 144)]
        while not finished:
            time.sleep(0.01)
        person = pool.submit(send, "person", 150)
    assert [repr(future.result()) for future in (*job, person) if isinstance(future.result(), TritonSamError)] == []
    assert finished.index("person") <= 2, finished
    after = metrics(server)
    assert after["encodes_total"] - before["encodes_total"] == 5
    assert after["background_encodes_total"] - before["background_encodes_total"] == 4
    boxes = [{"box": [20 * number, 20, 20 * number + 200, 250]} for number in range(10)]
    with (
        SAM2TritonClient(server.urls["HTTP"], background=True) as client,
        SAM2TritonClient(server.urls["gRPC"], background=True) as grpc,
        SAM2TritonClient(server.urls["HTTP"]) as plain,
    ):
        found = []
        for each in (client, grpc, plain):
            each.set_image(pictures[0])
            found.append(each.segment(objects=boxes, format="rle").result["masks"])
    assert found[0] == found[1] == found[2]
    assert metrics(server)["background_decodes_total"] - after["background_decodes_total"] == 20

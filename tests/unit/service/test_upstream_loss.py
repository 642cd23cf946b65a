from __future__ import annotations

import asyncio
import json
import socket

import httpx
import pytest

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, ask, client_of, image_file, listening, refusal


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "failed"])
def test_no_work_while_the_server_is_not_ready(state: str) -> None:
    fake = Fake(state=state)
    for request in (
        {"path": "/v1/segment", "json": CLICK},
        {"path": "/embedded_model", "files": {"image": ("a.png", image_file())}},
    ):
        answer = ask("POST", fake=fake, **request)  # type: ignore[arg-type]
        assert state in refusal(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == "2"
    assert fake.transport.calls == []
    assert fake.transport.cancels == []


def test_a_model_that_did_not_load_at_the_start() -> None:
    fake = Fake()
    fake.more_status["missing"] = ("sam2",)
    named = CLICK | {"model": "sam2"}
    assert "failed to load on this server" in refusal(ask("POST", "/v1/segment", fake, json=named), 503, "unavailable")
    assert fake.transport.calls == []
    assert ask("POST", "/v1/segment", fake, json=CLICK).status_code == 200, "who names none gets another"
    assert fake.transport.calls[0].model != "sam2"
    fake.more_status["missing"] = ("another",)
    assert ask("POST", "/v1/segment", fake, json=named).status_code == 200


def test_a_lost_server_fails_requests_at_once() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> None:
        async with client_of(fake) as client:
            waiting = [asyncio.create_task(client.post("/v1/segment", json=CLICK)) for _ in range(5)]
            await fake.transport.reached(calls=5)
            await asyncio.to_thread(fake.lose, "the process of sam2 died")
            for answer in await asyncio.gather(*waiting):
                assert "the process of sam2 died" in refusal(answer, 503, "unavailable")
                assert answer.headers["retry-after"] == "2"
            refusal(await client.post("/v1/segment", json=CLICK), 503, "unavailable")
            assert len(fake.transport.calls) == 5
            fake.state = "ready"
            fake.transport.release()
            assert (await client.post("/v1/segment", json=CLICK)).status_code == 200
        assert fake.subscribers == []
        assert fake.transport.closed

    asyncio.run(run())


def test_a_disconnect_cancels_the_request() -> None:
    fake = Fake()
    fake.transport.hold()
    body = json.dumps({**CLICK, "session_id": "me"}).encode()
    head = b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body)
    with listening(fake) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(head + body)
            fake.transport.wait_for(lambda it: len(it.calls) == 1)
        fake.transport.wait_for(lambda it: len(it.cancels) == 1)
    [call], [cancel] = fake.transport.calls, fake.transport.cancels
    assert cancel.parameters["only"] == call.parameters["sequence"]
    assert cancel.parameters["session_id"] == call.parameters["session_id"]


def test_a_disconnect_while_sending(caplog: pytest.LogCaptureFixture) -> None:
    with listening(Fake()) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT) as connection:
            connection.sendall(b"POST /v1/segment HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{")
        url = f"http://127.0.0.1:{port}/metrics"
        with httpx.Client(timeout=TIMEOUT, trust_env=False) as client:
            while 'status="499"' not in client.get(url).text:
                pass
    assert caplog.records == []

"""Damaged requests: no fault of a client is taken for one of ours, and nothing dies of it.

A few hundred for every commit, always the same; ten thousand in `make test-all`, each refused within a second.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from websockets.sync.client import connect

from tests.faults.figures import record
from tests.faults.mutations import JSON, Sent, mutated, small_picture, valid_requests
from tests.faults.witness import Witness, sentence_of
from triton_sam.serving import RunningServer

pytestmark = [
    pytest.mark.triton,
    # The service is a thread of this very process, and its sockets draw the numbers of their pings.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies"),
]
FEW, MANY = 150, 10_000
IN_FULL = pytest.param(MANY, marks=[pytest.mark.part("mutations"), pytest.mark.timeout(3600)])
#: Seconds; a damaged image may still be one, and then it is encoded.
PATIENCE = 60.0
#: Triton's own status for a kind of prompt that this model does not take; the service says 422.
UNSUPPORTED = 501
#: What Triton itself says of a frame that it cannot read, before any model of ours is asked; 500 is its choice.
TRITONS_OWN = re.compile(r"Unable to parse '|failed to parse the request JSON buffer|.*: attempt to (access|get) ")


def exactly(count: int) -> settings:
    """The same ones every time; a failure is told with the smallest request that shows it."""
    return settings(
        max_examples=count, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@pytest.fixture(scope="module", params=[FEW, IN_FULL])
def examples(request: pytest.FixtureRequest) -> int:
    """How many damaged requests are sent to the service, at least."""
    return int(request.param)


@pytest.fixture(scope="module")
def witness(examples: int, server: RunningServer, photographs: Path) -> Iterator[Witness]:
    image = (photographs / "coffee.png").read_bytes()
    with httpx.Client(base_url=server.urls["service"], timeout=PATIENCE, trust_env=False) as client:
        yield Witness.of(server, client, image, in_full=examples == MANY)


def send(witness: Witness, sent: Sent) -> None:
    url = witness.running.urls["HTTP"] + sent.path if sent.straight else sent.path
    answer, seconds = witness.timed(
        lambda: witness.client.post(url, content=sent.body, headers={"Content-Type": sent.kind})
    )
    witness.note(f"{sent.path} {sent.body[:200]!r}", answer.status_code, seconds)
    if sent.straight and answer.status_code == 500:
        assert TRITONS_OWN.match(answer.json()["error"]), f"{sent} -> {answer.text}"
        return
    tritons_word = sent.straight and answer.status_code == UNSUPPORTED
    assert answer.status_code < 500 or tritons_word, f"{sent} -> {answer.text[:500]}"
    if answer.status_code >= 400:
        assert answer.json()["error"] if sent.straight else sentence_of(answer.content)


def test_valid_requests_are_answered(witness: Witness) -> None:
    """Or damage to them would show nothing."""
    key = witness.client.post("/v1/images", files={"image": small_picture()}).json()["image_key"]
    for sent in valid_requests(key):
        url = witness.running.urls["HTTP"] + sent.path if sent.straight else sent.path
        answer = witness.client.post(url, content=sent.body, headers={"Content-Type": sent.kind})
        unknown = b"0" * 40 in sent.body or b'"none"' in sent.body
        short = sent.path == "/from_model" and len(sent.body) < 1500
        assert answer.status_code == (404 if unknown else 400 if short else 200), (sent, answer.text)


def test_damaged_requests(witness: Witness, examples: int) -> None:
    key = witness.client.post("/v1/images", files={"image": small_picture()}).json()["image_key"]
    witness.statuses.clear()
    sent_so_far = straight = 0

    @exactly(examples * 5 // 4 + 50)  # some of them go straight to Triton
    @given(mutated(valid_requests(key)))
    def damaged(sent: Sent) -> None:
        nonlocal sent_so_far, straight
        send(witness, sent)
        sent_so_far += 1
        straight += sent.straight
        if sent_so_far % 500 == 0:
            witness.check()

    damaged()
    witness.check()
    assert sum(witness.statuses.values()) == sent_so_far
    assert sent_so_far - straight >= examples
    refused = sum(count for status, count in witness.statuses.items() if 400 <= status < 500)
    assert refused > examples / 3, "most damage must be noticed"
    if not witness.in_full:
        return
    failed = sum(count for status, count in witness.statuses.items() if status >= 500)
    seconds, what = witness.slowest_refusal
    figures = {
        "requests to the service": (sent_so_far - straight, "10,000"),
        "requests straight to Triton": (straight, ""),
        "answers by status": ({str(status): count for status, count in sorted(witness.statuses.items())}, ""),
        "5xx, all of Triton itself for a frame that it cannot read": (failed, "0 of the service"),
        "slowest refusal, seconds": (round(seconds, 2), "<= 1"),
        "slowest": (what[:60], ""),
        "slowest answer, seconds": (round(witness.slowest[0], 2), ""),
        "to": (witness.slowest[1][:60], ""),
        "the same processes, and none mended": (witness.is_intact, "True"),
    }
    record("mutations", "mutated requests to every route and to Triton's own (hypothesis)", figures)


def test_damaged_hovers(witness: Witness, examples: int) -> None:
    """Every message of a socket has its answer, whatever it is, and the socket stays open."""
    key = witness.client.post("/v1/images", files={"image": small_picture()}).json()["image_key"]
    message = {"id": 7, "image_key": key, "points": [[3, 4]], "labels": [1], "format": "rle"}
    valid = [Sent("/v1/hover", json.dumps(document).encode(), JSON) for document in (message, {**message, "id": "a"})]
    outcomes: Counter[str] = Counter()
    url = witness.running.urls["service"].replace("http", "ws", 1) + "/v1/hover"
    with connect(url, max_size=None, proxy=None) as socket:

        def ask(text: str) -> Any:
            socket.send(text)
            return json.loads(socket.recv(timeout=PATIENCE))

        @exactly(examples // 10)
        @given(mutated(valid))
        def damaged(sent: Sent) -> None:
            answer, seconds = witness.timed(lambda: ask(sent.body.decode("latin-1")))
            error = answer.get("error", {"code": "result", "type": ""})
            outcome = error["code"]
            assert error["type"] != "server_error" or outcome == "unsupported", f"{sent.body!r} -> {answer}"
            witness.note(f"{sent.body!r}", 200 if outcome == "result" else 400, seconds)
            outcomes[outcome] += 1

        damaged()
        assert "result" in ask(json.dumps(message))
    witness.check()
    assert sum(outcomes.values()) >= examples // 10
    assert outcomes["result"] < examples / 20, "most damage must be noticed"
    if not witness.in_full:
        return
    record(
        "mutations_hover",
        "mutated messages on the hover socket",
        {
            "messages, each with its answer": (sum(outcomes.values()), ""),
            "outcomes": (dict(sorted(outcomes.items())), ""),
            "the socket is open, and the next mask right": ("yes", "yes"),
        },
    )

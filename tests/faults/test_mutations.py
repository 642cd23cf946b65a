"""Thousands of damaged requests: no fault of a client is taken for one of ours, and nothing dies of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from tests.faults.forms import form, record
from tests.faults.mutations import Sent, mutated, small_picture, valid_requests
from tests.faults.unhurt import Stopwatch, Witness, sentence_of
from triton_sam.serving import Running

pytestmark = [pytest.mark.triton, pytest.mark.timeout(form(300, 3600))]
EXAMPLES = form(300, 10_000)
#: Seconds; a damaged image may still be one, and then it is encoded.
PATIENCE = 60.0
#: Seconds for a refusal; the bar is the long form's, which has the machine for itself.
WITHIN = form(10.0, 1.0)
#: The one 5xx that tells a client its fault: a kind of prompt that this model does not take.
UNSUPPORTED = 501
#: What Triton itself says of a frame that it cannot read, before any model of ours is asked; 500 is its choice.
TRITONS_OWN = re.compile(r"Unable to parse '|failed to parse the request JSON buffer|.*: attempt to (access|get) ")


@pytest.fixture(scope="module")
def witness(server: Running, photographs: Path) -> Iterator[Witness]:
    with httpx.Client(base_url=server.urls["service"], timeout=PATIENCE, trust_env=False) as client:
        yield Witness.of(server, client, (photographs / "coffee.png").read_bytes())


def send(witness: Witness, sent: Sent) -> None:
    url = witness.running.urls["HTTP"] + sent.path if sent.straight else sent.path
    watch = Stopwatch()
    answer = witness.client.post(url, content=sent.body, headers={"Content-Type": sent.kind})
    seconds = watch.seconds
    witness.note(f"{sent.path} {sent.body[:200]!r}", answer.status_code, seconds)
    assert seconds < WITHIN or answer.status_code < 400, f"{sent}: refused after {seconds:.2f} s"
    if sent.straight and answer.status_code == 500:
        assert TRITONS_OWN.match(answer.json()["error"]), f"{sent} -> {answer.text}"
        return
    assert answer.status_code < 500 or answer.status_code == UNSUPPORTED, f"{sent} -> {answer.text[:500]}"
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


def test_damaged_requests(witness: Witness) -> None:
    key = witness.client.post("/v1/images", files={"image": small_picture()}).json()["image_key"]
    witness.statuses.clear()
    sent_so_far = 0

    # The same ones every time; a failure is told with the smallest request that shows it.
    @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None, suppress_health_check=HealthCheck)
    @given(mutated(valid_requests(key)))
    def damaged(sent: Sent) -> None:
        nonlocal sent_so_far
        send(witness, sent)
        sent_so_far += 1
        if sent_so_far % 500 == 0:
            witness.check()

    damaged()
    witness.check()
    assert sum(witness.statuses.values()) >= EXAMPLES
    refused = sum(count for status, count in witness.statuses.items() if 400 <= status < 500)
    assert refused > EXAMPLES / 3, "most damage must be noticed"
    failed = sum(count for status, count in witness.statuses.items() if status >= 500)
    seconds, what = witness.slowest_refusal
    figures = {
        "requests": (sent_so_far, "10,000"),
        "answers by status": ({str(status): count for status, count in sorted(witness.statuses.items())}, ""),
        "5xx, all of Triton itself for a frame that it cannot read": (failed, "0 of the service"),
        "slowest refusal, seconds": (round(seconds, 2), "<= 1"),
        "slowest": (what[:60], ""),
        "slowest answer, an encode, seconds": (round(witness.slowest[0], 2), ""),
        "the same processes, and none mended": (witness.is_unhurt, "True"),
    }
    record("mutations", "mutated requests to every route and to Triton's own (hypothesis)", figures)

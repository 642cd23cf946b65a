"""Hostile requests through the service in front of the real Triton: each is refused, and nothing dies of it.

Every commit tries some of each kind; `make test-all` tries all, each within a second.
"""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from testkit.forms import BOUNDARY, FORM, form, part
from tests.faults import hostile_cases, hostile_images
from tests.faults.figures import record
from tests.faults.mutations import straight
from tests.faults.witness import REFUSED_WITHIN, SPOON, Witness, sentence_of
from triton_sam import SAM2TritonClient
from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
IN_FULL = pytest.param("all", marks=[pytest.mark.part("faults"), pytest.mark.also_part("faults-processes")])
#: For what is all or nothing.
only_in_full = pytest.mark.parametrize("witness", [IN_FULL], indirect=True)
JSON = "application/json"
WHERE = (part("x", b"365"), part("y", b"290"))
SIZE = (part("img_x", b"600"), part("img_y", b"400"))


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.urls["service"], timeout=60, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module", params=["some", IN_FULL])
def witness(
    request: pytest.FixtureRequest, server: RunningServer, client: httpx.Client, photographs: Path
) -> Iterator[Witness]:
    image = (photographs / "coffee.png").read_bytes()
    witness = Witness.of(server, client, image, in_full=request.param == "all")
    yield witness
    if not witness.in_full:
        return
    seconds, what = witness.slowest
    figures = {
        "requests refused": (sum(witness.statuses.values()), ""),
        "slowest refusal, seconds": (round(seconds, 3), "<= 1"),
        "slowest of all": (what, ""),
        "5xx": (sum(count for status, count in witness.statuses.items() if status >= 500), "0"),
        "the same processes, and none mended": (witness.is_intact, "True"),
    }
    record("hostile", "every hostile case through the service", figures)


@pytest.fixture(autouse=True)
def unhurt(witness: Witness) -> Iterator[None]:
    """Whatever a test sent: afterwards the same processes give the right mask."""
    yield
    witness.check()


def refused(witness: Witness, what: str, path: str, body: bytes, kind: str, *statuses: int, **headers: str) -> None:
    answer, seconds = witness.timed(
        lambda: witness.client.post(path, content=body, headers={"Content-Type": kind, **headers})
    )
    witness.note(f"{what} to {path}", answer.status_code, seconds)
    assert answer.status_code in (statuses or (400, 413)), f"{what}: {answer.status_code} {answer.text[:300]}"
    sentence_of(answer.content)


def each(cases: dict[str, bytes], witness: Witness, path: str, kind: str, *statuses: int) -> None:
    for what, body in cases.items():
        refused(witness, what, path, body, kind, *statuses)


def test_prompts(witness: Witness) -> None:
    cases = {what: text.encode() for what, text in hostile_cases.prompts(witness.image_key).items()}
    model = {what: cases.pop(what) for what in ("a model that climbs", "a key of 100 kB")}
    each(model, witness, "/v1/segment", JSON, 400, 404)
    each(cases, witness, "/v1/segment", JSON)
    if witness.in_full:
        each(hostile_cases.segment_bodies(witness.image_key), witness, "/v1/segment", JSON)


def test_a_prompt_is_refused_by_its_content_and_not_by_its_type(witness: Witness) -> None:
    for kind in ("text/plain", FORM, "application/x-www-form-urlencoded", "image/png", "x" * 3000, ";;;=", "a/b; q"):
        refused(witness, f"a body of type {kind[:20]}", "/v1/segment", b"points=1", kind)
        if "form" not in kind:
            refused(witness, f"a form of type {kind[:20]}", "/v1/images", form(*WHERE), kind)
    refused(witness, "JSON", "/v1/images", b"{}", JSON)


def test_a_prompt_that_the_model_does_not_take(witness: Witness) -> None:
    asked = json.dumps({"image_key": witness.image_key, "text": "a spoon"}).encode()
    refused(witness, "words for a model without words", "/v1/segment", asked, JSON, 422)


@only_in_full
def test_bodies_that_say_they_are_packed(witness: Witness) -> None:
    """Nothing is unpacked because a head says so."""
    good = json.dumps({"image_key": witness.image_key, "points": [SPOON]}).encode()
    for what, body in (("packed", gzip.compress(good)), ("a bomb", hostile_cases.gzip_bomb())):
        for encoding in ("gzip", "deflate", "br"):
            refused(witness, f"{what} as {encoding}", "/v1/segment", body, JSON, **{"Content-Encoding": encoding})


def test_what_triton_would_take(witness: Witness) -> None:
    """Tensors with shapes of their own are no affair of the service."""
    for shape in ([2**62], [-1], [10**9, 10**9], [0]):
        tensor = {"name": "image", "datatype": "UINT8", "shape": shape, "data": [1]}
        body = json.dumps({"inputs": [tensor]}).encode()
        refused(witness, f"the shape {shape}", "/v2/models/sam2/infer", body, JSON, 404, 405)


#: Prompts that no service has looked at: the model has to refuse them itself.
STRAIGHT = (
    *("a point at 1e308", "a point at 2^63", "a point of 4,000 digits", "NaN", "Infinity", "NaN in a box"),
    *("a mask of NaN", "a mask of 300 x 300", "a mask whose rows differ", "100,000 points", "10,000 objects"),
    *("labels of 2^70", "a field with a NUL", "100,000 brackets", "deep points"),
    *("a list", "a number", "nothing", "half a document", "two documents"),
)


def test_prompts_straight_to_triton(witness: Witness) -> None:
    cases = hostile_cases.prompts(witness.image_key)
    own = f'"image_key": "{witness.image_key}", '  # another tensor has it here
    for what in STRAIGHT:
        sent = straight(witness.image_key, cases[what].replace(own, "", 1))
        answer = witness.client.post(witness.running.urls["HTTP"] + sent.path, content=sent.body)
        assert answer.status_code in (400, 413), f"{what}: {answer.status_code} {answer.text[:300]}"
        assert "Traceback" not in answer.json()["error"], what


def test_images_straight_to_triton(witness: Witness) -> None:
    for scheme in ("HTTP", "gRPC"):
        with SAM2TritonClient(witness.running.urls[scheme]) as client:
            for what, file in hostile_images.heads().items():
                with pytest.raises((InvalidInput, TooLarge)) as refused:
                    client.set_image(file)
                assert "\n" not in str(refused.value), what


def test_messages_on_the_socket(witness: Witness) -> None:
    cases = hostile_cases.prompts(witness.image_key)
    cases |= {"an id of NaN": '{"id": NaN}', "an id of 10 kB": json.dumps({"id": "x" * 10_000})}
    url = witness.running.urls["service"].replace("http://", "ws://") + "/v1/hover"

    with connect(url, proxy=None) as hover:

        def ask(message: str | bytes) -> Any:
            hover.send(message)
            return json.loads(hover.recv(timeout=60))

        messages: list[tuple[str, str | bytes]] = [*cases.items(), ("bytes", b"\xff" * 1000), ("NULs", bytes(10))]
        for what, message in messages:
            answer, seconds = witness.timed(lambda message=message: ask(message))  # type: ignore[misc]
            witness.note(f"{what} on the socket", 400, seconds)
            assert "error" in answer, f"{what}: {str(answer)[:300]}"
            assert answer["error"]["code"] in ("invalid_input", "too_large", "not_found"), (what, answer)
            sentence_of(json.dumps({"error": answer["error"]}).encode())
        assert "result" in ask(json.dumps({"id": 1, "image_key": witness.image_key, "points": [SPOON]}))
    for bad in ("x" * 1_100_000, b"x" * 1_100_000):
        with connect(url, proxy=None) as hover:
            hover.send(bad)
            with pytest.raises(ConnectionClosed) as closed:
                hover.recv(timeout=60)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009


@only_in_full
@pytest.mark.parametrize("path", ["/v1/images", "/prediction", "/embedded_model", "/v1/preview"])
def test_images(witness: Witness, path: str) -> None:
    expect_no_image(witness, path, hostile_images.too_many_pixels() | hostile_images.damaged())


@pytest.mark.parametrize("witness", ["some"], indirect=True)
def test_heads_of_images(witness: Witness) -> None:
    """Far more pixels than are allowed, or fewer than are told, in a few bytes."""
    expect_no_image(witness, "/v1/images", hostile_images.heads())


def expect_no_image(witness: Witness, path: str, cases: dict[str, bytes]) -> None:
    def sent(cases: dict[str, bytes]) -> dict[str, bytes]:
        fields = WHERE if path == "/prediction" else ()
        return {what: form(part("image", body, "a.png"), *fields) for what, body in cases.items()}

    each(sent(cases), witness, path, FORM)


@only_in_full
def test_an_image_with_more_data_than_pixels_is_what_its_head_says(witness: Witness) -> None:
    body = form(part("image", hostile_images.overfull_png(), "a.png"))
    answer, seconds = witness.timed(
        lambda: witness.client.post("/v1/preview", content=body, headers={"Content-Type": FORM})
    )
    assert seconds < REFUSED_WITHIN
    assert answer.status_code == 400 or answer.headers["X-Image-Size"] == "64x64", answer.text


def test_embeddings(witness: Witness) -> None:
    text = witness.client.post("/embedded_model", files={"image": witness.image}).content
    cases = hostile_cases.embeddings(text) if witness.in_full else hostile_cases.small_embeddings(text)
    for what, body in cases.items():
        refused(witness, what, "/from_model", form(part("model", body, "m"), *WHERE, *SIZE), FORM, 400, 413)
    embedding = part("model", text, "m")
    for width, height in (
        (b"1000000000", b"1"),
        (b"99999", b"99999"),
        (b"0", b"0"),
        (b"-5", b"5"),
        (b"9" * 4000, b"1"),
    ):
        sizes = (part("img_x", width), part("img_y", height))
        refused(witness, f"a size of {width[:12]!r}", "/from_model", form(embedding, *WHERE, *sizes), FORM)


def test_forms(witness: Witness) -> None:
    picture = part("image", witness.image, "a.png")

    def numbers(x: bytes) -> bytes:
        return form(picture, part("x", x), part("y", b"290"))

    for x in (b"NaN", b"inf", b"-Infinity", b"1e5", b"0x10", b"9" * 4000, b"365\0", b"\xff\xfe", b"365.5", b"\xd9\xa3"):
        refused(witness, f"x={x[:12]!r}", "/prediction", numbers(x), FORM)
    good = form(picture, *WHERE)
    cases = {
        "a field twice": form(picture, *WHERE, part("x", b"1")),
        "an image twice": form(picture, picture, *WHERE),
        "a file and a field of one name": form(picture, part("image", b"text"), *WHERE),
        "a file for a number": form(picture, part("x", b"365", "x.txt"), part("y", b"290")),
        "a name with a NUL": form(picture, part("x\0", b"365"), part("y", b"290")),
        "a name of bad UTF-8": good.replace(b'name="x"', b'name="\xff\xfe"'),
        "1,000 fields": form(picture, *(part(f"f{number}", b"") for number in range(1000))),
        "no end": good[: -len(BOUNDARY) - 10],
        "cut in a head": good[:60],
        "cut in the image": good[:5000],
        "no disposition": good.replace(b"Content-Disposition", b"Content-Nothing"),
        "a head of 1 MB": good.replace(b"form-data", b"form-data; a=" + b"x" * 1_000_000),
        "1,000 heads": good.replace(b"Content-D", b"A: b\r\n" * 1000 + b"Content-D", 1),
        "nothing": b"",
        "another frontier": good.replace(BOUNDARY.encode(), b"another"),
    }
    each(cases, witness, "/prediction", FORM)
    for kind in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "b" * 9000,
    ):
        refused(witness, f"a type {kind[19:40]!r}", "/prediction", good, kind)
    for session in (b"a\0b", b"\x1b[2J", b"s" * 4000, b"\xff\x00"):
        fields = form(picture, part("session_id", session))
        refused(witness, f"a session {session[:10]!r}", "/embedded_model", fields, FORM)
        refused(witness, f"a session {session[:10]!r}", "/cancel_pending", fields, FORM)
    twice = b"session_id=a&session_id=b"
    refused(witness, "a session twice", "/cancel_pending", twice, "application/x-www-form-urlencoded")
    refused(witness, "two sessions in the query", "/cancel_pending?" + twice.decode(), b"", JSON)
    refused(witness, "a session with a NUL", "/cancel_pending?session_id=a%00b", b"", JSON)


def test_paths(witness: Witness) -> None:
    for path in ("/v1/segment%00", "/%00", "/v1/images/%2e%2e/%00", "/samples/%00", "/samples/..%2f..%2fetc%2fpasswd"):
        refused(witness, path, path, b"{}", JSON, 404, 405)
        answer = witness.client.get(path)
        assert answer.status_code == 404, path
        sentence_of(answer.content)
    assert witness.client.get("/v1/models/%00").status_code == 404
    assert witness.client.get("/app/%00").status_code == 404
    assert witness.client.get("/new_session_id?" + "a=b&" * 10_000).status_code == 200


def raw(witness: Witness, request: bytes, *, half_close: bool = False) -> tuple[int, bytes, float]:
    """(status, body, seconds) of what a socket answers before it closes; status 0 where it says nothing."""
    (status, body), seconds = witness.timed(lambda: _raw(witness, request, half_close))
    return status, body, seconds


def _raw(witness: Witness, request: bytes, half_close: bool) -> tuple[int, bytes]:
    address = urlsplit(witness.running.urls["service"])
    received = b""
    with socket.create_connection((address.hostname, address.port or 80), timeout=60) as connection:
        try:
            connection.sendall(request)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            while not whole(received) and (data := connection.recv(65536)):
                received += data
        except ConnectionError:  # closed while we still send; what it said before counts
            pass
    top, _, body = received.partition(b"\r\n\r\n")
    return int(top.split()[1]) if top else 0, body


def whole(answer: bytes) -> bool:
    """Whether an answer has as many bytes as it says."""
    top, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", top)
    return bool(end) and length is not None and len(body) >= int(length[1])


def head(*lines: str, path: str = "/v1/segment") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: here", "Connection: close", *lines, "", ""]).encode("latin-1")


def test_heads(witness: Witness) -> None:
    """Those that are no HTTP are answered as plain text; the others in the usual shape."""
    long = "x" * 2_000_000
    for what, request in {
        "a length of 10^18": head("Content-Length: " + "1" + "0" * 18),
        "a length of 5,000 digits": head("Content-Length: " + "9" * 5000),
        "a negative length": head("Content-Length: -1"),
        "a length that is none": head("Content-Length: many"),
        "two lengths": head("Content-Length: 2", "Content-Length: 200") + b"{}",
        "a length and chunks": head("Content-Length: 2", "Transfer-Encoding: chunked") + b"{}",
        "a NUL in a head": head("X-Name: a\0b", "Content-Length: 2") + b"{}",
        "a NUL in the path": head("Content-Length: 2", path="/v1/\0segment") + b"{}",
        "a head of 2 MB": head(f"X-Name: {long}", "Content-Length: 2") + b"{}",
        "an address of 2 MB": head("Content-Length: 2", path=f"/{long}") + b"{}",
        "100,000 heads": head(*["A: b"] * 100_000, "Content-Length: 2") + b"{}",
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        "chunks that are none": head("Transfer-Encoding: chunked") + b"ZZ\r\n{}\r\n0\r\n\r\n",
        "a chunk of 2^64": head("Transfer-Encoding: chunked") + b"FFFFFFFFFFFFFFFFF\r\n{}\r\n",
        "another coding": head("Transfer-Encoding: gzip", "Content-Length: 2") + b"{}",
        "an odd request id": head("X-Request-ID: \x01\x02", "Content-Length: 2") + b"{}",
    }.items():
        status, body, seconds = raw(witness, request)
        witness.note(what, status, seconds)
        assert 400 <= status < 500, f"{what}: {status} {body[:200]!r}"
        assert len(body) > 10, what


def test_lengths_that_lie(witness: Witness) -> None:
    """Whoever promises more than comes and hangs up needs no answer; more than promised is no request."""
    for promised in (3, 1000, 90_000_000):
        status, _, seconds = raw(witness, head(f"Content-Length: {promised}") + b"{}", half_close=True)
        assert status < 500
        assert not witness.in_full or seconds < REFUSED_WITHIN
    keeps = head("Content-Length: 2").replace(b"Connection: close\r\n", b"")
    status, _, seconds = raw(witness, keeps + b"{}{}{}{}\r\n\r\n")
    assert status == 400
    assert not witness.in_full or seconds < REFUSED_WITHIN


@only_in_full
def test_a_million_chunks_of_one_byte(witness: Witness) -> None:
    """The embedded Triton dies of these; they never come to it."""
    chunks = b"1\r\n \r\n" * 1_000_000 + b"0\r\n\r\n"
    for path in ("/v1/segment", "/v1/images"):
        status, body, seconds = raw(
            witness, head("Transfer-Encoding: chunked", f"Content-Type: {FORM}", path=path) + chunks
        )
        witness.note(f"a million chunks to {path}", status, seconds)
        assert 400 <= status < 500
        sentence_of(body)

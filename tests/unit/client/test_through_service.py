"""The blocking client through a real service on loopback: the same results and errors as by Triton's protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.test_service_secured import throw_away_certificate
from tests.unit.client.memory_server import MemoryServer
from tests.unit.service.helpers import Fake, FakeTransport, image_file, listening
from triton_sam import SAM2TritonClient
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    NotAuthorised,
    NotFound,
    QueueFull,
    RateLimited,
    ServerUnreachable,
    TooLarge,
    TritonSamError,
    Unavailable,
    Unsupported,
)
from triton_sam.server.host import free_port
from triton_sam.service.uvicorn_thread import ServiceThread
from triton_sam.settings import get_settings

TOKEN = "a-long-word-for-alice"
PICTURE = image_file(11, 5)
CLICKS: dict[str, dict[str, Any]] = {
    "point": {"points": [[3, 2]], "labels": [1]},
    "three": {"points": [[3, 2], [4, 1]], "labels": [1, 0], "multimask": True},
    "box": {"box": [1, 1, 9, 4]},
    "objects": {"objects": [{"points": [[1, 1]]}, {"box": [1, 1, 9, 4]}], "multimask": True},
}


@pytest.fixture
def memory() -> MemoryServer:
    return MemoryServer()


def fake_of(memory: MemoryServer) -> Fake:
    return Fake(FakeTransport(memory.infer))


@contextlib.contextmanager
def service(memory: MemoryServer, scheme: str = "http", **settings: Any) -> Iterator[str]:
    """The address of a real service in front of a server in memory."""
    with listening(fake_of(memory), **settings) as port:
        yield f"{scheme}://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, str]]:
    fake = Fake()
    with listening(fake) as port:
        yield fake, f"http://127.0.0.1:{port}"


@pytest.fixture
def url(shared: tuple[Fake, str], memory: MemoryServer) -> str:
    """The address of a service that all tests share, in front of this test's server."""
    fake, address = shared
    fake.transport.answer = memory.infer
    return address


@pytest.fixture
def both(memory: MemoryServer, url: str) -> Iterator[tuple[SAM2TritonClient, SAM2TritonClient]]:
    """One image in two clients: without a network, and through the service."""
    with SAM2TritonClient(url) as through, SAM2TritonClient(transport=memory) as straight:
        assert through.set_image(PICTURE) == straight.set_image(PICTURE)
        yield straight, through


@pytest.mark.parametrize("form", ["bits", "png", "rle", "polygon"])
@pytest.mark.parametrize("click", CLICKS)
def test_masks(click: str, form: str, both: tuple[SAM2TritonClient, SAM2TritonClient]) -> None:
    straight, through = (client.segment(**CLICKS[click], format=form) for client in both)
    assert straight.result == through.result
    assert straight.encoded == through.encoded
    assert np.array_equal(straight.scores, through.scores)
    assert straight.timings_ms == through.timings_ms
    if form != "polygon":
        expected, found = straight.masks, through.masks
        assert np.array_equal(expected.masks, found.masks)
        assert np.array_equal(expected.scores, found.scores)
        assert np.array_equal(expected.objects, found.objects)


@pytest.mark.parametrize("multimask", [False, True])
def test_logits_come_back_and_go_in_again(multimask: bool, both: tuple[SAM2TritonClient, SAM2TritonClient]) -> None:
    straight, through = (client.predict([[3, 2]], [1], multimask_output=multimask) for client in both)
    for expected, found in zip(straight, through, strict=True):
        assert (expected.shape, expected.dtype) == (found.shape, found.dtype)
        assert np.array_equal(expected, found)
        assert found.flags.writeable
    logits = through[0][:, :1]
    again = [client.predict([[3, 2]], [1], mask_input=logits[0]) for client in both]
    assert np.array_equal(again[0][0], again[1][0])


def test_what_goes_with_a_request(memory: MemoryServer, url: str) -> None:
    with (
        SAM2TritonClient(url, session_id="tab 7", request_id=lambda: "mine") as client,
        SAM2TritonClient(url, session_id="tab 7") as other,
    ):
        client.set_image(PICTURE)
        client.segment([[1, 1]])
        other.set_image(PICTURE)
    encode, click, third = memory.calls
    assert encode.request_id == click.request_id == "mine"
    sessions = {str(call.parameters["session_id"]) for call in memory.calls}
    assert {name.partition("/")[2] for name in sessions} == {"user/tab 7"}
    assert third.request_id != "mine"


@pytest.mark.parametrize(
    "raised",
    [
        InvalidInput("no"),
        TooLarge("too much"),
        Unsupported("not here"),
        QueueFull("full"),
        Unavailable("loading"),
        Cancelled("gone"),
        NotFound("no such thing"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_have_their_class_and_sentence(raised: TritonSamError, memory: MemoryServer, url: str) -> None:
    with SAM2TritonClient(url, retries=0) as client:
        client.set_image(PICTURE)
        memory.failures = [raised]
        with pytest.raises(TritonSamError) as caught:
            client.segment([[1, 1]])
    if type(raised) is NotFound:
        assert str(caught.value).startswith("this server does not serve sam2, but sam2.1_large, sam2, sam3")
    else:
        assert (type(caught.value), str(caught.value)) == (type(raised), str(raised))


@pytest.mark.parametrize(
    ("raised", "kind"),
    [(InternalError("secret"), InternalError), (DeadlineExceeded("late"), DeadlineExceeded)],
    ids=["internal", "late"],
)
def test_the_service_says_nothing_of_its_insides(
    raised: TritonSamError, kind: type[TritonSamError], memory: MemoryServer, url: str
) -> None:
    with SAM2TritonClient(url) as client:
        client.set_image(PICTURE)
        memory.failures = [raised]
        with pytest.raises(kind) as caught:
            client.predict([[1, 1]])
    assert "secret" not in str(caught.value)


def test_an_expired_image_is_sent_again_once(memory: MemoryServer, url: str, pauses: list[float]) -> None:
    with SAM2TritonClient(url) as client:
        client.set_image(PICTURE)
        memory.images.clear()
        assert client.segment([[1, 1]]).masks
        assert memory.kinds == ["encode", "click", "encode", "click"]
        memory.failures = [ImageExpired("gone"), Unavailable("busy")]
        assert client.segment([[1, 1]]).masks
        assert len(pauses) == 1
        assert pauses[0] >= 2, "the service's Retry-After"


def test_a_server_that_is_restarted_under_a_client(memory: MemoryServer) -> None:
    """The kept connection is dead, and the new server has no image."""
    port = free_port()
    with SAM2TritonClient(f"http://127.0.0.1:{port}") as client:
        with ServiceThread(fake_of(memory).app(), "127.0.0.1", port):
            client.set_image(PICTURE)
            before = client.segment([[1, 1]])
        with pytest.raises(ServerUnreachable, match="triton-sam serve"):
            client.segment([[1, 1]])
        new = MemoryServer()
        with ServiceThread(fake_of(new).app(), "127.0.0.1", port):
            assert client.segment([[1, 1]]).result == before.result
        assert new.kinds == ["click", "encode", "click"]


# tokens, rates, TLS


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    get_settings.cache_clear()
    yield monkeypatch
    get_settings.cache_clear()


def test_the_token_by_argument_by_header_and_by_the_settings(
    memory: MemoryServer, own_settings: pytest.MonkeyPatch
) -> None:
    with service(memory, token=TOKEN) as url:
        for options in ({"token": TOKEN}, {"headers": {"Authorization": f"Bearer {TOKEN}"}}):
            with SAM2TritonClient(url, **options) as client:  # type: ignore[arg-type]
                assert client.is_ready()
                client.set_image(PICTURE)
        with SAM2TritonClient(url) as client:
            assert not client.is_ready()
            with pytest.raises(NotAuthorised, match=r"requires a token: give token= or --token, or set TRITON_SAM_TOK"):
                client.set_image(PICTURE)
        with SAM2TritonClient(url, token="another-long-word") as client, pytest.raises(NotAuthorised) as caught:
            client.set_image(PICTURE)
        assert "does not accept this token" in str(caught.value)
        assert "another" not in str(caught.value)
        own_settings.setenv("TRITON_SAM_TOKEN", TOKEN)
        get_settings.cache_clear()
        with SAM2TritonClient(url) as client:
            client.set_image(PICTURE)


@pytest.mark.parametrize("options", [{"token": "größe"}, {"token": " "}, {"token": "x\ny"}])
def test_tokens_that_no_header_can_have(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="printable ASCII"):
        SAM2TritonClient("localhost:1", **options)
    with pytest.raises(InvalidInput, match="not both"):
        SAM2TritonClient("localhost:1", token="word", headers={"authorization": "Bearer other"})


def limited(folder: Path, per_minute: float) -> dict[str, Any]:
    tokens = folder / "tokens"
    tokens.write_text(f"alice {TOKEN} {per_minute} 2\n")
    tokens.chmod(0o600)
    return {"tokens_file": tokens}


def test_a_rate_limit_is_waited_for(memory: MemoryServer, tmp_path: Path, pauses: list[float]) -> None:
    with service(memory, **limited(tmp_path, 6)) as url, SAM2TritonClient(url, token=TOKEN, retries=1) as client:
        client.set_image(PICTURE)  # the question what answers has taken the other one
        with pytest.raises(RateLimited) as caught:
            client.segment([[1, 1]])
        assert isinstance(caught.value, Unavailable)
        assert caught.value.retry_after is not None
        assert 5 <= caught.value.retry_after <= pauses[0] <= 11
        assert len(pauses) == 1


def test_a_longer_wait_than_the_timeout_is_not_begun(memory: MemoryServer, tmp_path: Path, pauses: list[float]) -> None:
    with service(memory, **limited(tmp_path, 1)) as url, SAM2TritonClient(url, token=TOKEN, timeout=20) as client:
        client.set_image(PICTURE)
        with pytest.raises(RateLimited):
            client.segment([[1, 1]])
    assert pauses == []


def test_a_certificate_authority_of_ones_own(
    memory: MemoryServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = throw_away_certificate(tmp_path)
    with service(memory, "https", tls_certificate=certificate, tls_key=key, token=TOKEN) as url:
        with SAM2TritonClient(url, token=TOKEN) as client, pytest.raises(ServerUnreachable, match="certificate"):
            client.set_image(PICTURE)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with SAM2TritonClient(url, token=TOKEN) as client:
            client.set_image(PICTURE)
            assert client.segment([[1, 1]]).masks


def test_background_goes_with_every_request(memory: MemoryServer, url: str) -> None:
    with SAM2TritonClient(url, background=True) as client:
        client.set_image(PICTURE)
        client.segment([[1, 1]])
    assert [call.parameters["background"] for call in memory.calls] == [True, True]

"""The blocking and the asyncio client send the same requests in the same situations, and offer the same arguments."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import numpy as np
import pytest

from tests.unit.client.memory_server import PICTURE, Forgetful, MemoryServer, Outputs
from tests.unit.fake_server import FakeAsyncTransport, FakeTransport
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client import core
from triton_sam.client.core import retry_pause
from triton_sam.client.wire import Call
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.errors import ImageExpired, InvalidInput, NotFound, TritonSamError, Unavailable

NAMED = {"x-image-key": sha256(PICTURE).hexdigest()}
RETRIES = 2


class AsyncSide:
    """The asyncio transport of a server in memory."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    async def infer(self, call: Call) -> Outputs:
        return self._server.infer(call)

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        pass


class Client(Protocol):
    def set_image(self, image: bytes) -> object: ...

    def predict(self, x: float) -> Any: ...

    def segment(self, x: float) -> Any: ...

    def close(self) -> None: ...


class Blocking:
    def __init__(self, server: MemoryServer, **options: Any) -> None:
        self._client = SAM2TritonClient(transport=server, retries=RETRIES, **options)
        self.set_image, self.close = self._client.set_image, self._client.close

    def predict(self, x: float) -> Any:
        return self._client.predict([[x, 1]], [1], multimask_output=True)

    def segment(self, x: float) -> Any:
        return self._client.segment([[x, 1]], [1])


class Speculative:
    def __init__(self, server: MemoryServer, **options: Any) -> None:
        self._client = SpeculativeSAM2Client(
            transport=server,
            async_transport=AsyncSide(server),  # type: ignore[arg-type]
            retries=RETRIES,
            **options,
        )
        self.set_image, self.close = self._client.set_image, self._client.close

    def predict(self, x: float) -> Any:
        return asyncio.run(self._client.predict_async([[x, 1]], [1], multimask_output=True))

    def segment(self, x: float) -> Any:
        return asyncio.run(self._client.segment_async([[x, 1]], [1]))


def fresh(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    client.predict(1)
    client.segment(2)


def expired_once(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    server.images.clear()
    client.segment(1)
    client.segment(2)


def expired_twice(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    server.images = Forgetful()
    client.predict(1)


def busy_then_fine(client: Client, server: MemoryServer) -> None:
    server.failures = [Unavailable("busy")]
    client.set_image(PICTURE)
    server.failures = [Unavailable("busy"), Unavailable("busy")]
    client.predict(1)


def busy_for_long(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    server.failures = [Unavailable("busy") for _ in range(9)]
    client.predict(1)


def busy_while_it_is_encoded_again(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    server.failures = [ImageExpired("gone"), Unavailable("busy")]
    client.predict(1)


def renamed(client: Client, server: MemoryServer) -> None:
    """The server's default changes: ``sam2`` is another model from then on."""
    client.set_image(PICTURE)
    server.models = {"sam2": "sam2.1:large", "sam2_tiny": "sam2:tiny"}
    server.images.clear()
    client.predict(1)


def renamed_away(client: Client, server: MemoryServer) -> None:
    client.set_image(PICTURE)
    server.models = {"sam2": "sam2.1:large"}
    server.images.clear()
    client.predict(1)


@dataclass(frozen=True)
class Scenario:
    """
    Attributes:
        calls: what the server receives: kind of request and model.
        looked_up: the models whose parameters are read, in order.
    """

    script: Callable[[Client, MemoryServer], None]
    calls: list[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    looked_up: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=lambda: NAMED)
    error: type[TritonSamError] | None = None


SCENARIOS = {
    "a fresh image": Scenario(fresh, ["encode sam2", "click sam2", "click sam2"]),
    "expired once": Scenario(expired_once, ["encode sam2", "click sam2", "encode sam2", "click sam2", "click sam2"]),
    "expired twice": Scenario(
        expired_twice, ["encode sam2", "click sam2", "encode sam2", "click sam2"], error=ImageExpired
    ),
    "busy, then fine": Scenario(
        busy_then_fine, ["encode sam2", "encode sam2", "click sam2", "click sam2", "click sam2"]
    ),
    "busy for long": Scenario(busy_for_long, ["encode sam2"] + ["click sam2"] * (1 + RETRIES), error=Unavailable),
    "busy while it is encoded again": Scenario(
        busy_while_it_is_encoded_again, ["encode sam2", "click sam2", "encode sam2", "encode sam2", "click sam2"]
    ),
    "an id is looked up": Scenario(
        fresh, ["encode sam2", "click sam2", "click sam2"], {"model_type": "sam2:tiny"}, ["sam2_tiny", "sam2"]
    ),
    "an id that is not served": Scenario(
        fresh, [], {"model_type": "sam2.1:large"}, ["sam2.1_large", "sam2"], error=NotFound
    ),
    "an id is renamed": Scenario(
        renamed,
        ["encode sam2", "click sam2", "encode sam2", "encode sam2_tiny", "click sam2_tiny"],
        {"model_type": "sam2:tiny"},
        ["sam2_tiny", "sam2", "sam2_tiny"],
    ),
    "an id is no longer served": Scenario(
        renamed_away,
        ["encode sam2", "click sam2", "encode sam2"],
        {"model_type": "sam2:tiny"},
        ["sam2_tiny", "sam2", "sam2_tiny", "sam2"],
        error=NotFound,
    ),
    "the user's own header": Scenario(
        expired_once,
        ["encode sam2", "click sam2", "encode sam2", "click sam2", "click sam2"],
        {"headers": {"X-Image-Key": "mine"}},
        headers={},  # the transport sends the user's headers
    ),
}


def described(call: Call) -> dict[str, Any]:
    """A call as it can be compared; parameters differ, because only one client numbers its requests."""
    inputs = {name: (str(array.dtype), array.shape, array.tolist()) for name, array in call.inputs.items()}
    return {
        "model": call.model,
        "inputs": inputs,
        "outputs": list(call.outputs),
        "headers": dict(call.headers),
        "request_id": call.request_id,
    }


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS.keys())
def test_both_clients_send_the_same(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(core, "retry_pause", lambda attempt: pauses.append(attempt) or 0.0)
    sent, paused = [], []
    for kind in (Blocking, Speculative):
        server = MemoryServer()
        expected = pytest.raises(scenario.error) if scenario.error else contextlib.nullcontext()
        with contextlib.closing(kind(server, **scenario.options)) as client, expected:
            scenario.script(client, server)
        names = [f"{name} {call.model}" for name, call in zip(server.kinds, server.calls, strict=True)]
        assert names == scenario.calls
        assert server.asked == scenario.looked_up
        assert all(call.headers == scenario.headers for call in server.calls)
        sent.append([described(call) for call in server.calls])
        paused.append(pauses.copy())
        pauses.clear()
    assert sent[0] == sent[1]
    assert paused[0] == paused[1]


def test_both_clients_return_the_same() -> None:
    results = []
    for kind in (Blocking, Speculative):
        with contextlib.closing(kind(MemoryServer())) as client:
            client.set_image(PICTURE)
            results.append((*client.predict(3), client.segment(4)))
    (logits, scores, found), (other_logits, other_scores, other_found) = results
    assert np.array_equal(logits, other_logits)
    assert np.array_equal(scores, other_scores)
    assert logits.flags.writeable
    assert other_logits.flags.writeable
    assert type(found) is type(other_found)
    assert found.result == other_found.result
    assert np.array_equal(found.masks.masks, other_found.masks.masks)


def test_both_clients_send_a_chosen_channel_as_a_picture() -> None:
    values = np.arange(2 * 20 * 30, dtype=np.uint16).reshape(20, 30, 2)
    expected = chosen_bytes(values, ImageChoice(channel=1, window=(100, 900)))
    for kind in (Blocking, Speculative):
        server = MemoryServer()
        with contextlib.closing(kind(server)) as client:
            client.set_image(values, channel=1, window=(100, 900))
            with pytest.raises(InvalidInput, match="2 channels"):
                client.set_image(values)
        assert [call.inputs["image"].tobytes() for call in server.calls] == [expected]


# signatures


#: Blocking method -> (asyncio method, parameters that only the blocking one has, only the asyncio one).
METHODS = {
    "__init__": (
        "__init__",
        {"session_id", "request_id"},
        {"latest_wins", "max_in_flight", "max_in_air"},
    ),
    "set_image": ("set_image", set(), set()),
    "predict": ("predict_async", set(), {"session_id"}),
    "segment": ("segment_async", set(), {"session_id"}),
    "everything": ("everything_async", set(), {"session_id"}),
    "close": ("close", set(), set()),
}


@pytest.mark.parametrize("name", METHODS)
def test_the_arguments_of_both_clients(name: str) -> None:
    """Names, defaults and types are equal; the asyncio client takes some of them by name only."""
    other_name, only_blocking, only_asyncio = METHODS[name]
    blocking = dict(inspect.signature(getattr(SAM2TritonClient, name)).parameters)
    asyncio_ = dict(inspect.signature(getattr(SpeculativeSAM2Client, other_name)).parameters)
    assert set(blocking) - set(asyncio_) == only_blocking
    assert set(asyncio_) - set(blocking) == only_asyncio
    for parameter in blocking.keys() & asyncio_.keys():
        assert blocking[parameter].default == asyncio_[parameter].default, parameter
        assert blocking[parameter].annotation == asyncio_[parameter].annotation, parameter


def test_the_former_name_of_max_in_flight() -> None:
    with pytest.warns(DeprecationWarning, match="use max_in_flight"):
        client = SpeculativeSAM2Client(transport=FakeTransport(), async_transport=FakeAsyncTransport(), max_in_air=7)
    assert client._dispatcher._window._max_in_flight == 7
    client.close()


# cancels


async def received(semaphore: Any) -> None:
    assert await asyncio.get_running_loop().run_in_executor(None, lambda: semaphore.acquire(timeout=10))


@pytest.mark.parametrize("headers", [None, {"X-Image-Key": "mine"}], ids=["by itself", "the user's own"])
def test_a_cancel_has_the_image_of_its_requests(headers: Mapping[str, str] | None) -> None:
    """So it reaches the server that has them: one message for each image."""
    pictures = [b"one", b"two"]

    async def body() -> list[Mapping[str, str]]:
        server = FakeAsyncTransport(held=True)
        client = SpeculativeSAM2Client(transport=FakeTransport(), async_transport=server, headers=headers)
        tasks = []
        for picture in pictures:
            client.set_image(picture)
            tasks += [asyncio.create_task(client.predict_async([[x, 1]], [1], "s")) for x in range(2)]
            for _ in range(2):
                await received(server.arrived)
        assert client.cancel_session_requests("s", keep_latest=False) == 4
        assert await asyncio.gather(*tasks) == [None] * 4
        await client.aclose()
        return server.cancel_headers

    sent = asyncio.run(asyncio.wait_for(body(), 20))
    if headers is None:
        assert {header["x-image-key"] for header in sent} == {sha256(picture).hexdigest() for picture in pictures}
        assert len(sent) == 2
    else:
        assert sent == [{}], "the transport sends the user's headers"


def test_the_cancel_of_an_encode_has_its_image() -> None:
    async def body() -> None:
        server, blocking = FakeAsyncTransport(), FakeTransport()
        client = SpeculativeSAM2Client(transport=blocking, async_transport=server)
        blocking.gate.clear()
        client.set_image(PICTURE)
        assert await asyncio.get_running_loop().run_in_executor(None, lambda: blocking.arrived.wait(10))
        client.set_image(b"the next one")
        await received(server.told)
        blocking.gate.set()
        await client.aclose()
        assert [call.headers for call in blocking.encodes][:1] == [NAMED]
        assert server.cancel_headers[0] == NAMED

    asyncio.run(asyncio.wait_for(body(), 20))


def test_an_image_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    original = core.wire.image_headers
    monkeypatch.setattr(core.wire, "image_headers", lambda data: hashed.append(data) or original(data))
    for kind in (Blocking, Speculative):
        server = MemoryServer()
        with contextlib.closing(kind(server)) as client:
            expired_once(client, server)
    assert hashed == [PICTURE, PICTURE], "once by each client"


def test_a_client_may_retry_for_hours() -> None:
    """2 ** 1100 is no float."""
    assert 4.0 <= retry_pause(1100) <= 4.25


@pytest.mark.parametrize("kind", [Blocking, Speculative])
@pytest.mark.parametrize("background", [True, False])
def test_background_goes_with_every_request(kind: type[Blocking | Speculative], background: bool) -> None:
    server = MemoryServer()
    client = kind(server, background=background)
    expired_once(client, server)
    client.close()
    assert len(server.calls) == 5
    assert {call.parameters.get("background", False) for call in server.calls} == {background}

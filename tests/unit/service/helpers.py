"""The service without a server: a transport that records what comes and answers as a segmenter would."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from fastapi import FastAPI
from PIL import Image

from tests.unit import everything_messages
from triton_sam.client.dispatch import Outputs
from triton_sam.client.wire import Call, text_tensor
from triton_sam.core import masks
from triton_sam.errors import Cancelled
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL, get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.models.vlm_specs import Adapter, Task, VlmSpec
from triton_sam.server.host import free_port
from triton_sam.service.app import create_app
from triton_sam.service.upstream import Upstream
from triton_sam.service.uvicorn_thread import ServiceThread
from triton_sam.settings import Settings

SPEC = CATALOG[DEFAULT_MODEL]
SEGMENTERS = {
    "sam2.1_large": CATALOG["sam2.1:large"],
    "sam2": SPEC,
    # Set up without what finds words.
    "sam3": replace(get_spec("sam3:full"), prompts=SPEC.prompts),
}
VLMS = {
    name: VlmSpec(
        f"vlm:{name}",
        f"The title of {name}",
        "MIT",
        Adapter.CHAT,
        None,
        1,
        1.0,
        chats=chats,
        grounds=bool(tasks),
        tasks=tasks,
    )
    for name, chats, tasks in (
        ("talker", True, ()),
        ("single", False, ()),
        ("finder", False, (Task.DETECT, Task.GROUND)),
    )
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}
ENTITIES = [{"phrase": "cat", "start": 2, "end": 5, "boxes": [[0.0, 1.0, 2.0, 3.0]]}]
REGIONS = [{"label": "cat", "box": [0.0, 1.0, 2.0, 3.0]}, {"label": "dog", "point": [5.0, 3.0]}]
WIDTH, HEIGHT = 6, 4
KEY = "a" * 64
MASK = masks.png(np.eye(HEIGHT, WIDTH, dtype=np.bool_))
EMBEDDING = np.linspace(-1, 1, 256 * 64 * 64, dtype=np.float32).reshape(1, 256, 64, 64)
CLICK = {"image_key": KEY, "points": [[3, 2]]}
TIMEOUT = 20.0


def image_file(width: int = WIDTH, height: int = HEIGHT) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), "red").save(buffer, "PNG")
    return buffer.getvalue()


def result(**more: Any) -> dict[str, Any]:
    """A result_json."""
    head = {
        "image_key": KEY,
        "model": SPEC.id,
        "model_version": "1",
        "encoder": "8-bit",
        "timings_ms": {"total": 1.5},
    }
    return head | {"width": WIDTH, "height": HEIGHT} | more


def mask_result() -> dict[str, Any]:
    mask = {"encoding": "png", "width": WIDTH, "height": HEIGHT, "data": base64.b64encode(MASK).decode()}
    return result(mask=mask, score=0.9, masks=[mask | {"score": 0.9, "object": 0}])


def _text(document: Any) -> npt.NDArray[Any]:
    return np.array([json.dumps(document).encode()], dtype=object)


def answer_as_a_segmenter(call: Call) -> Outputs:
    if "embedding" in call.outputs:
        shape = dict(SEGMENTERS[call.model].encoder.outputs)[SEGMENTERS[call.model].encoder.embedding]
        return {"embedding": EMBEDDING if shape == EMBEDDING.shape else np.zeros(shape, np.float32)}
    return {"result_json": _text(mask_result() if "prompt_json" in call.inputs else result())}


def piece(text: str, finish: str = "", **more: Any) -> Outputs:
    """One of a stream; the last one has a reason to finish."""
    last = {"usage_json": USAGE, **more} if finish else {}
    found = {"generated_text": text_tensor(text), "finish_reason": text_tensor(finish)}
    return found | {name: _text(value) for name, value in last.items()}


def answer_as_a_vlm(call: Call) -> Iterable[Outputs | Exception]:
    yield piece("a ")
    yield piece("cat")
    documents = {"entities_json": ENTITIES, "regions_json": REGIONS}
    yield piece(".", "stop", **{name: documents[name] for name in documents if name in call.outputs})


def answer_as_a_stream(call: Call) -> Iterable[Outputs | Exception]:
    return everything_messages.stream(call) if "prompt_json" in call.inputs else answer_as_a_vlm(call)


@dataclass(eq=False)
class Held:
    """A request that waits in the fake server."""

    call: Call
    loop: asyncio.AbstractEventLoop
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: bool = False

    def let_go(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self.loop.call_soon_threadsafe(self.gate.set)


class FakeTransport:
    """Responds at once, or when the test releases it; may be called from every thread."""

    def __init__(self, answer: Callable[[Call], Outputs] = answer_as_a_segmenter) -> None:
        self.answer = answer
        self.pieces: Callable[[Call], Iterable[Outputs | Exception]] = answer_as_a_stream
        self.hold_before: int | None = None
        """The piece of every stream (0, 1, ...) that is held back from now on."""
        self.streams: list[Call] = []
        self.left: list[Call] = []
        """Streams that were closed before their end."""
        self.run_out: list[Call] = []
        self.calls: list[Call] = []
        self.cancels: list[Call] = []
        self.closed = False
        self._changed = threading.Condition()
        self._held = False
        self.held: list[Held] = []

    async def infer(self, call: Call) -> Outputs:
        held = None
        with self._changed:
            cancel = "cancel" in call.parameters
            (self.cancels if cancel else self.calls).append(call)
            if cancel or call.parameters.get("latest_wins"):
                self._supersede(call)
            if self._held and not cancel:
                held = Held(call, asyncio.get_running_loop())
                self.held.append(held)
            self._changed.notify_all()
        if held is not None:
            await held.gate.wait()
            if held.cancelled:
                raise Cancelled("the request was cancelled or superseded by a newer one of its session")
        return self.answer(call) if not cancel else {"result_json": _text({"cancelled": 1})}

    async def stream(self, call: Call) -> AsyncGenerator[Outputs, None]:
        self._note(self.streams, call)
        finished = False
        try:
            for index, found in enumerate(self.pieces(call)):
                if index == self.hold_before:
                    held = Held(call, asyncio.get_running_loop())
                    self._note(self.held, held)
                    await held.gate.wait()
                    if held.cancelled:
                        raise Cancelled("the request was cancelled or superseded by a newer one of its session")
                if isinstance(found, Exception):
                    raise found
                yield found
            await asyncio.sleep(0)  # the server's own end of the stream comes a little later
            finished = True
        finally:
            self._note(self.run_out if finished else self.left, call)

    def _note(self, book: list[Any], entry: Call | Held) -> None:
        with self._changed:
            book.append(entry)
            self._changed.notify_all()

    def _supersede(self, newer: Call) -> None:
        """As the segmenter does it with what waits."""
        for held in list(self.held):
            if held.call.parameters.get("session_id") == newer.parameters["session_id"]:
                held.cancelled = True
                self.held.remove(held)
                held.let_go()

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        self.closed = True

    def hold(self) -> None:
        """From now on nothing is answered."""
        self._held = True

    def release(self) -> None:
        """Everything is answered."""
        with self._changed:
            self._held = False
            self.hold_before = None
            for held in self.held:
                held.let_go()
            self.held.clear()

    def wait_for(self, condition: Callable[[FakeTransport], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), TIMEOUT), "it never happened"

    async def reached(self, calls: int = 0, cancels: int = 0) -> None:
        await asyncio.to_thread(self.wait_for, lambda it: len(it.calls) >= calls and len(it.cancels) >= cancels)

    def prompt(self, index: int = -1) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.calls[index].inputs["prompt_json"][0])
        return found


@dataclass
class Fake:
    """A server that is not there, and its supervisor."""

    transport: FakeTransport = field(default_factory=FakeTransport)
    state: str = "ready"
    more_status: dict[str, object] = field(default_factory=dict)
    segmenters: Mapping[str, ModelSpec] = field(default_factory=lambda: SEGMENTERS)
    vlms: Mapping[str, VlmSpec] = field(default_factory=lambda: VLMS)
    metrics_url: str | None = None
    subscribers: list[Callable[[str], None]] = field(default_factory=list)

    @property
    def backend(self) -> Upstream:
        return Upstream(
            status=lambda: {"state": self.state, "restarts": 0, "reloads": 0, "reason": "", **self.more_status},
            segmenters=lambda: self.segmenters,
            triton_url="http://triton.invalid:8000",
            metrics_url=self.metrics_url,
            on_loss=self.subscribe,
            transport=self.transport,
            vlms=lambda: self.vlms,
        )

    def subscribe(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self.subscribers.append(callback)
        return lambda: self.subscribers.remove(callback)

    def lose(self, reason: str, model: str = "sam2") -> None:
        """As the supervisor does it, on a thread of its own."""
        self.state = "recovering"
        for callback in self.subscribers:
            thread = threading.Thread(target=callback, args=(reason, (model,)))
            thread.start()
            thread.join()

    def app(self, **settings: Any) -> FastAPI:
        return create_app(self.backend, Settings(**settings))


@contextlib.asynccontextmanager
async def client_of(fake: Fake, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The application without a port, started and stopped."""
    app = fake.app(**settings)
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=TIMEOUT) as client:
            try:
                yield client
            finally:
                fake.transport.release()


def ask(method: str, path: str, fake: Fake | None = None, *, settings: Any = None, **request: Any) -> httpx.Response:
    """One request to an application of its own."""

    async def run() -> httpx.Response:
        async with client_of(fake or Fake(), **(settings or {})) as client:
            return await client.request(method, path, **request)

    return asyncio.run(run())


def refusal(answer: httpx.Response, status: int, code: str) -> str:
    """The sentence of a refusal, whose form is checked on the way."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert set(document) == {"error"}
    assert set(document["error"]) == {"code", "message", "type", "param"}
    assert document["error"]["code"] == code
    types = {401: "authentication_error", 429: "rate_limit_error"}
    assert document["error"]["type"] == types.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message: str = document["error"]["message"]
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


@contextlib.contextmanager
def listening(fake: Fake, **settings: Any) -> Iterator[int]:
    """The port of a real service."""
    port = free_port()
    with ServiceThread(fake.app(**settings), "127.0.0.1", port):
        try:
            yield port
        finally:
            fake.transport.release()

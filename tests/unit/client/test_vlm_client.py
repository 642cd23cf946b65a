"""The clients of vision-language models, over a transport that is a fake."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from triton_sam.client import vlm_client, wire
from triton_sam.client.vlm_client import Answer, AsyncTritonVLMClient, Entity, TritonVLMClient, vlm_call
from triton_sam.errors import InvalidInput, NotFound, QueueFull, ServerUnreachable, Unavailable

IMAGE = b"bytes of an image"
PATIENCE = 20.0
Piece = Mapping[str, Any]


def piece(text: str, reason: str = "", **more: Any) -> Piece:
    documents = {name: json.dumps(value) for name, value in more.items()}
    outputs = {"generated_text": text, "finish_reason": reason, **documents}
    return {name: wire.text_tensor(value) for name, value in outputs.items()}


LAST = piece("", "stop", usage_json={"prompt_tokens": 7, "completion_tokens": 3})
HELLO = [piece("Hel"), piece("lo"), LAST]


class FakeTransport:
    """Plays one script for each call; an exception in it is raised, a callable is awaited."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.calls: list[wire.Call] = []
        self.ended: list[str] = []
        self.closed = 0

    async def stream(self, call: wire.Call) -> AsyncGenerator[Piece, None]:
        self.calls.append(call)
        script = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        how = "cancelled"
        try:
            for step in script:
                if isinstance(step, BaseException):
                    how = "raised"
                    raise step
                if callable(step):
                    await step()
                    continue
                yield step
            how = "complete"
        except GeneratorExit:
            how = "closed"
            raise
        finally:
            self.ended.append(how)

    async def infer(self, call: wire.Call) -> Any:
        raise NotImplementedError

    async def can_cancel_natively(self) -> bool:
        return False

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def sync() -> Iterator[Callable[..., TritonVLMClient]]:
    """Makes blocking clients, and closes them."""
    made: list[TritonVLMClient] = []

    def make(transport: FakeTransport, **options: Any) -> TritonVLMClient:
        made.append(TritonVLMClient(transport=transport, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries."""
    monkeypatch.setattr(vlm_client, "retry_pause", lambda attempt: 0.0)


# -- answers ---------------------------------------------------------------------------------------------------


def test_infer_answer_and_stream(sync: Any) -> None:
    transport = FakeTransport(HELLO)
    client = sync(transport)
    assert client.infer("llava", IMAGE, "What?") == "Hello"
    assert client.answer("vlm:llava", IMAGE, "What?") == Answer("Hello", "stop", 7, 3)
    assert list(client.stream("llava", IMAGE, "What?")) == ["Hel", "lo"]
    assert {call.model for call in transport.calls} == {"llava_stream"}
    assert transport.ended == ["complete"] * 3


def test_the_same_with_asyncio() -> None:
    async def go() -> None:
        transport = FakeTransport(HELLO)
        async with AsyncTritonVLMClient(transport=transport) as client:
            assert await client.infer("llava", IMAGE, "What?") == "Hello"
            assert (await client.answer("llava", IMAGE, "What?")).completion_tokens == 3
            assert [text async for text in client.stream("llava", IMAGE, "What?")] == ["Hel", "lo"]
        assert transport.closed == 1

    asyncio.run(go())


def test_entities(sync: Any) -> None:
    found = [
        {"phrase": "a dog", "start": 0, "end": 5, "boxes": [[1, 2, 3.5, 4]]},
        {"phrase": "the ball", "start": None, "end": None, "boxes": []},
    ]
    script = [piece("a dog"), piece("", "length", usage_json={}, entities_json=found)]
    answer = sync(FakeTransport(script)).answer("kosmos2", IMAGE, "What?")
    assert answer.entities == (Entity("a dog", (0, 5), ((1.0, 2.0, 3.5, 4.0),)), Entity("the ball", None, ()))
    assert (answer.finish_reason, answer.prompt_tokens) == ("length", 0)


def test_what_is_sent() -> None:
    call = vlm_call("llava", IMAGE, "é?", max_new_tokens=5, temperature=0, top_p=1, seed=-1, stop="x")
    assert bytes(call.inputs["image"]) == IMAGE
    assert call.inputs["prompt"].tolist() == ["é?".encode()]
    kinds = {name: array.dtype for name, array in call.inputs.items()}
    assert [kinds[name] for name in ("max_new_tokens", "temperature", "top_p", "seed")] == ["i4", "f4", "f4", "i8"]
    assert call.inputs["stop"].tolist() == [b"x"]
    chat = vlm_call("llava", IMAGE, [{"role": "user", "content": "é?"}], stop=["a", "b"], seed=np.int64(4))
    assert json.loads(chat.inputs["messages_json"][0]) == [{"role": "user", "content": "é?"}]
    assert chat.inputs["stop"].tolist() == [b"a", b"b"]
    assert set(vlm_call("llava", IMAGE, "a").inputs) == {"image", "prompt"}


@pytest.mark.parametrize(
    "options",
    [
        {"max_new_tokens": 1.5},
        {"max_new_tokens": "many"},
        pytest.param({"max_new_tokens": 2**40}),
        pytest.param({"max_new_tokens": [1, 2]}),
        {"temperature": "hot"},
        {"temperature": {}},
        pytest.param({"top_p": [0.1, 0.2]}),
        pytest.param({"seed": 2**63}),
        {"seed": 2**64},
        {"seed": 0.5},
        pytest.param({"stop": [1]}),
        pytest.param({"stop": 5}),
        pytest.param({"stop": ["\ud800"]}),
    ],
    ids=str,
)
def test_options_of_a_wrong_kind_are_refused_before_anything_is_sent(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        vlm_call("llava", IMAGE, "What?", **options)


WRONG_PROMPTS = [None, 5, [5], [None], "\ud800", [{"role": "user", "content": {1}}]]


@pytest.mark.parametrize("prompt", WRONG_PROMPTS, ids=range(6))
def test_prompts_of_a_wrong_kind_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidInput):
        vlm_call("llava", IMAGE, prompt)


def test_bad_arguments_of_a_client() -> None:
    for options in ({"timeout": 0}, {"retries": -1}):
        with pytest.raises(InvalidInput):
            AsyncTritonVLMClient(transport=FakeTransport(HELLO), **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="is not a server address"):
        TritonVLMClient("ftp://x")


# -- early ends --------------------------------------------------------------------------------------------------


def test_leaving_the_loop_closes_the_transports_generator(sync: Any) -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    transport = FakeTransport([piece("Hel"), wait])
    client = sync(transport)
    answer = client.stream("llava", IMAGE, "What?")
    assert next(answer) == "Hel"
    assert transport.ended == []
    answer.close()
    client.close()  # waits for what is being ended
    assert transport.ended == ["cancelled"]


def test_leaving_the_loop_with_asyncio() -> None:
    async def go() -> None:
        transport = FakeTransport(HELLO)
        answer = AsyncTritonVLMClient(transport=transport).stream("llava", IMAGE, "What?")
        async for _ in answer:
            break
        await answer.aclose()
        assert transport.ended == ["closed"]

    asyncio.run(go())


def test_a_cancelled_wait_reaches_the_transport() -> None:
    async def go() -> None:
        begun = asyncio.Event()

        async def wait() -> None:
            begun.set()
            await asyncio.Event().wait()

        transport = FakeTransport([wait])
        task = asyncio.create_task(AsyncTritonVLMClient(transport=transport).infer("llava", IMAGE, "What?"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert transport.ended == ["cancelled"]

    asyncio.run(go())


def test_a_stream_that_outlives_its_client_ends_quietly(sync: Any) -> None:
    client = sync(FakeTransport(HELLO))
    answer = client.stream("llava", IMAGE, "What?")
    assert next(answer) == "Hel"
    client.close()
    del answer
    gc.collect()  # an exception here is a warning, and warnings are errors


def test_closing_a_client_lets_those_who_wait_go() -> None:
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    client = TritonVLMClient(transport=FakeTransport([wait]))
    over = threading.Event()

    def infer() -> None:
        with contextlib.suppress(Exception):
            client.infer("llava", IMAGE, "What?")
        over.set()

    threading.Thread(target=infer, daemon=True).start()  # it may wait for ever
    assert begun.wait(PATIENCE)
    client.close()
    assert over.wait(2)


# -- errors ----------------------------------------------------------------------------------------------------


def test_a_busy_server_is_asked_again_before_the_first_piece(sync: Any) -> None:
    transport = FakeTransport([Unavailable("loading")], [QueueFull("full")], HELLO)
    assert sync(transport).infer("llava", IMAGE, "What?") == "Hello"
    assert len(transport.calls) == 3


def test_a_busy_server_is_not_asked_for_ever(sync: Any) -> None:
    transport = FakeTransport([Unavailable("loading, 12 s so far")])
    with pytest.raises(Unavailable, match="12 s so far"):
        sync(transport, retries=2).infer("llava", IMAGE, "What?")
    assert len(transport.calls) == 3


def test_after_the_first_piece_it_is_not_asked_again(sync: Any) -> None:
    transport = FakeTransport([piece("a"), Unavailable("stopping")], HELLO)
    heard: list[str] = []
    with pytest.raises(Unavailable, match="stopping"):
        heard.extend(sync(transport).stream("llava", IMAGE, "What?"))
    assert len(transport.calls) == 1


@pytest.mark.parametrize("script", [[], [piece("a")], [piece("a"), piece("b")]], ids=len)
def test_a_stream_that_breaks_off_is_no_answer(script: list[Piece], sync: Any) -> None:
    with pytest.raises(ServerUnreachable, match="the connection ended before the answer was complete: try again"):
        sync(FakeTransport(script)).infer("llava", IMAGE, "What?")


def test_a_model_that_is_not_served_and_something_else_that_is_not_found(sync: Any) -> None:
    missing = NotFound("Request for unknown model: 'llava_stream' is not found")
    with pytest.raises(NotFound, match="run `triton-sam setup vlm:llava`"):
        sync(FakeTransport([missing])).infer("llava", IMAGE, "What?")
    with pytest.raises(NotFound, match=r"^no weights$"):
        sync(FakeTransport([NotFound("no weights")])).infer("llava", IMAGE, "What?")


# -- threads ---------------------------------------------------------------------------------------------------


def test_several_threads_share_a_client(sync: Any) -> None:
    together = threading.Barrier(6)

    async def meet() -> None:
        await asyncio.to_thread(together.wait, PATIENCE)

    client = sync(FakeTransport([piece("a"), meet, piece("b"), LAST]))
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda _: client.infer("llava", IMAGE, "What?"), range(6))) == ["ab"] * 6


def test_close_ends_the_thread_and_may_be_said_twice() -> None:
    before = set(threading.enumerate())
    transport = FakeTransport(HELLO)
    client = TritonVLMClient(transport=transport)
    client.infer("llava", IMAGE, "What?")
    client.close()
    client.close()
    assert transport.closed == 1
    assert set(threading.enumerate()) <= before
    with pytest.raises(InvalidInput, match="the client is closed"):
        client.infer("llava", IMAGE, "What?")


@pytest.mark.usefixtures("interruptible")
@pytest.mark.timeout(30)
@pytest.mark.parametrize("slow", [0, 0.3], ids=["at once", "after a while"])
def test_an_interrupted_wait_tells_the_server_and_leaves_the_client_usable(slow: float, sync: Any) -> None:
    async def interrupt() -> None:
        main = threading.main_thread().ident
        assert main is not None
        waits = lambda: sys._current_frames()[main].f_code.co_name == "_pieces"  # noqa: E731
        while not waits():  # for what this coroutine gives
            await asyncio.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(slow)  # as a transport does that has to tidy up

    transport = FakeTransport([piece("a"), interrupt, LAST], HELLO)
    client = sync(transport)
    with pytest.raises(KeyboardInterrupt):
        list(client.stream("llava", IMAGE, "What?"))
    assert client.infer("llava", IMAGE, "What?") == "Hello"
    client.close()  # waits for what is being ended
    assert sorted(transport.ended) == ["cancelled", "complete"]


def test_the_older_name_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "triton_client", raising=False)
    with pytest.warns(DeprecationWarning, match="from triton_sam import TritonVLMClient"):
        old = importlib.import_module("triton_client")
    assert old.TritonVLMClient is TritonVLMClient

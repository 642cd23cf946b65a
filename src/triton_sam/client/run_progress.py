"""The messages of a request for everything: sent to a segmenter of Triton, and followed until its answer.

Triton's segmenters answer once. So the request gets a name, ``run``, and meanwhile small requests with ``follow`` ask
what is new; each is answered as soon as there is something.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from triton_sam.client.wire import Call, Outputs, text_of, text_tensor
from triton_sam.core.everything.records import formatted
from triton_sam.errors import DeadlineExceeded, TritonSamError

Infer = Callable[[Call], Awaitable[Outputs]]
#: Without news the last progress is repeated, so that time limits can count from it.
_REPEAT_SECONDS = 5.0
#: Until the run is asked for again: its image may have to be encoded first.
_UNKNOWN_SECONDS = 0.03
_FAILED_SECONDS = 0.5


def is_run(call: Call) -> bool:
    """Whether a call is followed: it may take as long as it makes progress."""
    return "run" in call.parameters


async def followed(infer: Infer, call: Call) -> AsyncGenerator[Outputs, None]:
    """Messages as docs/reference/protocol.md has them; the last one has the answer and ``final``.

    Args:
        infer: sends a call and waits for its outputs.
        call: to the segmenter. Its error is raised, and DeadlineExceeded if a question for news has no answer in time.
            Closing the generator cancels its task.
    """
    run = uuid.uuid4().hex
    form = str(json.loads(text_of(call.inputs, "prompt_json")).get("format") or "rle")
    answer = asyncio.ensure_future(infer(replace(call, parameters={**call.parameters, "run": run})))
    news: asyncio.Future[Outputs] | None = None
    progress: dict[str, Any] = {"done": 0, "of": 0, "masks": 0}
    version = 0
    try:
        while True:
            question = Call(call.model, {}, ("result_json",), {"follow": run, "since": version}, headers=call.headers)
            news = news or asyncio.ensure_future(infer(question))
            await asyncio.wait({answer, news}, timeout=_REPEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                yield _final(answer.result())
                return
            if not news.done():
                yield _message({"progress": progress, "masks": [], "gone": []})
                continue
            document = await _told(news)
            news = None
            if document is None or document.get("unknown") or document.get("ended"):
                pause = _FAILED_SECONDS if document is None else _UNKNOWN_SECONDS
                await asyncio.wait({answer}, timeout=pause)
                continue
            version = document["version"]
            progress = {"done": document["done"], "of": document["of"], "masks": document["count"]}
            masks = [] if form == "labels" else formatted(document["masks"], form)
            gone = [] if form == "labels" else document["gone"]
            yield _message({"progress": progress, "masks": masks, "gone": gone})
    finally:
        for task in (answer, news):
            if task is not None and not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, TritonSamError):
                    await task


async def _told(news: asyncio.Future[Outputs]) -> dict[str, Any] | None:
    """What is new; None if that could not be learned, and then the answer itself tells what is wrong."""
    try:
        document: dict[str, Any] = json.loads(text_of(await news, "result_json"))
        return document
    except DeadlineExceeded:  # no progress for so long
        raise
    except TritonSamError:
        return None


def _message(document: dict[str, Any]) -> Outputs:
    return {"result_json": text_tensor(json.dumps(document))}


def _final(outputs: Outputs) -> Outputs:
    document = {"final": True, **json.loads(text_of(outputs, "result_json"))}
    return {**outputs, **_message(document)}

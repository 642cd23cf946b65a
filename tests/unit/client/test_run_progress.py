"""Everything at a segmenter of Triton, followed while it runs: against a server that is a function."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import numpy as np
import pytest

from triton_sam.client import run_progress
from triton_sam.client.run_progress import followed
from triton_sam.client.wire import Call, Outputs, click_inputs, text_tensor
from triton_sam.core.rle import rle
from triton_sam.errors import Cancelled, DeadlineExceeded, ServerUnreachable, TritonSamError

PATIENCE = 20.0
MASK = np.zeros((4, 6), bool)
MASK[1:3, 2:5] = True


def record(number: int) -> dict[str, Any]:
    return {"id": number, "area": 6, "segmentation": rle(MASK)}


def news(version: int, **fields: Any) -> dict[str, Any]:
    return {"version": version, "done": version, "of": 9, "count": version, "masks": [], "gone": []} | fields


class Segmenter:
    """Answers questions for news by a script; the run's answer comes after the script, or when it is released."""

    def __init__(self, script: list[Any], answer: Any = None) -> None:
        self.script = script
        self.answer = answer or {"masks": [record(0)], "of": 9}
        self.calls: list[Call] = []
        self.finished = asyncio.Event()
        self.cancelled = False

    async def infer(self, call: Call) -> Outputs:
        self.calls.append(call)
        if "follow" not in call.parameters:
            try:
                await asyncio.wait_for(self.finished.wait(), PATIENCE)
            except asyncio.CancelledError:
                self.cancelled = True
                raise
            return told(self.answer)
        if not self.script:
            self.finished.set()
            return told({"unknown": True})
        return told(self.script.pop(0))


def told(what: Any) -> Outputs:
    if isinstance(what, TritonSamError):
        raise what
    return {"result_json": text_tensor(json.dumps(what))}


def call(form: str = "rle") -> Call:
    inputs = click_inputs("key", {"everything": {}, "format": form})
    return Call("sam2", inputs, ("result_json",), {"session_id": "s", "sequence": 3})


def messages_of(segmenter: Segmenter, form: str = "rle") -> list[dict[str, Any]]:
    async def collect() -> list[dict[str, Any]]:
        return [json.loads(each["result_json"][0]) async for each in followed(segmenter.infer, call(form))]

    return asyncio.run(collect())


def test_messages_and_the_answer() -> None:
    segmenter = Segmenter([{"unknown": True}, news(1, masks=[record(4)]), news(3, gone=[4])])
    first, second, last = messages_of(segmenter)
    assert first == {"progress": {"done": 1, "of": 9, "masks": 1}, "masks": [record(4)], "gone": []}
    assert second == {"progress": {"done": 3, "of": 9, "masks": 3}, "masks": [], "gone": [4]}
    assert last == {"final": True, "masks": [record(0)], "of": 9}
    run, *questions = segmenter.calls
    assert run.parameters["session_id"] == "s"
    assert run.parameters["sequence"] == 3
    assert run.parameters["run"]
    assert {question.parameters["follow"] for question in questions} == {run.parameters["run"]}
    assert [question.parameters["since"] for question in questions][:4] == [0, 0, 1, 3]
    assert all(question.model == "sam2" and not question.inputs for question in questions)


def test_masks_in_the_form_that_was_asked_for() -> None:
    first, _ = messages_of(Segmenter([news(1, masks=[record(4)])]), "polygon")
    assert isinstance(first["masks"][0]["segmentation"][0], list)
    first, _ = messages_of(Segmenter([news(1, masks=[record(4)], gone=[2])]), "labels")
    assert (first["masks"], first["gone"]) == ([], [])


def test_the_error_of_the_run_is_raised() -> None:
    with pytest.raises(Cancelled):
        messages_of(Segmenter([news(1)], Cancelled("superseded")))


def test_news_that_are_lost_do_not_end_the_run() -> None:
    segmenter = Segmenter([ServerUnreachable("a hiccup"), news(2)])
    assert [message.get("final", False) for message in messages_of(segmenter)] == [False, True]


def test_no_progress_for_too_long() -> None:
    segmenter = Segmenter([news(1), DeadlineExceeded("no answer in 60 s")])
    with pytest.raises(DeadlineExceeded):
        messages_of(segmenter)
    assert segmenter.cancelled


def test_who_leaves_cancels_the_run() -> None:
    segmenter = Segmenter([news(1), news(2)])

    async def leave() -> None:
        async with contextlib.aclosing(followed(segmenter.infer, call())) as messages:
            await anext(messages)

    asyncio.run(leave())
    assert segmenter.cancelled


def test_progress_is_repeated_while_nothing_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_progress, "_REPEAT_SECONDS", 0.001)

    async def go() -> list[dict[str, Any]]:
        segmenter = Segmenter([news(1)])
        answered = segmenter.infer

        async def infer(one: Call) -> Outputs:
            if "follow" in one.parameters and not segmenter.script:
                await asyncio.wait_for(segmenter.finished.wait(), PATIENCE)
            return await answered(one)

        seen = []
        async for message in followed(infer, call()):
            seen.append(json.loads(message["result_json"][0]))
            if len(seen) == 4:
                segmenter.finished.set()
        return seen

    first, *repeated, last = asyncio.run(go())
    assert last["final"]
    assert len(repeated) >= 3
    assert all(message["progress"] in (first["progress"], {"done": 1, "of": 9, "masks": 1}) for message in repeated)

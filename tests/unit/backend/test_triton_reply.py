"""Triton crashes if it is asked about a request that was answered; so nobody asks while or after it is."""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from triton_sam.errors import Unavailable

USES_TRITON = [f"triton_sam.backend.{name}" for name in ("segmenter", "vlm", "triton_io", "metrics")]


@pytest.fixture
def without_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The modules that run inside Triton can be imported."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", MagicMock())
    yield
    for name in USES_TRITON:
        sys.modules.pop(name, None)


class Sender:
    """Triton's side of a request: what it was told, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.asked, self.may_answer = threading.Event(), threading.Event()

    def is_cancelled(self) -> bool:
        self.asked.set()
        assert self.may_answer.wait(60)
        self.calls.append("answered a question")
        return False

    def send(self, *response: Any, flags: int) -> None:
        self.calls.append("sent")


@pytest.mark.parametrize(
    ("module", "reply", "question"), [("segmenter", "_TritonReply", "is_cancelled"), ("vlm", "_StreamReply", "is_gone")]
)
@pytest.mark.usefixtures("without_triton")
def test_nobody_asks_about_a_request_that_was_answered(module: str, reply: str, question: str) -> None:
    sender, request = Sender(), MagicMock()
    request.get_response_sender.return_value = sender
    made = getattr(importlib.import_module(f"triton_sam.backend.{module}"), reply)(MagicMock(), request)
    asking = threading.Thread(target=getattr(made, question))
    asking.start()
    assert sender.asked.wait(60)
    answering = threading.Thread(target=made.fail, args=(Unavailable("try again"),))
    answering.start()
    sender.may_answer.set()
    asking.join(60)
    answering.join(60)
    getattr(made, question)()
    assert sender.calls == ["answered a question", "sent"]


@pytest.mark.usefixtures("without_triton")
def test_a_state_that_does_not_fit_into_shared_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    segmenter = importlib.import_module("triton_sam.backend.segmenter")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=64_000_000))
    tensor = sys.modules["triton_python_backend_utils"].Tensor
    reply = segmenter._TritonReply(MagicMock(), MagicMock())
    scores = np.zeros(3, np.float32)
    reply.send_arrays({"scores": scores, "video_state": np.zeros(33_000_000, np.uint8)})
    assert [call.args for call in tensor.call_args_list] == [("scores", scores)]
    with pytest.raises(Unavailable, match="33 MB does not fit into shared memory now"):
        reply.send_arrays({"masks": np.zeros(33_000_000, np.uint8)})

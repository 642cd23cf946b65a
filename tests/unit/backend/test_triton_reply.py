"""Triton crashes if it is asked about a request that was answered; so nobody asks while or after it is."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

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

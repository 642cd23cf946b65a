"""A process whose GPU has failed answers with an error, and ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.backend.scheduler_helpers import GatedEngine, Inbox, MakeScheduler, click, embedding
from triton_sam.backend.gpu_failure import is_fatal
from triton_sam.errors import InternalError

_LOST = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously reported"


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        (_LOST, True),
        ("CUDA error: unspecified launch failure", True),
        ("CUDA error: device-side assert triggered", True),
        ("CUDA error: out of memory", False),
        ("CUDA error: operation not permitted when stream is capturing", False),
        ("CUDA error: invalid argument", False),
        ("the file says: illegal memory access", False),
    ],
)
def test_errors_after_which_nothing_succeeds(text: str, fatal: bool) -> None:
    assert is_fatal(RuntimeError(text)) is fatal


@pytest.mark.parametrize(("text", "ends"), [(_LOST, True), ("CUDA error: invalid argument", False)])
def test_a_click_is_answered_before_the_process_ends(
    make: MakeScheduler, engine: GatedEngine, monkeypatch: pytest.MonkeyPatch, text: str, ends: bool
) -> None:
    ended: list[bool] = []
    monkeypatch.setattr("triton_sam.backend.responder.end_soon", lambda: ended.append(True))
    engine.failure = RuntimeError(text)
    assert isinstance(click(make(), Inbox(), embedding()).get(), InternalError)
    assert bool(ended) is ends


def test_the_process_ends_once_and_says_why() -> None:
    code = """
import logging, threading
from triton_sam.backend.gpu_failure import end_soon
logging.basicConfig()
end_soon()
end_soon()
threading.Event().wait(60)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 1
    assert done.stderr.count("the GPU failed") == 1

"""How long a worker stays."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from triton_sam.backend.workers import process
from triton_sam.backend.workers.options import WorkerOptions

_POLLS = 5


class Polls:
    """Ends the wait after some polls."""

    def __init__(self) -> None:
        self.count = 0

    def wait(self, _seconds: float) -> bool:
        self.count += 1
        return self.count == _POLLS


@pytest.mark.parametrize(
    ("connected", "farewells", "losses", "polls"),
    [
        pytest.param(1, 2, 0, _POLLS, id="somebody needs it"),
        pytest.param(0, 3, 0, 1, id="all have said goodbye"),
        pytest.param(0, 0, 1, _POLLS, id="the only one was killed"),
        pytest.param(0, 2, 1, _POLLS, id="one of several was killed, and the others are reloaded with it"),
    ],
)
def test_it_keeps_its_images_for_a_reload_after_a_kill(
    connected: int, farewells: int, losses: int, polls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LINGER_SECONDS", 1000.0)
    options = WorkerOptions(os.getpid(), "lingers", "1", "sam2:tiny", ".", 0, "cpu")
    seen = Polls()
    links: Any = SimpleNamespace(ended=seen, count=connected, farewells=farewells, losses=losses)
    process._wait_until_unneeded(options, links)
    assert seen.count == polls

"""A server that finds red squares, and the command."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.unit.cli.helpers import Run, run_main
from tests.unit.client.video_server import FakeVideoServer, reached
from tests.video_clips import by_object
from triton_sam.cli import track_server
from triton_sam.cli.track_server import TrackServer
from triton_sam.client import video_client


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> FakeVideoServer:
    found = FakeVideoServer(draw=by_object)
    monkeypatch.setattr(video_client, "video_servers", lambda *_, **__: reached(found))
    monkeypatch.setattr(
        track_server,
        "track_server",
        lambda urls, given, _: nullcontext(TrackServer(urls, given.model or "sam2", given.text_model or "sam3")),
    )
    return found


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return lambda *words: run_main("track", *words, monkeypatch=monkeypatch, capsys=capsys)

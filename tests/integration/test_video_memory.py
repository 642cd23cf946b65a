"""The server's memory with videos: flat however long a video is, and back when sessions are forgotten."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.figures import record
from tests.integration.serve_folder import serve_folder
from tests.server_readings import counters_so_far, server_bytes
from tests.video_serving import RawFilm, frame, refusal
from tests.waiting import eventually
from triton_sam import SAM2VideoClient
from triton_sam.errors import SessionExpired
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
log = logging.getLogger(__name__)
MIB = 1024 * 1024
SESSIONS, OBJECTS = 200, 6
FRAMES, WARM, GROWTH = 200, 50, 3 * MIB
MANY_FRAMES, MANY_WARM, MANY_GROWTH = 10_000, 100, 50 * MIB


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    # Small caches, which the first frames fill: they are bounded by themselves.
    settings = {"threads": "1", "video_idle_seconds": "5", "cache_bytes": str(16 * MIB)}
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), **settings) as started:
        yield started


def gauge(running: RunningServer, name: str) -> float:
    return counters_so_far(running, "sam2")[f"video_{name}"]


def test_two_hundred_forgotten_sessions_give_their_memory_back(running: RunningServer) -> None:
    url = running.urls["HTTP"]
    with RawFilm(url, "donor") as donor:
        donor.open()
        for name in range(OBJECTS):
            donor.prompt(0, name)
        for number in range(13):
            donor.track(number).result()
        state = donor.do("state").state
        donor.do("close")
    eventually(lambda: gauge(running, "sessions") == 0, "the end of the session")
    before, expired = server_bytes(running), gauge(running, "expired_total")
    for number in range(SESSIONS):
        with RawFilm(url, f"forgotten {number}", threads=1) as one:
            one.open(restore=state)
    told, taken = gauge(running, "bytes"), server_bytes(running) - before
    eventually(lambda: gauge(running, "sessions") == gauge(running, "bytes") == 0, "the end of the sessions")
    assert gauge(running, "expired_total") - expired == SESSIONS
    assert taken > 100 * MIB, "there was something to give back"
    assert 0.5 * taken < told < 1.5 * taken, "the metric says what they take"
    eventually(lambda: server_bytes(running) - before < 40 * MIB, "the memory", patience=10)
    with RawFilm(url, "forgotten 7") as one:
        assert isinstance(refusal(lambda: one.do("track", step=3, frame=2)), SessionExpired)


def film_without_end() -> Iterator[bytes]:
    """All frames are different files, although pictures repeat."""
    pictures = [frame(number) for number in range(50)]
    for number in itertools.count():
        yield pictures[number % 50] + number.to_bytes(4, "big")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("frames", "warm", "growth"),
    [(FRAMES, WARM, GROWTH), pytest.param(MANY_FRAMES, MANY_WARM, MANY_GROWTH, marks=pytest.mark.part("video"))],
    ids=["short", "long"],
)
def test_memory_is_flat_however_long_a_video_is(running: RunningServer, frames: int, warm: int, growth: int) -> None:
    readings, kept = {}, set()
    with SAM2VideoClient(running.urls["HTTP"]) as client:
        state = client.init_state(film_without_end())
        client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
        begun = time.monotonic()
        for index, _, _ in client.propagate_in_video(state, 0, frames):
            if index and index % warm == 0:
                readings[index] = server_bytes(running)
                kept.add(gauge(running, "bytes") // 100_000)
        rate = frames / (time.monotonic() - begun)
    grown = max(readings.values()) - readings[warm]
    log.warning("%d frames, %.1f a second: %.1f MB more than after %d", frames, rate, grown / 1e6, warm)
    if frames == MANY_FRAMES:
        figures = {
            "frames a second": (round(rate, 1), ""),
            f"growth after the first {warm}, MB": (round(grown / 1e6, 1), f"<= {growth / 1e6:.0f}"),
        }
        record("video-length", f"a video of {frames:,} frames", figures)
    assert grown <= growth, {index: round(size / 1e6, 1) for index, size in readings.items()}
    assert max(kept) - min(kept) <= 1, "a session does not grow"

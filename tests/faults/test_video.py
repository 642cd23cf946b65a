"""Videos whose server dies: a model's process, a worker, tritonserver, or the whole server while another one goes on.

Each strikes at a random frame of a track with three objects, one of them added on the way, and a correction. No frame
is missing or doubled, and masks are those of a run without faults.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.faults.figures import record
from tests.faults.helpers import expect_ended, processes_of, regions_of, restarts_of, stub_of
from tests.faults.proxies import WholeServer
from tests.integration.serve_folder import serve_folder
from tests.server_readings import workers_of
from tests.video_serving import frame
from tests.video_story import Blocking, Found
from tests.waiting import eventually
from triton_sam import AsyncSAM2VideoClient, SAM2VideoClient
from triton_sam.server.host import SHARED_MEMORY
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
FRAMES, FEW_FRAMES = 200, 60
#: The correction is so many frames before the newest.
BACK = 12
LEAST_IOU = 0.99
SEEDS = [int(seed) for seed in os.environ.get("TRITON_SAM_TEST_KILL_SEEDS", "0,1,2").split(",")]
#: A server that is restarted more than five times within a minute is given up.
RESTART_SECONDS = 13.0
Strike = Callable[[], object]
log = logging.getLogger(__name__)


@dataclass
class Track:
    """A track through a video, and what was found.

    Attributes:
        at: the fault strikes when so many frames were found, and the next ones are under way.
        asynchronous: by the client for asyncio.
        slowest: seconds between two frames.
    """

    length: int
    strike: Strike | None = None
    at: int = 0
    asynchronous: bool = False
    found: list[Found] = field(default_factory=list)
    slowest: float = 0.0

    @property
    def order(self) -> list[int]:
        """The frames that must be found: a correction sends the track back once."""
        return [*range(self.corrected + BACK), *range(self.corrected, self.length)]

    @property
    def corrected(self) -> int:
        return 2 * (self.length // 3) - BACK

    def run(self, *urls: str) -> Track:
        third = self.length // 3
        client: Any
        with Blocking(AsyncSAM2VideoClient(urls)) if self.asynchronous else SAM2VideoClient(urls) as client:
            state = client.init_state([frame(number) for number in range(self.length)])
            client.add_new_points_or_box(state, 0, 1, [[60, 50]], [1])
            client.add_new_points_or_box(state, 0, 2, box=[90, 20, 150, 90])
            self._follow(client.propagate_in_video(state, 0, third - 1))
            mask = np.zeros((120, 160), bool)
            mask[40:80, 20:60] = True
            client.add_new_mask(state, third, 7, mask)
            self._follow(client.propagate_in_video(state, third, third - 1))
            client.add_new_points_or_box(state, self.corrected, 1, [[30, 90], [110, 40]], [1, 0])
            self._follow(client.propagate_in_video(state, self.corrected))
        assert [index for index, _, _ in self.found] == self.order, "no frame is missing or doubled"
        return self

    def _follow(self, frames: Iterator[Any]) -> None:
        before = time.monotonic()
        for index, ids, masks in frames:
            self.found.append((index, ids, np.asarray(masks)))
            self.slowest, before = max(self.slowest, time.monotonic() - before), time.monotonic()
            if self.strike is not None and len(self.found) == self.at:
                self.strike()

    def iou(self, other: Track) -> float:
        """The lowest of all masks."""
        lowest = 1.0
        for (_, ids, mine), (_, others, theirs) in zip(self.found, other.found, strict=True):
            assert ids == others
            for one, two in zip(mine, theirs, strict=True):
                union = np.logical_or(one, two).sum()
                lowest = min(lowest, float(np.logical_and(one, two).sum() / union) if union else 1.0)
        return lowest


@contextlib.contextmanager
def served(repository: Path, home: Path, **settings: str) -> Iterator[RunningServer]:
    """A server of which nothing is left at its end."""
    with serve_folder(repository, home, threads="1", **settings) as running:
        yield running
        everything, prefix = processes_of(running), running.supervisor.process.shm_prefix
    expect_ended(everything)
    assert not list(SHARED_MEMORY.glob(f"{prefix}*"))


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with served(video_repository, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(running: RunningServer) -> Track:
    track = Track(FRAMES).run(running.urls["HTTP"])
    shares = [float(one.mean()) for _, _, masks in track.found for one in masks]
    assert np.mean([0.01 < share < 0.99 for share in shares]) > 0.9, "masks of which the overlap tells something"
    return track


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def expect_gone(regions: set[str]) -> None:
    """No shared memory of a server that was killed is left."""
    left = [name for name in regions if (SHARED_MEMORY / name).exists()]
    assert not left


def struck(seed: int, length: int, strike: Strike) -> Track:
    """A track with a fault at a random place; with seed 0, right before the correction."""
    track = Track(length, strike, asynchronous=seed % 2 == 1)
    track.at = random.Random(seed).randrange(1, len(track.order) - 4) if seed else track.corrected + BACK
    log.warning("seed %d: the fault strikes behind frame %d, result %d", seed, track.order[track.at - 1], track.at)
    return track


def hold(name: str, fault: str, tracks: list[Track], undisturbed: Track) -> None:
    """Keeps the figures, and holds the masks to those of the run without faults."""
    lowest, slowest = min(track.iou(undisturbed) for track in tracks), max(track.slowest for track in tracks)
    figures = {
        "times": (len(tracks), ""),
        "frames of each that came, missing or doubled": (f"{len(tracks[0].found)}, 0", "0"),
        "lowest IoU to the run without faults": (round(lowest, 4), f">= {LEAST_IOU}"),
        "longest wait for a frame, s": (round(slowest, 1), ""),
    }
    record(f"video-{name}", f"{fault}, in the middle of a video", figures)
    log.warning("%s: %s", fault, figures)
    assert lowest >= LEAST_IOU


def test_a_killed_process_costs_a_video_nothing(running: RunningServer) -> None:
    expected = Track(FEW_FRAMES).run(running.urls["HTTP"])
    before, regions = restarts_of(running), regions_of(running)
    track = struck(1, FEW_FRAMES, lambda: kill(stub_of(running))).run(running.urls["HTTP"])
    assert track.iou(expected) >= LEAST_IOU
    assert restarts_of(running) == before + 1, "it had requests in flight"
    expect_gone(regions)


@pytest.mark.part("video")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("victim", ["model", "tritonserver"])
def test_a_process_killed_at_random_frames(running: RunningServer, undisturbed: Track, victim: str) -> None:
    def strike() -> None:
        kill(stub_of(running) if victim == "model" else running.supervisor.process.process.pid)

    tracks = []
    for seed in SEEDS:
        begun, regions, restarts = time.monotonic(), regions_of(running), restarts_of(running)
        tracks.append(struck(seed, FRAMES, strike).run(running.urls["HTTP"]))
        if restarts_of(running) > restarts:
            expect_gone(regions)
        else:  # it was idle, and only loaded again
            assert len(regions_of(running)) <= len(regions)
        eventually(lambda begun=begun: time.monotonic() - begun >= RESTART_SECONDS, "the next restart's turn")
    hold(victim, f"kill -9 of {'the model' if victim == 'model' else victim}'s process", tracks, undisturbed)


@pytest.mark.part("video")
@pytest.mark.timeout(1800)
def test_workers_killed_at_random_frames(video_repository: Path, undisturbed: Track, tmp_path: Path) -> None:
    tracks = []
    with served(video_repository, tmp_path, processes="3", devices="cpu,cpu") as running:

        def strike() -> None:
            victims = list(workers_of(running))
            assert len(victims) == 2
            for victim in victims:  # one of them has the video
                kill(victim)

        for seed in SEEDS:
            eventually(lambda: len(workers_of(running)) == 2, "two workers")
            tracks.append(struck(seed, FRAMES, strike).run(running.urls["HTTP"]))
        assert restarts_of(running) == 0, "only the workers are started again"
    hold("workers", "kill -9 of both devices' workers", tracks, undisturbed)


@pytest.mark.part("video")
@pytest.mark.timeout(1800)
def test_a_video_moves_to_another_server(
    running: RunningServer, video_repository: Path, undisturbed: Track, tmp_path: Path
) -> None:
    first = WholeServer(video_repository, tmp_path / "home", {"TRITON_SAM_THREADS": "1"})
    tracks = []
    try:
        for seed in SEEDS:
            first.start()
            eventually(first.is_healthy, "a healthy server")
            assert first.process is not None
            regions = {path.name for path in SHARED_MEMORY.glob(f"triton_sam_{first.process.pid}_*")}
            assert regions
            url = f"http://127.0.0.1:{first.ports['http']}"
            tracks.append(struck(seed, FRAMES, first.kill).run(url, running.urls["HTTP"]))
        first.start()
        eventually(first.is_healthy, "the server that was killed")
        expect_gone(regions)  # the next start removes what a dead server has left
    finally:
        first.kill()
    hold("move", "kill -9 of all processes of a server, while another one serves", tracks, undisturbed)

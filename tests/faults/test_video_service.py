"""The service of videos under hostile uploads, many sessions, clients that hang up, and kills; with the real server.

Two service processes: what one of them takes is seen from outside, and requests reach the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests.faults.figures import record
from tests.faults.hostile_videos import HARMLESS, LIMITS, UPLOADS, plain
from tests.server_readings import counters_so_far, server_bytes
from tests.video_service import CLICK, VideoService, lines_of, serving_videos
from tests.video_serving import frame
from tests.waiting import eventually
from triton_sam.server.metrics_reader import resident_bytes
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch, pytest.mark.part("video")]
FRAMES, SESSIONS, LIVE_FRAMES = 12, 20, 2000
#: Memory is compared with that after the first of these live frames.
READ_AT = (200, 800, 1400, LIVE_FRAMES - 1)
#: Two busy cores that other tests share; alone, each takes a tenth of a second.
STALL_SECONDS = 10.0
#: Of a person, who does not click without a pause.
_CLICK_PAUSE = 0.2
MIB = 2**20
log = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("spool")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder
    tempfile.tempdir = None


@pytest.fixture(scope="module")
def running(
    spool: Path, video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    home = tmp_path_factory.mktemp("home")
    with serving_videos(video_repository, home, service_processes=2, **LIMITS) as started:
        yield started


@pytest.fixture(scope="module")
def service(running: RunningServer) -> VideoService:
    return VideoService(running.urls["service"])


def files_of(spool: Path) -> list[Path]:
    """Of videos."""
    return [path for path in spool.glob("triton-sam-videos-*/*") if path.name != "alive"]


def service_pids() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            command = (path / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and b"service_process import" in command:
            found.append(int(path.name))
    return found


def service_bytes() -> int:
    return sum(resident_bytes(pid) for pid in service_pids())


def sent_frames(service: VideoService, count: int = FRAMES) -> str:
    """The address of a video of the test's frames, sent one by one."""
    made = service.ask("POST", "", 201, json={"width": 160, "height": 120}).json()
    for number in range(count):
        service.ask("PUT", f"/{made['id']}/frames/{number}", content=frame(number))
    return f"/{made['id']}"


@pytest.fixture(scope="module")
def expected(service: VideoService) -> list[dict[str, Any]]:
    """The lines of a propagation that nothing disturbs."""
    where = sent_frames(service)
    service.ask("POST", f"{where}/prompts", json=CLICK)
    lines = service.propagate(where)
    service.ask("DELETE", where, 204)
    assert lines[-1] == {"done": True, "frames": FRAMES}
    return lines


class Bystander:
    """Somebody else's work on a thread: it must go on without an error and without a stall."""

    def __init__(self, turn: Callable[[], object], pause: float = 0.0) -> None:
        """
        Args:
            pause: seconds between two turns.
        """
        self._turn, self._stop, self._pause = turn, threading.Event(), pause
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.seconds: list[float] = []
        self.failure: BaseException | None = None

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            begun = time.monotonic()
            try:
                self._turn()
            except BaseException as error:
                self.failure = error
                return
            self.seconds.append(time.monotonic() - begun)

    def __enter__(self) -> Bystander:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def told(self) -> str:
        ordered = sorted(self.seconds)
        return f"{len(ordered)} turns, median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.3f} s"


@contextlib.contextmanager
def clicks(service: VideoService) -> Iterator[Callable[[], object]]:
    with httpx.Client(base_url=service.address, timeout=60, trust_env=False) as client:
        key = client.post("/v1/images", files={"image": frame(3)}).json()["image_key"]

        def click() -> None:
            answer = client.post("/v1/segment", json={"image_key": key, "points": [[60, 50]], "labels": [1]})
            assert answer.status_code == 200, answer.text

        yield click


def propagations(service: VideoService, expected: list[dict[str, Any]]) -> Callable[[], object]:
    where = sent_frames(service)
    service.ask("POST", f"{where}/prompts", json=CLICK)

    def again() -> None:
        service.ask("POST", f"{where}/reset", 204)
        service.ask("POST", f"{where}/prompts", json=CLICK)
        assert service.propagate(where) == expected

    return again


@pytest.mark.timeout(1200)
def test_hostile_uploads_beside_clicks_and_another_video(
    service: VideoService, spool: Path, tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    with clicks(service) as click:
        beside_hostile_uploads(service, spool, tmp_path, click, propagations(service, expected))


def beside_hostile_uploads(
    service: VideoService,
    spool: Path,
    folder: Path,
    click: Callable[[], object],
    propagation: Callable[[], object],
) -> None:
    with Bystander(click, _CLICK_PAUSE) as clicking, Bystander(propagation) as tracking:
        eventually(lambda: len(tracking.seconds) >= 4, "another video without hostile ones")
    alone = clicking.told(), tracking.told()
    most, before = 0, service_bytes()
    slowest = 0.0
    with Bystander(click, _CLICK_PAUSE) as clicking, Bystander(propagation) as tracking:
        kept = len(files_of(spool))
        for name, upload in UPLOADS.items():
            data = upload.make(folder)
            begun = time.monotonic()
            answer = service.ask(
                "POST", "", upload.status, files={"file": (upload.name, data)}, data=upload.fields
            ).json()
            slowest = max(slowest, time.monotonic() - begun)
            most = max(most, service_bytes())
            message = answer["error"]["message"]
            assert upload.told in message, name
            assert str(spool) not in message
            assert len(message) < 400
            assert len(files_of(spool)) == kept, name
        for name, make in HARMLESS.items():
            made = service.ask("POST", "", 201, files={"file": ("a.mp4", make(folder))}).json()
            assert made["frames"] == 8, name
            service.ask("DELETE", f"/{made['id']}", 204)
    figures = {
        "refused": (len(UPLOADS), ""),
        "slowest refusal, s": (round(slowest, 1), f"< {LIMITS['video_decode_seconds']:g}"),
        "growth of the service, MiB": (round((most - before) / MIB, 1), "< 100"),
        "clicks alone": (alone[0], ""),
        "propagations of another video alone": (alone[1], ""),
        "clicks beside them": (clicking.told(), f"longest < {STALL_SECONDS:g} s"),
        "propagations of another video beside them": (tracking.told(), "no error"),
    }
    record("video_uploads", "hostile uploads of videos", figures)
    log.info("%s", figures)
    assert max(clicking.seconds) < STALL_SECONDS
    assert max(tracking.seconds) < 3 * STALL_SECONDS
    assert most - before < 100 * MIB


def test_twenty_sessions_at_once(service: VideoService, running: RunningServer, expected: list[dict[str, Any]]) -> None:
    before = counters_so_far(running, "sam2")["video_sessions"]

    def one(_: int) -> None:
        where = sent_frames(service)
        service.ask("POST", f"{where}/prompts", json=CLICK)
        assert service.propagate(where) == expected
        service.ask("DELETE", where, 204)

    begun = time.monotonic()
    with ThreadPoolExecutor(SESSIONS) as threads:
        list(threads.map(one, range(SESSIONS)))
    log.info("%d videos of %d frames at once: %.1f s", SESSIONS, FRAMES, time.monotonic() - begun)
    eventually(lambda: counters_so_far(running, "sam2")["video_sessions"] <= before, "Triton forgets them")


def hang_up_in_upload(service: VideoService, folder: Path) -> None:
    data = plain(folder)
    head = (
        "POST /v1/videos HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
        f"Content-Length: {10 * len(data)}\r\n\r\n--xyz\r\n"
        "Content-Disposition: form-data; name=file; filename=a\r\n\r\n"
    )
    address = httpx.URL(service.address)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head.encode() + data)


def hang_up_in_propagation(service: VideoService) -> str:
    where = sent_frames(service)
    service.ask("POST", f"{where}/prompts", json=CLICK)
    with service.client() as client, client.stream("POST", f"/v1/videos{where}/propagate") as answer:
        next(answer.iter_lines())
    return where


async def hang_up_live(service: VideoService) -> None:
    async with websockets.connect(live_address(service), max_size=None, proxy=None, ping_interval=None) as connection:
        await open_live(connection)
        for number in range(5):
            await connection.send(frame(number))
        await connection.recv()
        connection.transport.abort()


def live_address(service: VideoService) -> str:
    return f"{service.address.replace('http', 'ws', 1)}/v1/videos/live"


async def open_live(connection: Any) -> None:
    await connection.send(json.dumps({"open": {}}))
    await connection.send(json.dumps({"prompt": {name: CLICK[name] for name in ("object_id", "points", "labels")}}))


def metric(service: VideoService, name: str) -> float:
    text = httpx.get(f"{service.address}/metrics", trust_env=False).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name} "))


def test_hanging_up_frees_everything(
    service: VideoService, running: RunningServer, spool: Path, tmp_path: Path
) -> None:
    sessions, files = counters_so_far(running, "sam2")["video_sessions"], len(files_of(spool))
    for _ in range(10):
        hang_up_in_upload(service, tmp_path)
    eventually(lambda: len(files_of(spool)) == files, "no file is left of uploads")
    tracked = [hang_up_in_propagation(service) for _ in range(10)]
    for where in tracked:
        eventually(lambda where=where: not service.ask("GET", where).json()["propagating"], "it has stopped")  # type: ignore[misc]
        assert len(service.ask("GET", where).json()["tracked"]) == 1
        service.ask("DELETE", where, 204)

    async def live() -> None:
        await asyncio.gather(*(hang_up_live(service) for _ in range(10)))

    asyncio.run(live())
    eventually(lambda: counters_so_far(running, "sam2")["video_sessions"] <= sessions, "Triton forgets all of them")
    eventually(lambda: len(files_of(spool)) == files, "no file is left")
    eventually(lambda: metric(service, "triton_sam_service_websockets") == 0, "no socket is counted")


@pytest.mark.timeout(1800)
def test_two_thousand_live_frames_in_flat_memory(service: VideoService, running: RunningServer) -> None:
    readings: list[tuple[int, int]] = []

    async def run() -> float:
        async with websockets.connect(
            live_address(service), max_size=None, proxy=None, ping_interval=None
        ) as connection:
            await open_live(connection)

            async def send() -> None:
                for number in range(LIVE_FRAMES):
                    await connection.send(frame(number % 300))

            sending = asyncio.create_task(send())
            begun = time.monotonic()
            for number in range(LIVE_FRAMES):
                answer = json.loads(await connection.recv())
                assert answer["frame_index"] == number, answer
                assert [one["object_id"] for one in answer["results"]] == [1]
                if number in READ_AT:
                    readings.append((service_bytes(), server_bytes(running)))
            await sending
            return (LIVE_FRAMES - 1) / (time.monotonic() - begun)

    rate = asyncio.run(run())
    services, servers = ([round((one - many[0]) / MIB, 1) for one in many] for many in zip(*readings, strict=True))
    figures = {
        "frames a second": (round(rate, 1), ""),
        f"growth of the service at frames {READ_AT}, MiB": (services, "< 30"),
        f"growth of the server at frames {READ_AT}, MiB": (servers, "< 60"),
    }
    record("video_live", f"{LIVE_FRAMES} live frames", figures)
    log.info("%s", figures)
    assert services[-1] < 30
    assert servers[-1] < 60


def test_a_killed_process_leaves_no_files(service: VideoService, spool: Path) -> None:
    """Its videos are gone, which is told; those of the other process are not touched."""
    where = sent_frames(service)
    service.ask("POST", f"{where}/prompts", json=CLICK)
    owner = files_of(spool)[0].parent
    with service.client() as client, client.stream("POST", f"/v1/videos{where}/propagate") as answer:
        lines = answer.iter_lines()
        assert lines_of(next(lines))[0]["frame_index"] == 0
        for pid in service_pids():
            if any(str(owner) in str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(httpx.HTTPError):
            assert not [line for line in lines if "done" in line], "it has not come to its end"
    eventually(lambda: not owner.exists(), "the next process removes its files")

    def is_gone() -> bool:
        with service.client() as client:
            try:
                return client.get(f"/v1/videos{where}").status_code == 404
            except httpx.HTTPError:
                return False

    eventually(is_gone, "the video is not there")
    again = sent_frames(service, 3)
    service.ask("DELETE", again, 204)

"""Newer versions of a model while it serves: nobody notices a good one, and a broken one changes nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.integration.serve_folder import health, same_graph_other_bytes, serve_folder
from tests.server_readings import workers_of
from tests.waiting import PATIENCE, eventually
from triton_sam import SAM2TritonClient
from triton_sam.client.transport import connect
from triton_sam.client.wire import Address, Call, click_inputs
from triton_sam.errors import ImageExpired
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.segmenters import write_models
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
REQUESTS = 200
CLIENTS = 4
POINTS = ([365, 290], [300, 120], [200, 200])


class Model:
    """A repository of the test's own, and ways to write to it."""

    def __init__(self, spec: ModelSpec, template: Path, folder: Path) -> None:
        self.spec = spec
        self.repository = folder / "model_repository"
        self._folder = folder
        self._encoder, self._decoder = template / "sam2/1/encoder.onnx", template / "sam2/1/decoder.onnx"
        write_models(spec, self._encoder, self._decoder, self.repository)

    def write_good_version(self) -> None:
        newer = same_graph_other_bytes(self._decoder, self._folder / "newer" / "decoder.onnx")
        write_models(self.spec, self._encoder, newer, self.repository)

    def write_broken_version(self) -> None:
        broken = self._folder / "broken.onnx"
        broken.write_bytes(b"no graph at all")
        write_models(self.spec, self._encoder, broken, self.repository)


@pytest.fixture
def model(spec: ModelSpec, repository: Path, tmp_path: Path) -> Model:
    return Model(spec, repository, tmp_path)


@pytest.fixture
def pictures(photographs: Path) -> list[bytes]:
    return [(photographs / name).read_bytes() for name in ("coffee.png", "chelsea.png")]


def expected_masks(running: RunningServer, pictures: list[bytes]) -> list[list[np.ndarray]]:
    """[picture][point] as version 1 has them."""
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        found = []
        for picture in pictures:
            client.set_image(picture)
            found.append([client.segment([point]).masks.masks for point in POINTS])
    return found


class Clicker:
    """One client that never tries twice, so that every error is seen."""

    def __init__(self, url: str, picture: bytes, expected: list[np.ndarray]) -> None:
        self.versions: list[str] = []
        self._client = SAM2TritonClient(url, retries=0)
        self._picture = picture
        self._expected = expected

    def run(self, started: threading.Semaphore) -> None:
        """Clicks its share of the requests, and on until the newer version has answered several."""
        deadline = time.monotonic() + 2 * PATIENCE
        with self._client as client:
            client.set_image(self._picture)
            while len(self.versions) < REQUESTS // CLIENTS or self.versions.count("2") < 10:
                assert time.monotonic() < deadline, f"version 2 does not answer: {self.versions[-3:]}"
                which = len(self.versions) % len(POINTS)
                answer = client.segment([POINTS[which]])
                np.testing.assert_array_equal(answer.masks.masks, self._expected[which])
                self.versions.append(str(answer.result["model_version"]))
                if len(self.versions) == 10:
                    started.release()


@pytest.mark.timeout(900)
def test_a_newer_version_comes_without_an_error(
    model: Model, pictures: list[bytes], tmp_path: Path, processes: int
) -> None:
    with serve_folder(model.repository, tmp_path / "home", processes=str(processes)) as running:
        assert health(running)["versions"] == {"sam2": "1"}
        expected = expected_masks(running, pictures)
        urls = [running.urls["HTTP"], running.urls["gRPC"]] * (CLIENTS // 2)
        clickers = [Clicker(url, pictures[i // 2], expected[i // 2]) for i, url in enumerate(urls)]
        started = threading.Semaphore(0)
        with ThreadPoolExecutor(CLIENTS) as pool:
            work = [pool.submit(clicker.run, started) for clicker in clickers]
            for _ in clickers:
                assert started.acquire(timeout=PATIENCE)
            model.write_good_version()
            for done in work:
                done.result()
        for clicker in clickers:
            assert clicker.versions == sorted(clicker.versions), "an older version answered after a newer one"
            assert clicker.versions.count("1") >= 10
        answered = sum(len(clicker.versions) for clicker in clickers)
        print(f"{answered} clicks while version 2 came, no error")  # noqa: T201
        assert answered >= REQUESTS
        told = health(running)
        assert (told["state"], told["versions"], told["problems"]) == ("ready", {"sam2": "2"}, {})
        process = running.supervisor.process
        eventually(lambda: not process.retiring, "the end of the old processes")
        assert len(process.model_pids) == processes
        eventually(lambda: len(workers_of(running)) == (processes > 1), "the end of the old worker")
        # An answer is out before it is counted.
        eventually(lambda: requests_in_flight(process.in_flight_folder, "sam2") == 0, "the end of all requests")
        assert {path.name for path in process.in_flight_folder.iterdir()} == {
            f"sam2.{pid}" for pid in process.model_pids
        }
        told = health(running)
        assert (told["restarts"], told["reloads"]) == (0, 0), "the end of the old process was taken for a death"


def test_an_image_key_of_the_version_before_has_expired(model: Model, pictures: list[bytes], tmp_path: Path) -> None:
    with (
        serve_folder(model.repository, tmp_path / "home") as running,
        SAM2TritonClient(running.urls["HTTP"]) as client,
    ):
        old_key = client.set_image(pictures[0])
        expected = client.segment([POINTS[0]])
        model.write_good_version()
        eventually(lambda: health(running)["versions"] == {"sam2": "2"}, "version 2")
        transport = connect(Address.parse(running.urls["HTTP"]), 60.0, {})
        with pytest.raises(ImageExpired):
            transport.infer(Call("sam2", click_inputs(old_key, {"points": [POINTS[0]]}), ("result_json",)))
        transport.close()
        again = client.segment([POINTS[0]])
        assert (expected.result["model_version"], again.result["model_version"]) == ("1", "2")
        assert again.result["image_key"] != old_key
        np.testing.assert_array_equal(again.masks.masks, expected.masks.masks)


@pytest.mark.usefixtures("patient_reaping")
def test_a_broken_version_changes_nothing(model: Model, pictures: list[bytes], tmp_path: Path) -> None:
    """Not even for a server that has to come back later; a good version mends it."""
    with serve_folder(model.repository, tmp_path / "home") as running:
        supervisor = running.supervisor
        with SAM2TritonClient(running.urls["HTTP"], retries=0) as client:
            client.set_image(pictures[0])
            expected = client.segment([POINTS[0]]).masks.masks

            def still_serves(version: str) -> None:
                answer = client.segment([POINTS[0]])
                assert answer.result["model_version"] == version
                np.testing.assert_array_equal(answer.masks.masks, expected)

            model.write_broken_version()
            while "sam2" not in health(running)["problems"]:
                still_serves("1")
            told = health(running)
            assert "version 2 does not load" in told["problems"]["sam2"]
            assert "decoder.onnx" in told["problems"]["sam2"]
            assert (told["state"], told["versions"]) == ("ready", {"sam2": "1"})
            still_serves("1")

            eventually(
                lambda: requests_in_flight(supervisor.process.in_flight_folder, "sam2") == 0, "the end of all requests"
            )
            os.kill(next(iter(supervisor.process.model_pids)), signal.SIGKILL)
            eventually(lambda: supervisor.status["reloads"] == 1, "the reload")
            still_serves("1")
            os.kill(supervisor.process.process.pid, signal.SIGKILL)
            eventually(lambda: supervisor.status["restarts"] == 1, "the restart")
            still_serves("1")
            assert "sam2" in health(running)["problems"]

            model.write_good_version()
            eventually(lambda: health(running)["versions"] == {"sam2": "3"}, "version 3")
            still_serves("3")
            assert health(running)["problems"] == {}

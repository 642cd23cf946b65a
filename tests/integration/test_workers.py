"""Several Triton processes in front of one worker for each device: masks, sessions and losses as with one process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic import assert_mask, fresh_picture, png, slow_picture
from tests.server_readings import counters, work_by_device, workers_of
from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.transport import connect
from triton_sam.client.wire import Address, Call, click_inputs, text_of, text_tensor
from triton_sam.errors import ImageExpired, TritonSamError, Unavailable
from triton_sam.models.specs import ModelSpec
from triton_sam.server.host import SHARED_MEMORY, process_alive
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.server.running import ServerRecord
from triton_sam.server.worker_processes import worker_and_spare_pids
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = pytest.mark.triton
PROCESSES = 3
#: Two devices, acted out: each worker is told that it is a device of its own.
DEVICES = "cpu,cpu"
POINT = [20.0, 20.0]


def options(repository: Path, spec: ModelSpec, home: Path) -> ServingOptions:
    environment = {"TRITON_SAM_PROCESSES": str(PROCESSES), "TRITON_SAM_DEVICES": DEVICES, "TRITON_SAM_THREADS": "1"}
    return ServingOptions(
        repository,
        {"sam2": spec},
        Settings(home=home),
        ports=Ports(0, 0, 0, 0),
        with_service=False,
        environment=environment,
    )


@pytest.fixture(scope="module")
def running(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(options(repository, spec, tmp_path_factory.mktemp("home"))) as running:
        yield running


def kill_workers(running: RunningServer) -> None:
    """Kills the workers and waits for new ones."""
    victims = list(workers_of(running))
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    eventually(lambda: not any(process_alive(pid) for pid in victims), "the end of the workers")
    eventually(lambda: len(workers_of(running)) == 2, "two new workers")


def test_images_are_spread_and_encoded_once_and_masks_are_right(running: RunningServer) -> None:
    before, shares = counters(running, "sam2"), work_by_device(running, "encodes")
    pictures = [fresh_picture(number) for number in range(900, 912)]

    def use(which: int) -> None:
        picture = pictures[which % len(pictures)]
        with SAM2TritonClient(running.urls["HTTP" if which % 2 else "gRPC"]) as client:
            client.set_image(png(picture))
            for form in ("png", "rle", "bits"):
                assert_mask(
                    client.segment(points=[POINT], labels=[1], format=form).masks.masks[0], picture, points=[POINT]
                )

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(use, range(3 * len(pictures))))
    after = counters(running, "sam2")
    assert after["encodes_total"] - before["encodes_total"] == len(pictures), "each image is encoded once"
    grown = {device: count - shares[device] for device, count in work_by_device(running, "encodes").items()}
    assert set(grown) == {"0:cpu", "1:cpu"}
    assert min(grown.values()) >= 1, "both devices have encoded"
    assert len(workers_of(running)) == 2
    assert len(running.supervisor.process.model_pids) == PROCESSES


def test_the_state_of_each_device(running: RunningServer) -> None:
    """In the supervisor's status, and for ``triton-sam doctor``."""
    eventually(lambda: running.supervisor.status["devices"], "the first answer to a ping")
    told: dict[str, Any] = {**running.supervisor.status["devices"]}  # type: ignore[dict-item]
    ports = running.ports
    record = ServerRecord(running.urls["HTTP"], None, (ports.http, ports.grpc, ports.metrics), {"sam2": "sam2:tiny"})
    for devices in (told["sam2"], record.devices()["sam2"]):
        assert [(each["device"], each["state"]) for each in devices] == [("cpu", "ready")] * 2
        assert [each["engine"]["stage"] for each in devices] == ["full speed"] * 2


def test_an_embedding_that_a_client_kept_finds_its_device(running: RunningServer) -> None:
    picture = fresh_picture(930)
    prompt = {"points": [POINT], "labels": [1], "format": "logits"}
    with closing(connect(Address.parse(running.urls["HTTP"]), 60.0, {})) as transport:
        image = np.frombuffer(png(picture), np.uint8)
        sent = transport.infer(Call("sam2", {"image": image}, ("embedding", "image_key")))
        by_key = Call("sam2", click_inputs(text_of(sent, "image_key"), prompt), ("low_res_logits",))
        by_embedding = {"embedding": sent["embedding"], "prompt_json": text_tensor(json.dumps(prompt))}
        expected = transport.infer(by_key)["low_res_logits"]
        for _ in range(2 * PROCESSES):  # through every process
            got = transport.infer(Call("sam2", by_embedding, ("low_res_logits",)))["low_res_logits"]
            np.testing.assert_array_equal(got, expected)


def test_an_unknown_key_has_expired_on_every_device(running: RunningServer) -> None:
    call = Call("sam2", click_inputs("f" * 40, {"points": [[1, 1]], "labels": [1]}), ("result_json",))
    with (
        closing(connect(Address.parse(running.urls["HTTP"]), 60.0, {})) as transport,
        pytest.raises(ImageExpired, match="send the image"),
    ):
        transport.infer(call)


def test_a_session_that_changes_its_image_leaves_nothing_behind_on_another_device(running: RunningServer) -> None:
    """Hovers over slow images, each superseded by one over the next image: only few are computed."""

    async def hovers() -> list[object]:
        async with SpeculativeSAM2Client(running.urls["HTTP"]) as client:
            client.configure_session("s", latest_wins=True)
            tasks = []
            for number in range(40, 46):
                client.set_image(slow_picture(number))
                tasks.append(asyncio.create_task(client.predict_async([POINT], [1], "s")))
                await asyncio.sleep(0.05)
            return await asyncio.wait_for(asyncio.gather(*tasks), 200)

    before = counters(running, "sam2")
    results = asyncio.run(hovers())
    assert results[-1] is not None, "the newest one is answered"
    assert counters(running, "sam2")["encodes_total"] - before["encodes_total"] <= 4


def test_a_killed_worker_costs_one_clear_error_and_comes_back(running: RunningServer) -> None:
    process = running.supervisor.process
    triton, stubs = process.process.pid, set(process.model_pids)
    outcomes: list[str] = []
    picture = fresh_picture(940)
    stop = threading.Event()

    def click(protocol: str) -> None:
        with SAM2TritonClient(running.urls[protocol]) as client:
            client.set_image(png(picture))
            while not stop.is_set():
                try:
                    mask = client.segment(points=[POINT], labels=[1], format="bits").masks.masks[0]
                    assert_mask(mask, picture, points=[POINT])
                    outcomes.append("right")
                except Unavailable as error:
                    outcomes.append("told" if "again" in str(error) else f"unclear: {error}")
                except TritonSamError as error:
                    outcomes.append(f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(click, protocol) for protocol in ("HTTP", "gRPC")]
        try:
            for _ in range(2):
                eventually(lambda: outcomes[-3:] == ["right"] * 3, "three right masks", 60)
                kill_workers(running)
            seen = len(outcomes)
            eventually(lambda: "right" in outcomes[seen:], "a right mask from the new workers", 60)
        finally:
            stop.set()
        for done in work:
            done.result(60)
    assert set(outcomes) <= {"right", "told"}
    assert (process.process.pid, set(process.model_pids)) == (triton, stubs), "Triton goes on as it was"
    assert running.supervisor.status["restarts"] == 0


@pytest.mark.usefixtures("patient_reaping")
def test_a_killed_triton_process_is_loaded_again_and_images_stay(running: RunningServer) -> None:
    """The others are loaded again with it; the workers wait for them."""
    process, workers, picture = running.supervisor.process, workers_of(running), fresh_picture(945)
    triton, before = process.process.pid, running.supervisor.status
    with closing(connect(Address.parse(running.urls["HTTP"]), 60.0, {})) as transport:
        sent = transport.infer(Call("sam2", {"image": np.frombuffer(png(picture), np.uint8)}, ("image_key",)))
        prompt = {"points": [POINT], "labels": [1], "format": "logits"}
        click = Call("sam2", click_inputs(text_of(sent, "image_key"), prompt), ("low_res_logits",))
        expected = transport.infer(click)["low_res_logits"]
        eventually(lambda: requests_in_flight(process.in_flight_folder, "sam2") == 0, "the end of all requests")
        os.kill(next(iter(process.model_pids)), signal.SIGKILL)
        eventually(lambda: running.supervisor.status["reloads"] != before["reloads"], "the reload")
        np.testing.assert_array_equal(transport.infer(click)["low_res_logits"], expected)
    assert process.process.pid == triton
    assert running.supervisor.status["restarts"] == before["restarts"]
    assert len(process.model_pids) == PROCESSES
    assert workers_of(running) == workers


def test_nothing_is_left_behind(repository: Path, spec: ModelSpec, tmp_path: Path) -> None:
    with serving(options(repository, spec, tmp_path)) as running:
        regions = f"{running.supervisor.process.shm_prefix}*"
        assert list(SHARED_MEMORY.glob(regions)), "Triton's own, for its processes"
        eventually(lambda: len(workers_of(running)) == 2, "the end of workers that came too late for a device")
        pids = list(workers_of(running))
        with SAM2TritonClient(running.urls["HTTP"]) as client:
            client.set_image(png(Image.new("RGB", (64, 48), "red")))
    eventually(lambda: not any(process_alive(pid) for pid in pids), "the end of the workers")
    assert not list(SHARED_MEMORY.glob(regions))  # other servers may run beside this test


KILLED = """
import sys
from pathlib import Path
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.serving import Ports, ServingOptions, serving
from triton_sam.settings import Settings
repository, home = Path(sys.argv[1]), Path(sys.argv[2])
environment = dict(word.split("=", 1) for word in sys.argv[3:])
models = find_segmenters(repository)
with serving(ServingOptions(repository, models, Settings(home=home), ports=Ports(0, 0, 0, 0), with_service=False,
                            environment=environment)) as running:
    print(running.urls["HTTP"], running.supervisor.process.process.pid, flush=True)
    sys.stdin.read()
"""


def test_a_killed_serve_leaves_no_process(repository: Path, spec: ModelSpec, tmp_path: Path) -> None:
    """Also not one that was sending a response when its server died."""
    wanted = options(repository, spec, tmp_path).environment
    words = [sys.executable, "-c", KILLED, str(repository), str(tmp_path), *(f"{k}={v}" for k, v in wanted.items())]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url, server = process.stdout.readline().split()
        answered = threading.Semaphore(0)

        def click(number: int) -> None:
            with suppress(TritonSamError), SAM2TritonClient(url) as client:
                client.set_image(png(fresh_picture(number)))
                while True:
                    client.segment(points=[POINT], labels=[1], format="bits")
                    answered.release()

        with ThreadPoolExecutor(4) as pool:
            for number in range(950, 954):
                pool.submit(click, number)
            for _ in range(20):
                assert answered.acquire(timeout=60)
            process.kill()
        eventually(lambda: not processes_of(tmp_path, int(server)), "the end of all processes")


def processes_of(home: Path, server: int) -> list[int]:
    """Pids of a server's own processes, of its workers and of a spare."""
    found = [pid for pid in worker_and_spare_pids(server) if process_alive(pid)]
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"{home}/run/" in entry.read_text(errors="replace") and process_alive(int(entry.parent.name)):
                found.append(int(entry.parent.name))
    return found

"""What several Triton processes in front of one worker give on a GPU, against one process that does everything.

usage: python -m benchmarks.device_scale FOLDER [PROCESSES ...]

FOLDER holds a model repository with one segmenter whose weights may be missing: random ones are made then. It runs on a
machine with only numpy, torch and an unpacked Triton (``TRITON`` names its folder), so it starts tritonserver itself
and needs no tritonclient. 0 processes stands for the arrangement without workers. Each arrangement is started, measured
and ended in turn; figures are printed as JSON, one line each.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from triton_sam.bench.load_clients import LoadClients, infer_request, load_clients
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import Pictures, fresh_numbers, number_at
from triton_sam.engines.readiness import Stage
from triton_sam.server.ping_message import PING, read_answer

MODEL = "sam2"
SECONDS = float(os.environ.get("SCALE_SECONDS", "5"))
CLIENTS = int(os.environ.get("SCALE_CLIENTS", "64"))
IMAGE_CLIENTS = 16
_KEY = "0" * 40
#: Kind of process -> a part of its command.
_KINDS = {
    "workers": "workers.process",
    "model processes": "backend_stub",
    "server": "bin/tritonserver",
    "service": "service_process",
    "supervisor": "triton_sam.cli",
}


def say(**figures: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def make_weights(folder: Path) -> None:
    """Random weights in the newest version, if there are none."""
    import torch
    from safetensors.torch import save_file

    from triton_sam.models.catalog import get_spec
    from triton_sam.models.specs import NETWORK_FILE
    from triton_sam.networks.segmenters import build

    file = folder / MODEL / "1" / NETWORK_FILE
    if not file.exists():
        found = re.search(
            r'"model_id"\s*value\s*\{\s*string_value:\s*"([^"]+)"', (folder / MODEL / "config.pbtxt").read_text()
        )
        assert found is not None
        spec = get_spec(found.group(1))
        torch.manual_seed(0)
        network = build(spec.architecture, spec.side)
        with torch.no_grad():
            calm(network)
        save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, file)


def calm(network: Any) -> None:
    """Changes random weights so that masks have areas and borders: the RLE of noise is a hundred times as long."""
    for name, tensor in network.state_dict().items():
        if "conv_s0" in name or "conv_s1" in name:  # details beyond the 64 x 64 cells
            tensor.zero_()
        elif "upscale_conv" in name and name.endswith("weight"):
            tensor.copy_(2 * tensor.mean((2, 3), keepdim=True).expand_as(tensor))
        elif name.endswith("shared_image_embedding.positional_embedding"):
            tensor.mul_(0.4)


class Server:
    """A tritonserver with one segmenter."""

    def __init__(self, folder: Path, processes: int) -> None:
        """
        Args:
            processes: of the segmenter; 0: one, without a worker.
        """
        config = folder / MODEL / "config.pbtxt"
        config.write_text(re.sub(r"count: \d+", f"count: {max(1, processes)}", config.read_text()))
        home = os.environ["TRITON"]
        self.port = free_port()
        ports = [f"--http-port={self.port}", f"--grpc-port={free_port()}", f"--metrics-port={free_port()}"]
        environment = os.environ | ({"TRITON_SAM_DEVICES": "auto"} if processes == 0 else {})
        command = [f"{home}/bin/tritonserver", f"--model-repository={folder}", f"--backend-directory={home}/backends"]
        command += ["--model-control-mode=explicit", f"--load-model={MODEL}", "--http-thread-count=16", *ports]
        self.log = Path(os.environ.get("OUT", "/tmp")) / f"server-{processes}.log"
        self.begun, self.begun_at = time.monotonic(), time.time()
        self.process = subprocess.Popen(command, env=environment, stdout=self.log.open("wb"), stderr=subprocess.STDOUT)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds: float = 300.0) -> float:
        """Seconds since the start until the model serves."""
        while time.monotonic() - self.begun < seconds:
            if self.process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/v2/models/{MODEL}/ready", timeout=2) as response:
                    if response.status == 200:
                        return time.monotonic() - self.begun
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"the server did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def wait_full_speed(self, seconds: float = 300.0) -> float | None:
        """Seconds since the start until compiled code is used on every device; None if one stays uncompiled."""
        return wait_full_speed(self.url, self.begun, seconds)

    def stop(self) -> None:
        """Ends it and waits."""
        end(self.process, signal.SIGTERM, 2.0)


def end(process: subprocess.Popen[bytes], how: signal.Signals, seconds: float) -> None:
    """Ends a process with a signal, and kills it if that takes longer."""
    process.send_signal(how)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_full_speed(url: str, begun: float, seconds: float) -> float | None:
    """Seconds since ``begun`` until all devices are at full speed, by their answers to pings; None if one never is.

    Args:
        url: of Triton.
        begun: time.monotonic() of the start.
    """
    ping = urllib.request.Request(f"{url}/v2/models/{MODEL}/infer", json.dumps(PING).encode(), method="POST")
    while time.monotonic() - begun < seconds:
        with urllib.request.urlopen(ping, timeout=30) as response:
            engines = [device.get("engine", {}) for device in read_answer(json.loads(response.read())).devices]
        if any(engine.get("detail") for engine in engines):
            return None
        if engines and all(engine.get("stage") == Stage.FULL_SPEED.value for engine in engines):
            return round(time.monotonic() - begun, 1)
        time.sleep(0.1)
    return None


class User:
    """One person with one connection: prebuilt bytes."""

    def __init__(self, server: Server, pictures: Pictures) -> None:
        self._connection = Connection("127.0.0.1", server.port)
        self._numbers = fresh_numbers()
        data = pictures.jpeg()
        image = infer_request(server.url, MODEL, {"image": data}, ("image_key",), session="one", number=number_at(data))
        self._image = bytearray(base64.b64decode(image.request))
        self._number = slice(image.number_at, image.number_at + image.digits)
        self._clicks = [click_request(server, pictures, number) for number in range(10)]

    def new_image(self) -> str:
        """Encodes an image that the server has not seen; returns its key."""
        digits = self._number.stop - self._number.start
        self._image[self._number] = b"%0*d" % (digits, next(self._numbers))
        status, body = self._connection.send(self._image, keep_body=True)
        assert status == 200, body[:300]
        return body[-len(_KEY) :].decode()

    def click(self, key: str, number: int = 0) -> bytes:
        """The response of one click: packed bits and a score."""
        request = self._clicks[number % 10].replace(_KEY.encode(), key.encode(), 1)
        status, body = self._connection.send(request, keep_body=True)
        assert status == 200, body[:300]
        return bytes(body)

    def close(self) -> None:
        self._connection.close()


def click_request(server: Server, pictures: Pictures, number: int, key: str = _KEY, session: str = "one") -> bytes:
    """A click as bytes."""
    prompt = {"points": [list(pictures.point(number))], "labels": [1], "format": "bits"}
    inputs = {"image_key": key.encode(), "prompt_json": json.dumps(prompt).encode()}
    request = infer_request(server.url, MODEL, inputs, ("masks", "scores"), session=session)
    return base64.b64decode(request.request)


def milliseconds(values: list[float]) -> dict[str, float]:
    """p50, p95 and p99."""
    cuts = statistics.quantiles(values, n=100)
    return {f"p{percent}": round(cuts[percent - 1] * 1e3, 3) for percent in (50, 95, 99)}


def timed(action: Any, count: int) -> list[float]:
    """Seconds of each call."""
    taken = []
    for number in range(count):
        begun = time.perf_counter()
        action(number)
        taken.append(time.perf_counter() - begun)
    return taken


def alone(user: User) -> dict[str, Any]:
    """Latencies of a single person."""
    images = milliseconds(timed(lambda _: user.new_image(), 150))
    key = user.new_image()
    timed(lambda number: user.click(key, number), 200)

    def session(_: int) -> None:
        fresh = user.new_image()
        for number in range(10):
            user.click(fresh, number)

    return {
        "image_ms": images,
        "click_ms": milliseconds(timed(lambda number: user.click(key, number), 1500)),
        "image_and_10_ms": milliseconds(timed(session, 60)),
    }


def breakdown(server: Server, pictures: Pictures, user: User) -> dict[str, dict[str, float]]:
    """Medians of the steps of a click and of an image on the server, and of the client's time, in milliseconds."""
    connection = Connection("127.0.0.1", server.port)
    prompt = {"points": [list(pictures.point(1))], "labels": [1], "format": "bits"}
    inputs = {"image_key": user.new_image().encode(), "prompt_json": json.dumps(prompt).encode()}
    click = base64.b64decode(infer_request(server.url, MODEL, inputs, ("result_json", "masks"), session="one").request)
    data = pictures.jpeg()
    image = infer_request(server.url, MODEL, {"image": data}, ("result_json",), session="one", number=number_at(data))
    fresh, place = bytearray(base64.b64decode(image.request)), slice(image.number_at, image.number_at + image.digits)
    numbers = fresh_numbers()

    def new_image() -> bytearray:
        fresh[place] = b"%0*d" % (image.digits, next(numbers))
        return fresh

    try:
        return {
            "click": _medians(connection, lambda: click, 400),
            "image": _medians(connection, new_image, 100),
        }
    finally:
        connection.close()


def _medians(connection: Connection, request: Callable[[], bytes | bytearray], count: int) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for _ in range(count):
        sent = request()
        begun = time.perf_counter()
        _, body = connection.send(sent, keep_body=True)
        found.setdefault("client", []).append((time.perf_counter() - begun) * 1e3)
        steps, _ = json.JSONDecoder().raw_decode(body[body.index(b'{"image_key"') :].decode("latin-1"))
        for step, spent in steps["timings_ms"].items():
            found.setdefault(step, []).append(spent)
    return {step: round(statistics.median(values), 3) for step, values in found.items()}


def crowd(server: Server, pictures: Pictures, keys: list[str]) -> dict[str, Any]:
    """Clicks a second of many clients on several images, images a second of fewer."""
    figures: dict[str, Any] = {}
    with load_clients() as clients:
        for number in range(CLIENTS):
            prompt = {"points": [list(pictures.point(number))], "labels": [1], "format": "bits"}
            inputs = {"image_key": keys[number % len(keys)].encode(), "prompt_json": json.dumps(prompt).encode()}
            clients.add(infer_request(server.url, MODEL, inputs, ("masks", "scores"), session=f"user {number}"))
        clients.wait_until_ready()
        for count in sorted({1, 8, 32, CLIENTS}):
            figures[f"clicks_{count}"] = rate_of(clients, count)
    with load_clients() as clients:
        numbers = fresh_numbers()
        data = pictures.jpeg()
        for number in range(IMAGE_CLIENTS):
            clients.add(
                infer_request(
                    server.url,
                    MODEL,
                    {"image": data},
                    ("image_key",),
                    session=f"user {number}",
                    number=number_at(data),
                    first_number=next(numbers) + number * 10**8,
                )
            )
        clients.wait_until_ready()
        clients.begin(IMAGE_CLIENTS, SECONDS, 1.0)
        step = clients.outcome(IMAGE_CLIENTS, SECONDS)
        figures[f"images_{IMAGE_CLIENTS}"] = {"rate": round(step.rate, 1), "p50": round(step.percentile(50), 2)}
    return figures


def rate_of(clients: LoadClients, count: int) -> dict[str, Any]:
    """Answers a second of ``count`` clients, their latencies in milliseconds, and the processor time of the server."""
    before = cpu_seconds()
    clients.begin(count, SECONDS, 1.0)
    step = clients.outcome(count, SECONDS)
    return {
        "rate": round(step.rate, 1),
        "p50": round(step.percentile(50), 2),
        "p99": round(step.percentile(99), 2),
        "refused": step.refused,
        "errors": step.errors,
        "client_cpu_us": round(step.cpu_seconds * 1e6),
        "cpu_seconds": {name: round(spent - before.get(name, 0.0), 2) for name, spent in cpu_seconds().items()},
    }


def cpu_seconds() -> dict[str, float]:
    """Seconds of processor time by kind of process: the server, its model processes, workers, the service."""
    ticks = os.sysconf("SC_CLK_TCK")
    totals: dict[str, float] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_text(errors="replace")
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        kind = next((kind for kind, part in _KINDS.items() if part in line), None)
        if kind is not None:
            totals[kind] = totals.get(kind, 0.0) + (int(stat[11]) + int(stat[12])) / ticks
    return totals


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    make_weights(folder)
    pictures = Pictures(Path(os.environ["SCALE_IMAGE"])) if "SCALE_IMAGE" in os.environ else Pictures()
    reference: bytes | None = None
    for processes in [int(text) for text in arguments[1:]] or [0, 4]:
        server = Server(folder, processes)
        try:
            ready, full = server.wait_ready(), server.wait_full_speed()
            say(processes=processes, ready_s=round(ready, 1), full_speed_s=full, picture=pictures.about)
            user = User(server, pictures)
            keys = [user.new_image() for _ in range(8)]
            mask = user.click(keys[0], 3)[-pictures.height * ((pictures.width + 7) // 8) :]
            reference = reference or mask
            bits = sum((one ^ other).bit_count() for one, other in zip(mask, reference, strict=True))
            say(processes=processes, differing_pixels=bits)
            say(processes=processes, **alone(user))
            say(processes=processes, steps_ms=breakdown(server, pictures, user))
            keys = [user.new_image() for _ in range(8)]
            if CLIENTS:
                say(processes=processes, **crowd(server, pictures, keys))
        finally:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Clicks a second through the service with more and more service processes, and people at work through it.

usage: python -m benchmarks.service_scale FOLDER [SERVICE_PROCESSES ...]

Starts ``triton-sam serve`` on a model repository with one segmenter, once for each number of service processes, and
measures when it serves and when every device is at full speed, then clicks. ``TRITON_SAM_PROCESSES`` and the other
settings count; with ``TRITON_SAM_LOG_FORMAT=json`` the models' log of the start is told too. Figures are printed as
JSON, one line each.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.device_scale import CLIENTS, MODEL, end, free_port, make_weights, rate_of, say, wait_full_speed
from benchmarks.start_timeline import timeline
from triton_sam.bench.load_clients import RepeatedRequest, load_clients
from triton_sam.bench.pictures import Pictures, fresh_numbers, number_at
from triton_sam.settings import Settings

_IMAGES = 8
_FORMS = tuple(os.environ.get("SCALE_FORMS", "rle,bits").split(","))


class Service:
    """``triton-sam serve`` in a process of its own."""

    def __init__(self, folder: Path, processes: int) -> None:
        """
        Args:
            processes: of the service.
        """
        self.port, self.triton = free_port(), free_port()
        ports = ["--service-port", self.port, "--http-port", self.triton, "--grpc-port", 0, "--metrics-port", 0]
        command = [sys.executable, "-m", "triton_sam.cli", "serve", "--model-repository", folder, *ports]
        environment = os.environ | {"TRITON_SAM_SERVICE_PROCESSES": str(processes)}
        self.log = Path(os.environ.get("OUT", "/tmp")) / f"service-{processes}.log"
        self.begun, self.begun_at = time.monotonic(), time.time()
        self.process = subprocess.Popen(
            [str(word) for word in command], env=environment, stdout=self.log.open("wb"), stderr=subprocess.STDOUT
        )

    def wait_ready(self, seconds: float = 300.0) -> float:
        """Seconds since the start until the service is ready."""
        while time.monotonic() - self.begun < seconds and self.process.poll() is None:
            try:
                if self.health()["state"] == "ready":
                    return time.monotonic() - self.begun
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the service did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def wait_full_speed(self, seconds: float = 300.0) -> float | None:
        """Seconds since the start until every device is at full speed; None if one stays uncompiled."""
        return wait_full_speed(f"http://127.0.0.1:{self.triton}", self.begun, seconds)

    def health(self) -> dict[str, Any]:
        """What ``/health`` answers; OSError if it is not ready."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def timeline(self) -> list[tuple[float, str]]:
        """(seconds since the start, line) of the models' log, if it is in JSON."""
        return timeline(Settings().home / "logs" / f"triton-{self.triton}.log", self.begun_at)

    def post(self, path: str, body: bytes, kind: str = "application/json") -> dict[str, Any]:
        """A JSON response."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": kind})
        with urllib.request.urlopen(request, timeout=60) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def request(self, document: dict[str, Any]) -> RepeatedRequest:
        """A click as prebuilt bytes."""
        body = json.dumps(document).encode()
        lines = ["POST /v1/segment HTTP/1.1", f"Host: 127.0.0.1:{self.port}", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
        return RepeatedRequest("127.0.0.1", self.port, base64.b64encode(head + body).decode(), 0, 0, 0)

    def stop(self) -> None:
        """Ends it and waits."""
        end(self.process, signal.SIGINT, 20.0)


def clicks(service: Service, pictures: Pictures, form: str) -> dict[str, Any]:
    """Clicks a second of many clients on several images."""
    keys = []
    numbers, data = fresh_numbers(), bytearray(pictures.jpeg())
    place = number_at(bytes(data))
    for _ in range(_IMAGES):
        data[place] = b"%0*d" % (place.stop - place.start, next(numbers))
        document = {"image": base64.b64encode(data).decode(), "points": [list(pictures.point(0))]}
        keys.append(service.post("/v1/segment", json.dumps(document).encode())["image_key"])
    figures: dict[str, Any] = {}
    with load_clients() as clients:
        for number in range(CLIENTS):
            point = list(pictures.point(number))
            clients.add(service.request({"image_key": keys[number % _IMAGES], "points": [point], "format": form}))
        clients.wait_until_ready()
        for count in sorted({1, 16, CLIENTS}):
            figures[str(count)] = rate_of(clients, count)
    return figures


def users(service: Service, count: int, image: str | None) -> dict[str, Any]:
    """People at work through the service and through Triton; the figures of ``bench users``."""
    told: dict[str, Any] = {}
    for through, port in (("service", service.port), ("triton", service.triton)):
        output = Path(os.environ.get("OUT", "/tmp")) / f"users-{through}.json"
        command = [sys.executable, "-m", "triton_sam.bench.users", "--url", f"http://127.0.0.1:{port}"]
        command += ["--through", through, "--model", MODEL, "--users", str(count), "--seconds", "20"]
        command += ["--output", str(output), *(["--image", image] if image else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        told[through] = done.stdout[-2500:] + done.stderr[-500:]
    return told


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    make_weights(folder)
    image = os.environ.get("SCALE_IMAGE")
    pictures = Pictures(Path(image)) if image else Pictures()
    for processes in [int(text) for text in arguments[1:]] or [1, 4]:
        service = Service(folder, processes)
        try:
            ready = round(service.wait_ready(), 1)
            say(service_processes=processes, ready_s=ready, full_speed_s=service.wait_full_speed())
            say(timeline_of_the_start=service.timeline(), health=service.health().get("devices"))
            for form in _FORMS if CLIENTS else ():
                say(service_processes=processes, form=form, **clicks(service, pictures, form))
            if count := int(os.environ.get("SCALE_USERS", "0")):
                for through, text in users(service, count, image).items():
                    say(service_processes=processes, users=count, through=through)
                    sys.stdout.write(text + "\n")
        finally:
            service.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

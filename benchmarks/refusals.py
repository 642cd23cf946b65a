"""What each place that can refuse a request is worth, under ten times the load that is served.

usage: python -m benchmarks.refusals FOLDER [VARIANT ...]

FOLDER is a model repository with one segmenter, or "instant" for a stand-in in the service's process. For each variant
``triton-sam serve`` is started with one place switched off (by replacing functions in its process), its served clicks a
second are measured, and ten times as many are sent at a steady rate; figures are printed as JSON, one line each. The
``TRITON_SAM_*`` settings count. The variants are in benchmarks/refusal_variants.py.

REFUSALS_SECONDS: of the load. REFUSALS_RATE: requests a second instead of ten times what the first variant serves.
REFUSALS_KIND: ``clicks`` or ``uploads``. REFUSALS_IMAGE: a file instead of the sample photograph.

A run counts only if others left the machine alone: ``others_cpu_s`` is what they took of the server's cores, and
``clients_cpu_s`` what the load's own processes took of theirs.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.device_scale import end, free_port, say
from benchmarks.refusal_variants import VARIANTS
from testkit.steady_load import LoadResult, Plan, merged, percentile, result_of, running_load, split
from triton_sam.bench.load_clients import RepeatedRequest, load_clients
from triton_sam.bench.pictures import Pictures

SECONDS = float(os.environ.get("REFUSALS_SECONDS", "10"))
KIND = os.environ.get("REFUSALS_KIND", "clicks")
TIMES = 10
_CLIENTS = 16
_CALIBRATION_SECONDS = 4.0
#: A request without a response after this time counts as one without an answer.
_PATIENCE = 15.0
_HAPROXY_CONFIG = Path(__file__).resolve().parents[1] / "deploy" / "haproxy" / "haproxy.cfg"
_REFUSED = (429, 503)
#: The server has the first half of the cores and the clients the others: real ones have machines of their own.
_CORES = sorted(os.sched_getaffinity(0))
_SERVER_CORES = _CORES[: len(_CORES) // 2]


# -- the server and what is measured ----------------------------------------------------------------------------------


class Service:
    """A variant in a process of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.variant = VARIANTS[name]
        self.port, self.triton = free_port(), free_port()
        ports = ["--service-port", self.port, "--http-port", self.triton, "--grpc-port", 0, "--metrics-port", 0]
        command = [sys.executable, "-m", "benchmarks.refusal_variants", name, "--model-repository", folder, *ports]
        self.log = Path(os.environ.get("OUT", "/tmp")) / f"refusals-{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                env=os.environ | self.variant.settings | {"REFUSALS_CORES": ",".join(map(str, _SERVER_CORES))},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self, seconds: float = 300.0) -> None:
        """Returns when the service is ready and uses compiled code, if it is compiled."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            if _is_healthy(self.port):
                told = self.log.read_text(errors="replace")
                if "serves uncompiled" not in told or "is at full speed" in told:
                    return
            time.sleep(0.2)
        raise SystemExit(f"the service did not start:\n{self.log.read_text(errors='replace')[-3000:]}")

    def post(self, path: str, document: dict[str, Any]) -> dict[str, Any]:
        """A JSON response."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def usage(self) -> dict[str, dict[str, float]]:
        """Kind of process -> seconds of processor time, and its largest memory in MB."""
        ticks = os.sysconf("SC_CLK_TCK")
        found: dict[str, dict[str, float]] = {}
        for pid in _family(self.process.pid):
            with contextlib.suppress(OSError, IndexError):
                folder = Path(f"/proc/{pid}")
                line = (folder / "cmdline").read_text(errors="replace")
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
                peak = next(row for row in (folder / "status").read_text().splitlines() if row.startswith("VmHWM"))
                kind = "model" if "backend_stub" in line or "workers" in line else "service"
                kind = "triton" if "bin/tritonserver" in line else kind
                entry = found.setdefault(kind, {"cpu_s": 0.0, "peak_mb": 0.0})
                entry["cpu_s"] += (int(stat[11]) + int(stat[12])) / ticks
                entry["peak_mb"] += int(peak.split()[1]) / 1024
        return found

    def stop(self) -> None:
        """Ends it and waits."""
        end(self.process, signal.SIGINT, 20.0)


def _is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _milliseconds(values: list[float], *percents: int) -> dict[str, float]:
    return {f"p{percent}": round(percentile(values, percent / 100) * 1e3, 1) for percent in percents}


def disturbance() -> float:
    """Seconds that the server's cores have been busy, and taken by the host, since the machine's start."""
    names = {f"cpu{core}" for core in _SERVER_CORES}
    rows = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    # user, nice, system, idle, iowait, irq, softirq, steal
    busy = sum(int(row[at]) for row in rows if row[0] in names for at in (1, 2, 3, 6, 7, 8))
    return busy / os.sysconf("SC_CLK_TCK")


def _clients_cpu() -> float:
    """Processor time of the load's processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _family(parent: int) -> list[int]:
    """A process and its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ppid = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(ppid, []).append(int(entry.name))
    found = [parent]
    for pid in found:
        found += children.get(pid, [])
    return found


@contextlib.contextmanager
def haproxy(service: Service) -> Iterator[int]:
    """The port of HAProxy in front of a service, which refuses clicks above the service's number of requests."""
    program = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise SystemExit("no haproxy on this machine: run scripts/install_deploy_tools.sh")
    names = ("BIND", "BIND_TRITON_HTTP", "BIND_TRITON_GRPC", "BIND_STATS")
    ports = {name: free_port() for name in names}
    variables = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    variables |= {"SAM_1": f"127.0.0.1:{service.port}", "SAM_2": f"127.0.0.1:{service.port}"}
    variables |= {"INSIDE": f"abns@refusals-{ports['BIND']}"}
    variables |= {"MOST_REQUESTS": os.environ.get("TRITON_SAM_SERVICE_REQUESTS", "256")}
    process = subprocess.Popen(
        [program, "-db", "-f", str(_HAPROXY_CONFIG)], env=os.environ | variables, stdout=subprocess.DEVNULL
    )
    try:
        for _ in range(100):
            if _is_healthy(ports["BIND"]):
                break
            time.sleep(0.1)
        yield ports["BIND"]
    finally:
        end(process, signal.SIGTERM, 5.0)


def clicks_of(service: Service, pictures: Pictures) -> list[str]:
    """Documents of clicks on an image that is cached now."""
    point = list(pictures.point(0))
    document = {"image": base64.b64encode(pictures.jpeg()).decode(), "points": [point], "format": "bits"}
    key = service.post("/v1/segment", document)["image_key"]
    return [
        json.dumps({"image_key": key, "points": [list(pictures.point(number))], "format": "bits"})
        for number in range(40)
    ]


def served_rate(service: Service, documents: list[str]) -> tuple[float, float]:
    """(answers a second of clients that each wait for their answer, seconds of one alone)."""
    with load_clients() as clients:
        for number in range(_CLIENTS):
            body = documents[number].encode()
            lines = ["POST /v1/segment HTTP/1.1", f"Host: 127.0.0.1:{service.port}", "Content-Type: application/json"]
            head = "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode()
            clients.add(RepeatedRequest("127.0.0.1", service.port, base64.b64encode(head + body).decode()))
        clients.wait_until_ready()
        clients.begin(1, 2.0, 0.5)
        lone = clients.outcome(1, 2.0)
        clients.begin(_CLIENTS, _CALIBRATION_SECONDS, 0.5)
        return clients.outcome(_CLIENTS, _CALIBRATION_SECONDS).rate, lone.percentile(50) / 1e3


def upload_rate(service: Service) -> tuple[float, float]:
    """As :func:`served_rate`, for small pictures one after the other."""
    plan = Plan(f"http://127.0.0.1:{service.port}", 4.0, 1.0, "/v1/images", first_picture=50_000)
    with running_load(plan) as process:
        seconds = percentile(result_of(process).seconds(200), 0.5)
    return 1 / seconds, seconds


def crowd(port: int, rate: float, documents: list[str]) -> tuple[LoadResult, LoadResult]:
    """The answers to a steady load, and those of ``/health`` meanwhile."""
    url = f"http://127.0.0.1:{port}"
    if documents:
        plan = Plan(url, SECONDS, rate, "/v1/segment", documents, patience=_PATIENCE)
    else:
        plan = Plan(url, SECONDS, rate, "/v1/images", first_picture=0, patience=_PATIENCE)
    with contextlib.ExitStack() as stack:
        load = [stack.enter_context(running_load(part)) for part in split(plan)]
        health = stack.enter_context(running_load(Plan(url, SECONDS, 20.0, "/health", patience=_PATIENCE)))
        return merged([result_of(part) for part in load]), result_of(health)


def measure(service: Service, rate: float | None, pictures: Pictures) -> float:
    """Says the figures of one variant; returns the requests a second that were sent."""
    documents = clicks_of(service, pictures) if KIND == "clicks" else []
    served, alone = served_rate(service, documents) if documents else upload_rate(service)
    rate = rate or TIMES * served
    before, busy, clients = service.usage(), disturbance(), _clients_cpu()
    with contextlib.ExitStack() as stack:
        port = stack.enter_context(haproxy(service)) if service.variant.haproxy else service.port
        answers, health = crowd(port, rate, documents)
    after, busy = service.usage(), disturbance() - busy
    admitted, refused = answers.seconds(200), answers.seconds(*_REFUSED)
    say(
        calm={"served_per_s": round(served, 1), "alone_ms": round(alone * 1e3, 2)},
        sent_per_s=round(rate, 1),
        served_per_s=round(len(admitted) / SECONDS, 1),
        served_ms=_milliseconds(admitted, 50, 95, 99),
        refused=len(refused),
        refused_ms=_milliseconds(refused, 50, 95, 99),
        no_answer=len(answers.broken),
        other={status: answers.count(status) for status, *_ in answers.answers if status not in (200, *_REFUSED)},
        health_ms=_milliseconds(health.seconds(200), 50, 99),
        health_failed=health.sent - health.count(200),
        cpu_s={kind: round(use["cpu_s"] - before.get(kind, use)["cpu_s"], 2) for kind, use in after.items()},
        clients_cpu_s=round(_clients_cpu() - clients, 2),
        others_cpu_s=round(busy - sum(use["cpu_s"] - before.get(kind, use)["cpu_s"] for kind, use in after.items()), 2),
        peak_mb={kind: round(use["peak_mb"]) for kind, use in after.items()},
    )
    return rate


def main(arguments: list[str]) -> None:
    os.sched_setaffinity(0, _CORES[len(_CORES) // 2 :])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server is ended too
    folder = Path(arguments[0])
    image = os.environ.get("REFUSALS_IMAGE")
    pictures = Pictures(Path(image)) if image else Pictures()
    rate = float(os.environ["REFUSALS_RATE"]) if "REFUSALS_RATE" in os.environ else None
    for name in arguments[1:] or VARIANTS:
        service = Service(folder, name)
        try:
            service.wait_ready()
            say(variant=name)
            rate = measure(service, rate, pictures)
        finally:
            service.stop()


if __name__ == "__main__":
    main(sys.argv[1:])

from __future__ import annotations

import io
import json
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.server.supervisor_helpers import MODEL_PID, WAIT, FakeServers, status_of
from triton_sam.server import pings, process, supervisor
from triton_sam.server.command import ServerOptions
from triton_sam.server.ping_message import DeviceState
from triton_sam.server.pings import PingPolicy
from triton_sam.server.process import TritonProcess
from triton_sam.server.supervisor import Supervisor

Devices = tuple[DeviceState, ...] | None
GPU = ({"device": "0", "state": "ready", "in_flight": 1, "engine": {"stage": "compiling", "seconds": 4.5}},)


def test_missed_pings_restart_the_server(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, str]] = []

    def ping(_process: object, model: str, _policy: PingPolicy) -> Devices:
        asked.append((len(servers.processes), model))
        return () if len(servers.processes) > 1 else None

    monkeypatch.setattr(pings, "ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=3)) as supervised:
        status = servers.recovered.get(timeout=WAIT)
        assert (status["state"], status["restarts"]) == ("ready", 1)
        assert "pings" in str(status["reason"])
        assert supervised.process is servers.processes[1]
    assert asked.count((1, "sam2")) >= 3
    assert servers.processes[0].steps == ["ready", "kill"]
    assert len(servers.processes) == 2


def test_a_ping_that_is_answered_forgives_those_before(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = threading.Event()
    answers: Iterator[Devices] = iter([None, None, GPU] * 10)

    def ping(_process: object, _model: str, _policy: PingPolicy) -> Devices:
        answer = next(answers, ())
        if answer == ():
            done.set()
            return GPU
        return answer

    monkeypatch.setattr(pings, "ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=3)) as supervised:
        assert done.wait(WAIT)
        assert supervised.status == status_of(devices={"sam2": GPU})
    assert len(servers.processes) == 1


def test_one_of_several_processes_hangs_while_the_others_answer(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ping reaches one of them: two of three are answered."""
    answers: Iterator[Devices] = iter([GPU, None, GPU] * 30)

    def ping(process: TritonProcess, _model: str, _policy: PingPolicy) -> Devices:
        process.model_pids = dict.fromkeys((101, 102, 103), "sam2")
        return next(answers, GPU)

    monkeypatch.setattr(pings, "ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=3)):
        status = servers.recovered.get(timeout=WAIT)
    assert status["restarts"] == 1
    assert "pings" in str(status["reason"])


def test_misses_long_ago_are_forgiven_to_several_processes(
    options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = Supervisor(options, ("sam2",))
    pinger = supervised._pinger
    monkeypatch.setattr(supervised, "_process", SimpleNamespace(model_pids={1: "sam2", 2: "sam2", 3: "other"}))
    for healthy, missed in [(False, 1), *[(True, 1)] * 5, (True, 0), (False, 1), *[(True, 1)] * 5, (False, 2)]:
        pinger._count(healthy)
        assert pinger.missed == missed


@pytest.mark.parametrize("state", ["starting", "recovering", "stopping", "failed"])
def test_only_a_server_that_serves_is_pinged(
    state: str, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pings, "ping", lambda *_: pytest.fail("pinged"))
    supervised = Supervisor(options, ("sam2",))
    supervised._status.state = state
    waits = iter([False, False, False, True])
    monkeypatch.setattr(supervised, "_stopping", SimpleNamespace(wait=lambda _: next(waits)))
    supervised._pinger.run()
    assert list(waits) == []
    assert supervised._pinger.missed == 0


def test_a_ping_into_a_recovery_does_not_count(options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def ping(_process: object, _model: str, _policy: PingPolicy) -> Devices:
        supervised._status.state = "recovering"
        return None

    monkeypatch.setattr(pings, "ping", ping)
    supervised = Supervisor(options, ("sam2",))
    monkeypatch.setattr(supervised, "_process", SimpleNamespace(model_pids={}))
    supervised._status.state = "ready"
    waits = iter([False, True])
    monkeypatch.setattr(supervised, "_stopping", SimpleNamespace(wait=lambda _: next(waits)))
    supervised._pinger.run()
    assert supervised._pinger.missed == 0


def answered(options: ServerOptions, monkeypatch: pytest.MonkeyPatch, urlopen: Callable[..., Any]) -> Devices:
    """A ping through a real TritonProcess whose HTTP calls go to ``urlopen``."""
    monkeypatch.setattr(process._without_proxy, "open", urlopen)
    nowhere = options.state / "nowhere"
    no_process: Any = None
    server = process.TritonProcess(options, no_process, nowhere, nowhere, "prefix", "key")
    return pings.ping(server, "sam2", PingPolicy())


def answer_of(document: object) -> Callable[..., Any]:
    body = json.dumps({"outputs": [{"name": "result_json", "data": [json.dumps(document)]}]})

    def urlopen(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        assert request.full_url == "http://127.0.0.1:8000/v2/models/sam2/infer"
        assert timeout == 15.0
        asked = json.loads(request.data)  # type: ignore[arg-type]
        assert asked["parameters"] == {"ping": True}
        return io.BytesIO(body.encode())

    return urlopen


@pytest.mark.parametrize(
    ("document", "devices"),
    [
        ({"encode_seconds": 0}, ()),
        ({"encode_seconds": 599.9, "devices": [*GPU]}, GPU),
        ({"encode_seconds": 600.0, "devices": [*GPU]}, None),
        ({}, None),
        ([], None),
        ({"encode_seconds": 0, "devices": [7]}, None),
    ],
)
def test_a_ping(document: object, devices: Devices, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(options, monkeypatch, answer_of(document)) == devices


@pytest.mark.parametrize(
    "error", [TimeoutError("slow"), ConnectionResetError("gone"), urllib.error.URLError("refused"), OSError("odd")]
)
def test_a_ping_that_is_not_answered(error: Exception, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    def urlopen(*_: object, **__: object) -> None:
        raise error

    assert answered(options, monkeypatch, urlopen) is None


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"outputs": []}', b'{"outputs": [{"data": [7]}]}'])
def test_a_ping_whose_answer_is_nonsense(body: bytes, options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never an exception: it would end the pinging thread, and nobody would notice a hung model again."""
    assert answered(options, monkeypatch, lambda *_, **__: io.BytesIO(body)) is None


def test_a_ping_that_is_cut_off(options: ServerOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    import http.client

    def urlopen(*_: object, **__: object) -> None:
        raise http.client.BadStatusLine("half a line")

    assert answered(options, monkeypatch, urlopen) is None


def test_a_model_that_does_not_load_is_reported_and_not_pinged(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or the missing answers would restart the server that serves all the others."""
    pinged: queue.Queue[str] = queue.Queue()

    def ping(_process: object, model: str, _policy: PingPolicy) -> Devices:
        pinged.put(model)
        return ()

    monkeypatch.setattr(pings, "ping", ping)
    servers.on_start = lambda started: started.failed.update({"other": "decoder.onnx is damaged"})
    with Supervisor(options, ("sam2", "other"), PingPolicy(every=0.001)) as supervised:
        assert {pinged.get(timeout=10) for _ in range(5)} == {"sam2"}
        status = supervised.status
        assert (status["state"], status["missing"]) == ("ready", ("other",))
        assert status["problems"] == {"other": "does not load, the other models serve: decoder.onnx is damaged"}
    assert caplog.text.count("decoder.onnx is damaged") == 1


def test_a_dead_process_is_not_pinged_before_its_death_is_noticed(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton never answers what comes to a dead process, and keeps it as a zombie."""
    pinged: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(pings, "ping", lambda _process, model, _policy: pinged.put(model) or ())
    monkeypatch.setattr(supervisor, "_WATCH_SECONDS", 10 * WAIT)
    with Supervisor(options, ("sam2", "other"), PingPolicy(every=0.001)):
        assert {pinged.get(timeout=WAIT) for _ in range(4)} == {"sam2", "other"}
        servers.dead.add(MODEL_PID)
        while not pinged.empty():
            pinged.get()
        others = 0
        while others < 2:  # the first of them ends the round in progress
            others += pinged.get(timeout=WAIT) == "other"
        assert {pinged.get(timeout=WAIT) for _ in range(5)} == {"other"}


def test_the_devices_of_an_earlier_process_are_forgotten(
    servers: FakeServers, options: ServerOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = threading.Event()

    def ping(_process: object, _model: str, _policy: PingPolicy) -> Devices:
        if len(servers.processes) > 1:
            return None
        told.set()
        return GPU

    monkeypatch.setattr(pings, "ping", ping)
    with Supervisor(options, ("sam2",), PingPolicy(every=0.002, missed=10**6)) as supervised:
        assert told.wait(WAIT)
        servers.processes[0].alive = False
        assert servers.recovered.get(timeout=WAIT)["restarts"] == 1
        assert supervised.status["devices"] == {}


def test_the_first_round_is_soon(options: ServerOptions) -> None:
    """The devices are known when somebody looks at a server that has just started."""
    pauses: list[float] = []
    supervised = Supervisor(options, ("sam2",), PingPolicy(every=5.0, first=0.2))
    supervised._pinger._is_stopping = lambda seconds: bool(pauses.append(seconds)) or len(pauses) == 3
    supervised._pinger.run()
    assert pauses == [0.2, 5.0, 5.0]

"""What the answer to a ping says of a model's devices: how ready each is, and how busy."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.backend.scheduler_helpers import Counts, GatedEngine
from triton_sam.backend import core as core_module
from triton_sam.backend.core import LocalCore
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.workers import remote_core
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.remote_core import WorkerCore
from triton_sam.engines.base import Capacity
from triton_sam.engines.readiness import Readiness, Stage
from triton_sam.errors import InternalError, TritonSamError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.settings import Settings

COMPILING = {"stage": "compiling", "seconds": 4.5, "detail": ""}


class ReadyEngine(GatedEngine):
    """On a GPU, as far as anybody is told."""

    encoder_numbers = "float16"

    def __init__(self) -> None:
        super().__init__()
        self.capacity = Capacity(on_cpu=False)
        self.readiness = Readiness(Stage.COMPILING, 4.5)
        self.closed = False

    def close(self) -> None:
        self.closed = True


def pinged(core: LocalCore | WorkerCore) -> Any:
    answers: queue.Queue[dict[str, Any] | TritonSamError] = queue.Queue()
    core.ping(answers.put)
    return answers.get(timeout=10)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ReadyEngine:
    engine = ReadyEngine()
    monkeypatch.setattr(core_module, "load_engine", lambda *_: engine)
    monkeypatch.setattr(core_module, "hurry_threads", lambda: None)  # of this test's process
    monkeypatch.setattr(core_module.Image, "MAX_IMAGE_PIXELS", core_module.Image.MAX_IMAGE_PIXELS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    return engine


@pytest.fixture
def local(engine: ReadyEngine) -> Iterator[LocalCore]:
    core = LocalCore(get_spec(DEFAULT_MODEL), Path(), "1", Settings(), Counts())
    yield core
    core.close()
    assert engine.closed, "its compiler must not outlive it"


def test_one_device_in_this_process(local: LocalCore, engine: ReadyEngine) -> None:
    device = {"device": "3", "state": "ready", "in_flight": 0, "engine": COMPILING}
    assert pinged(local) == {"encode_seconds": 0.0, "engine": COMPILING, "devices": [device]}
    engine.readiness = Readiness(Stage.FULL_SPEED, 31.5)
    assert pinged(local)["engine"] == {"stage": "full speed", "seconds": 31.5, "detail": ""}
    engine.capacity = Capacity(on_cpu=True)
    assert pinged(local)["devices"][0]["device"] == "cpu"


class FakeLink:
    """A worker that answers as it is told; None was lost after the question."""

    answers: tuple[Any, ...] = ()

    def __init__(self, options: WorkerOptions, _instance: int, _events: object, _spare: object) -> None:
        self.options = options
        self.info = ModelInfo("sam2:tiny", "1", "float16")
        self.answer = self.answers[options.index]
        self.ready = self.answer != "starting"

    def start(self) -> None: ...

    def wait_ready(self, _seconds: float) -> None: ...

    def close(self) -> None: ...

    def ask(self, header: dict[str, Any], done: Callable[[Any], None]) -> None:
        assert header == {"is": "ping"}
        done(self.answer)


def workers(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> WorkerCore:
    monkeypatch.setattr(FakeLink, "answers", answers)
    monkeypatch.setattr(remote_core, "DeviceLink", FakeLink)
    options = [
        WorkerOptions(1, "sam2", "1", "sam2:tiny", "", index, device) for index, device in enumerate(("auto", "1", "2"))
    ]
    metrics: Any = type("Metrics", (), {"device_counts": None, "device_changed": None})()
    return WorkerCore(options, 0, metrics, 1.0)


def answer_of(device: str, seconds: float, in_flight: int) -> dict[str, Any]:
    state = {"device": device, "state": "ready", "in_flight": in_flight, "engine": COMPILING}
    return {"encode_seconds": seconds, "engine": COMPILING, "devices": [state]}


def test_each_device_behind_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """In their order; what its worker says about the one that the engine has chosen."""
    first, third = answer_of("0", 0.5, 2), answer_of("2", 1.5, 0)
    core = workers(monkeypatch, first, "starting", third)
    lost = {"device": "1", "state": "starting", "in_flight": 0, "engine": None}
    assert pinged(core) == {"encode_seconds": 1.5, "devices": [first["devices"][0], lost, third["devices"][0]]}


def test_a_worker_that_is_lost_while_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each["state"] for each in pinged(workers(monkeypatch, None, None, None))["devices"]] == ["starting"] * 3
    core = workers(monkeypatch, "starting", "starting", "starting")
    assert [each["state"] for each in pinged(core)["devices"]] == ["starting"] * 3


def test_a_worker_whose_threads_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = pinged(workers(monkeypatch, answer_of("0", 0, 0), {"failed": "a worker has ended"}, None))
    assert isinstance(answer, InternalError)
    assert str(answer) == "a worker has ended"

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from tests.unit.serving_helpers import LLAVA, SHAPES, SPEC, write_profile
from triton_sam import serving
from triton_sam.errors import ServerError, SetupError
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.server import host
from triton_sam.server.command import ServerOptions
from triton_sam.server.pings import PingPolicy
from triton_sam.server.selection import ModelSelection
from triton_sam.server.stop_signals import Interrupts
from triton_sam.service.upstream import Upstream
from triton_sam.serving import (
    EXPOSED_WARNING,
    OPEN_SERVICE_WARNING,
    Ports,
    RunningServer,
    ServeRequest,
    ServingOptions,
    serve_models,
)
from triton_sam.settings import MIB, Settings

FREE = Ports(0, 0, 0, 0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


class FakeSupervisor:
    """Notes what it was made of; ``failure`` hinders its start."""

    made: list[FakeSupervisor]
    failure: Exception | None = None

    def __init__(
        self,
        options: ServerOptions,
        segmenters: tuple[str, ...],
        ping_policy: PingPolicy | None,
        should_stop: Callable[[], bool],
    ) -> None:
        assert not should_stop()
        self.options, self.segmenters, self.ping_policy = options, segmenters, ping_policy
        self.steps: list[str] = []
        self.status = {"state": "ready"}
        FakeSupervisor.made.append(self)

    def start(self) -> None:
        self.steps.append("start")
        if FakeSupervisor.failure is not None:
            raise FakeSupervisor.failure

    def stop(self) -> None:
        self.steps.append("stop")

    def on_loss(self, callback: object) -> Callable[[], None]:
        return lambda: None


@pytest.fixture
def supervisors(monkeypatch: pytest.MonkeyPatch) -> list[FakeSupervisor]:
    monkeypatch.setattr(FakeSupervisor, "made", [], raising=False)
    monkeypatch.setattr(FakeSupervisor, "failure", None)
    monkeypatch.setattr(serving, "Supervisor", FakeSupervisor)
    return FakeSupervisor.made


def test_models_for_foreign_tools_are_always_loaded(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    repository = write_profile(tmp_path / "repository")
    write_profile(repository, "sam2_encoder")
    for raw, expected in (
        (False, ("sam2", "sam2_encoder", "tool_encoder")),
        (True, ("sam2", "sam2_encoder", "sam2_decoder", "tool_encoder")),
    ):
        with serving.serving(
            ServingOptions(repository, {"sam2": SPEC}, settings, ports=FREE, raw=raw, with_service=False)
        ):
            assert supervisors[-1].options.models == expected
            assert supervisors[-1].segmenters == ("sam2",)
    with serving.serving(ServingOptions(repository, {}, settings, ports=FREE, with_service=False)):
        assert supervisors[-1].options.models == ("sam2_encoder", "tool_encoder")
        assert supervisors[-1].segmenters == ()


def test_vision_language_models_are_loaded_under_both_names(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "check_vlm_runtime", lambda: "")
    models = {"shapes": SHAPES, "llava": LLAVA}
    with serving.serving(
        ServingOptions(tmp_path, {"sam2": SPEC}, settings, vlms=models, ports=FREE, with_service=False)
    ) as running:
        assert supervisors[-1].options.models == ("sam2", "shapes", "shapes_stream", "llava", "llava_stream")
        assert supervisors[-1].segmenters == ("sam2",), "the others are not pinged"
        assert running.vlms == models
    with serving.serving(
        ServingOptions(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE, with_service=False)
    ):
        assert supervisors[-1].options.models == ("shapes", "shapes_stream")


def test_a_request_may_be_as_large_as_a_videos_state(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    remembers = dataclasses.replace(SPEC, memory=MEMORY_TRAITS["sam2.1"])
    for spec, expected in ((SPEC, 118 * MIB), (remembers, settings.video_session_bytes)):
        with serving.serving(ServingOptions(tmp_path, {"sam2": spec}, settings, ports=FREE, with_service=False)):
            assert 0 <= supervisors[-1].options.max_request_bytes - expected <= 16 * MIB


def test_the_service_knows_the_vision_language_models(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton_sam.service import app

    monkeypatch.setattr(host, "check_vlm_runtime", lambda: "")
    backends: list[Upstream] = []
    real = app.create_app

    def create_app(backend: Upstream, settings: Settings) -> Any:
        backends.append(backend)
        return real(backend, settings)

    monkeypatch.setattr(app, "create_app", create_app)
    with serving.serving(ServingOptions(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE)):
        assert backends[0].vlms() == {"shapes": SHAPES}


@pytest.mark.torch
@pytest.mark.parametrize("missing", ["torch", "transformers", "safetensors", "jinja2"])
def test_vision_language_models_need_torch_and_the_others_do_not(
    missing: str,
    tmp_path: Path,
    settings: Settings,
    supervisors: list[FakeSupervisor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else real(name))
    with (
        pytest.raises(SetupError, match=rf"{missing} is not installed .* pip install .*\[vlm\]"),
        serving.serving(
            ServingOptions(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE, with_service=False)
        ),
    ):
        pytest.fail("served")
    assert supervisors == []
    with serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False)):
        assert supervisors[0].options.models == ("sam2",)


@pytest.mark.parametrize("raw", [False, True])
def test_options_of_the_server(
    raw: bool, tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    policy = PingPolicy(every=1)
    with serving.serving(
        ServingOptions(
            tmp_path / "repository",
            {"sam2": SPEC},
            settings,
            ports=FREE,
            raw=raw,
            log_level="info",
            with_service=False,
            environment={"A": "b"},
            ping_policy=policy,
        )
    ) as running:
        (supervisor,) = supervisors
        assert supervisor.steps == ["start"]
        options = supervisor.options
        assert options.models == (("sam2", "sam2_encoder", "sam2_decoder") if raw else ("sam2",))
        assert supervisor.segmenters == ("sam2",)
        assert supervisor.ping_policy is policy
        assert options.repository == tmp_path.resolve() / "repository"
        assert (options.state, options.host, options.log_level) == (settings.home, "127.0.0.1", "info")
        assert (options.http_port, options.grpc_port, options.metrics_port) == (
            running.ports.http,
            running.ports.grpc,
            running.ports.metrics,
        )
        assert dict(options.environment) == {"A": "b"}
        assert running.urls == {
            "HTTP": f"http://127.0.0.1:{running.ports.http}",
            "gRPC": f"grpc://127.0.0.1:{running.ports.grpc}",
            "metrics": f"http://127.0.0.1:{running.ports.metrics}/metrics",
        }
    assert supervisor.steps == ["start", "stop"]


def test_the_service_has_an_address_too(settings: Settings) -> None:
    running = RunningServer(SimpleNamespace(), Ports(), "127.0.0.1", {}, "127.0.0.1")  # type: ignore[arg-type]
    assert running.urls["service"] == "http://127.0.0.1:8080"


def test_a_server_that_does_not_start_is_stopped(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSupervisor, "failure", ServerError("it does not load"))
    with (
        pytest.raises(ServerError, match="does not load"),
        serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False)),
    ):
        pytest.fail("served")
    assert supervisors[0].steps == ["start", "stop"]


def test_an_error_in_the_block_stops_the_server(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False)),
    ):
        raise ZeroDivisionError
    assert supervisors[0].steps == ["start", "stop"]


def test_a_busy_service_port_is_found_before_the_server_starts(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = Ports(0, 0, 0, taken.getsockname()[1])
        with (
            pytest.raises(ServerError, match="--service-port"),
            serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, settings, ports=ports)),
        ):
            pytest.fail("served")
    assert all(supervisor.steps in ([], ["stop"]) for supervisor in supervisors)


def test_without_the_service_triton_runs_alone(
    tmp_path: Path,
    settings: Settings,
    supervisors: list[FakeSupervisor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, settings, ports=FREE)) as running:
        assert "service" not in running.urls
    assert "pip install" in caplog.text
    assert "[service]" in caplog.text


@pytest.mark.parametrize(
    ("bind", "warned", "reach"),
    [("127.0.0.1", False, "127.0.0.1"), ("localhost", False, "localhost"), ("0.0.0.0", True, "127.0.0.1")],
)
@pytest.mark.usefixtures("supervisors")
def test_a_server_that_is_open_to_the_network(
    bind: str, warned: bool, reach: str, tmp_path: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        serving.serving(
            ServingOptions(tmp_path, {"sam2": SPEC}, settings, triton_bind=bind, ports=FREE, with_service=False)
        ) as running,
    ):
        assert running.reach == reach
    assert (EXPOSED_WARNING in caplog.messages) is warned


@pytest.mark.parametrize(("token", "warned"), [(None, True), ("secret", False)])
@pytest.mark.usefixtures("supervisors")
def test_a_service_that_is_open_to_the_network_leaves_triton_closed(
    token: str | None, warned: bool, tmp_path: Path, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    guarded = settings.model_copy(update={"token": None if token is None else SecretStr(token)})
    with (
        caplog.at_level(logging.WARNING),
        serving.serving(ServingOptions(tmp_path, {"sam2": SPEC}, guarded, bind="0.0.0.0", ports=FREE)) as running,
    ):
        assert running.supervisor.options.host == "127.0.0.1"
        assert running.urls["service"].startswith("http://127.0.0.1:")
    assert (OPEN_SERVICE_WARNING in caplog.messages) is warned
    assert EXPOSED_WARNING not in caplog.messages


# serve_models


def test_serve_models_passes_its_request_on(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def prepare(*arguments: object) -> ModelSelection:
        asked["prepare"] = arguments[:3]
        return ModelSelection(tmp_path, {"sam2": SPEC}, {"shapes": SHAPES})

    def serve(options: ServingOptions) -> None:
        asked["serving"] = options
        raise ServerError("enough")

    monkeypatch.setattr(host, "check_platform", lambda: None)
    monkeypatch.setattr(serving.logs, "set_up", lambda _: None)
    monkeypatch.setattr(serving, "prepare", prepare)
    monkeypatch.setattr(serving, "serving", serve)
    before = signal.getsignal(signal.SIGTERM)
    listening = {"bind": "0.0.0.0", "triton_bind": "127.0.0.2", "ports": Ports(1, 2, 3, 0)}
    request = ServeRequest(["sam2:tiny"], tmp_path, **listening, raw=True, log_level="info")  # type: ignore[arg-type]
    with pytest.raises(ServerError, match="enough"), serve_models(request, settings):
        pytest.fail("served")
    assert signal.getsignal(signal.SIGTERM) is before
    assert asked["prepare"] == (["sam2:tiny"], settings, tmp_path)
    options = asked["serving"]
    assert isinstance(options.should_stop, Interrupts)
    assert options == ServingOptions(
        tmp_path,
        {"sam2": SPEC},
        settings,
        vlms={"shapes": SHAPES},
        **listening,  # type: ignore[arg-type]
        raw=True,
        log_level="info",
        should_stop=options.should_stop,
    )


# waiting


def running_with(supervisor: SimpleNamespace, should_stop: Callable[[], bool]) -> RunningServer:
    made: Any = supervisor
    return RunningServer(made, Ports(), "127.0.0.1", {}, should_stop=should_stop)


def test_waiting_ends_with_the_reason_of_a_failure() -> None:
    answers = iter([False, True])
    supervisor = SimpleNamespace(wait=lambda _: next(answers), status={"reason": "it died"})
    with pytest.raises(ServerError, match="it died"):
        running_with(supervisor, Interrupts()).wait()


def test_waiting_ends_with_an_interrupt() -> None:
    interrupts = Interrupts()
    waits: list[float] = []

    def interrupt(seconds: float) -> bool:
        waits.append(seconds)
        interrupts.seen = True
        return False

    running_with(SimpleNamespace(wait=interrupt), interrupts).wait()
    assert len(waits) == 1

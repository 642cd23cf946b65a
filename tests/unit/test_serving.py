from __future__ import annotations

import dataclasses
import importlib.util
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from triton_sam import serving
from triton_sam.errors import InvalidInput, ServerError, SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, ModelSpec
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_weights import VlmStore, bundled_folder
from triton_sam.models.weights import WeightStore
from triton_sam.repository.segmenters import has_file, write_models, write_plain_model
from triton_sam.repository.vlms import find_vlms, own_checkpoint, write_vlm
from triton_sam.server import host
from triton_sam.server.command import ServerOptions
from triton_sam.server.supervisor import PingPolicy
from triton_sam.service.upstream import Upstream
from triton_sam.serving import EXPOSED_WARNING, OPEN_SERVICE_WARNING, Ports, Running, Served, is_loopback, prepare
from triton_sam.settings import Settings

SPEC = get_spec(DEFAULT_MODEL)
LARGE = get_spec("sam2.1:large")
SHAPES, LLAVA = get_vlm("vlm:shapes"), get_vlm("vlm:llava")
FREE = Ports(0, 0, 0, 0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def set_ups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What was set up, without weights."""
    done: list[tuple[str, Path]] = []

    def set_up(
        spec: ModelSpec,
        store: Any,
        repository: Path,
        progress: Any,
        *,
        cpu_encoder: bool,
        fast_encoder: bool,
        fast_decoder: bool,
    ) -> list[str]:
        assert cpu_encoder
        assert fast_decoder
        done.append((spec.id, repository))
        write_repository(repository, spec, fast=fast_encoder)
        return []

    monkeypatch.setattr(serving, "set_up", set_up)
    return done


def write_repository(folder: Path, spec: ModelSpec = SPEC, *, fast: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder.parent / "graph.onnx"
    graph.write_bytes(b"graph")
    raw = None if spec.graphs.exported else (graph, graph)
    write_models(spec, graph, graph, folder, raw=raw, extras={EIGHT_BIT_ENCODER_FILE: graph} if fast else {})
    return folder


def write_profile(folder: Path, name: str = "tool_encoder") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    graph = folder.parent / "tool.onnx"
    graph.write_bytes(b"tool")
    write_plain_model(name, graph, folder, inputs=[], outputs=[], profile="tool")
    return folder


# addresses


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.0.7", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_is_loopback(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


# ports


def test_named_ports_stay() -> None:
    assert serving._with_free_ports(Ports(1, 2, 3, 4), "127.0.0.1") == Ports(1, 2, 3, 4)


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
def test_free_ports_are_four_different_ones(bind: str) -> None:
    ports = serving._with_free_ports(FREE, bind)
    chosen = (ports.http, ports.grpc, ports.metrics, ports.service)
    assert len(set(chosen)) == 4
    assert all(1024 <= port <= 65535 for port in chosen)


def test_a_free_port_is_never_one_that_is_taken_already(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = iter([7, 9, 9, 7, 11, 9, 13])
    monkeypatch.setattr(host, "free_port", lambda _: next(offered))
    assert serving._with_free_ports(Ports(7, 0, 0, 0), "127.0.0.1") == Ports(7, 9, 11, 13)


def test_a_free_port_is_never_one_that_is_named_later(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = iter([8080, 9, 11, 13])
    monkeypatch.setattr(host, "free_port", lambda _: next(offered))
    assert serving._with_free_ports(Ports(0, 0, 0, 8080), "127.0.0.1") == Ports(9, 11, 13, 8080)


@pytest.mark.parametrize("ports", [Ports(7, 7, 8, 9), Ports(7, 8, 9, 7), Ports(0, 5, 6, 6)])
def test_a_port_that_is_named_twice(ports: Ports) -> None:
    with pytest.raises(SetupError, match=r"port \d+ is named twice"):
        serving._with_free_ports(ports, "127.0.0.1")


# prepare


@pytest.mark.parametrize("fast", [None, False, True])
def test_8_bits_are_set_up_where_a_variable_asks_for_them(
    fast: bool | None, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    asking = settings.model_copy(update={"fast_encoder": fast})
    for _ in range(2):
        prepare([SPEC.id], asking, None)
    assert len(set_ups) == (1 if fast else 0)
    assert has_file(SPEC, settings.repository, EIGHT_BIT_ENCODER_FILE) is bool(fast)


def test_exports_are_not_set_up_for_8_bits(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    write_repository(settings.repository, LARGE)
    prepare([LARGE.id], settings.model_copy(update={"fast_encoder": True}), None)
    assert set_ups == []


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("installed", [False, True])
def test_an_older_ready_made_model(
    installed: bool,
    fast: bool,
    settings: Settings,
    set_ups: list[tuple[str, Path]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With its files at hand it is set up again, for what this version makes of them; else it is made from itself."""
    monkeypatch.setattr(WeightStore, "is_installed", lambda *_: installed)
    refreshed = []
    monkeypatch.setattr(serving, "refresh", lambda spec, _: refreshed.append(spec.id) or True)
    write_repository(settings.repository, fast=fast)
    (settings.repository / "sam2_encoder" / "config.pbtxt").write_text('name: "sam2_encoder"')
    prepare([SPEC.id], settings, None)
    assert (len(set_ups), len(refreshed)) == ((1, 0) if installed else (0, 1))
    assert has_file(SPEC, settings.repository, EIGHT_BIT_ENCODER_FILE) is fast, "what was asked for once stays"


def test_an_empty_repository_of_ones_own(tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    with pytest.raises(SetupError) as caught:
        prepare([], settings, mine)
    assert str(mine) in str(caught.value)
    assert f"`triton-sam setup {DEFAULT_MODEL} --model-repository {mine}`" in str(caught.value)
    assert list(mine.iterdir()) == []
    assert set_ups == []


def test_a_repository_of_ones_own_without_the_model(
    tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    mine = write_repository(tmp_path / "mine")
    with pytest.raises(SetupError, match="has no model sam9:huge"):
        prepare([DEFAULT_MODEL, "sam9:huge"], settings, mine)
    assert set_ups == []


@pytest.mark.parametrize("ids", [[], [DEFAULT_MODEL]])
def test_a_repository_of_ones_own_is_read_and_not_written(
    ids: list[str], tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    mine = write_repository(tmp_path / "mine")
    before = sorted(str(path) for path in mine.rglob("*"))
    assert prepare(ids, settings, mine) == Served(mine, {"sam2": SPEC})
    assert sorted(str(path) for path in mine.rglob("*")) == before
    assert set_ups == []
    assert not settings.home.exists()


def test_nothing_set_up_yet_means_the_default_model(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    assert prepare([], settings, None) == Served(settings.repository, {"sam2": SPEC})
    assert set_ups == [(DEFAULT_MODEL, settings.repository)]


@pytest.mark.parametrize("ids", [[], [DEFAULT_MODEL]])
def test_what_is_set_up_is_not_set_up_again(
    ids: list[str], settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    assert prepare(ids, settings, None) == Served(settings.repository, {"sam2": SPEC})
    assert set_ups == []


def test_a_model_that_is_set_up_keeps_its_name(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    write_repository(settings.repository)
    write_repository(settings.repository, LARGE)
    assert prepare([LARGE.id], settings, None).segmenters == {"sam2.1_large": LARGE}
    assert prepare([], settings, None).segmenters == {"sam2": SPEC, "sam2.1_large": LARGE}
    assert set_ups == []


def test_an_export_is_not_overwritten_because_its_config_is_of_another_release(
    settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    exported = dataclasses.replace(SPEC, graphs=get_spec("sam2.1:tiny").graphs)
    write_repository(settings.repository, exported)
    config = settings.repository / "sam2" / "config.pbtxt"
    right = config.read_text()
    config.write_text(right.replace("1024", "7"))
    assert prepare([SPEC.id], settings, None).segmenters == {"sam2": exported}
    assert set_ups == []
    assert config.read_text() == right
    assert [path.name for path in config.parent.iterdir() if path.is_dir()] == ["1"]


def test_ready_made_graphs_that_are_not_whole_are_set_up_again(
    settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    write_repository(settings.repository)
    (settings.repository / "sam2" / "1" / "decoder.onnx").unlink()
    assert prepare([], settings, None).segmenters == {"sam2": SPEC}
    assert set_ups == [(SPEC.id, settings.repository)]


@pytest.mark.parametrize("own", [False, True])
def test_models_for_foreign_tools_alone(
    own: bool, tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    folder = write_profile(tmp_path / "mine" if own else settings.repository)
    assert prepare([], settings, folder if own else None) == Served(folder, {})
    assert set_ups == []


def test_an_unknown_model(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    with pytest.raises(InvalidInput, match="sam9:huge"):
        prepare([DEFAULT_MODEL, "sam9:huge"], settings, None)
    assert set_ups == []


# prepare, vision-language models


@pytest.mark.torch
@pytest.mark.parametrize("ids", [["vlm:shapes"], ["shapes"], ["vlm:shapes", "shapes"]])
def test_a_vision_language_model_alone(
    ids: list[str], settings: Settings, set_ups: list[tuple[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folders are written, its weights are not looked for, and no segmenter is set up for it."""
    monkeypatch.setattr(VlmStore, "pull", lambda *_: pytest.fail("downloaded"))
    assert prepare(ids, settings, None) == Served(settings.repository, {}, {"shapes": SHAPES})
    assert find_vlms(settings.repository) == {"shapes": SHAPES}
    assert set_ups == []


@pytest.mark.torch
def test_both_kinds(settings: Settings, set_ups: list[tuple[str, Path]]) -> None:
    expected = Served(settings.repository, {"sam2": SPEC}, {"llava": LLAVA})
    assert prepare(["vlm:llava", DEFAULT_MODEL], settings, None) == expected
    assert set_ups == [(DEFAULT_MODEL, settings.repository)]
    write_vlm(SHAPES, settings.repository)
    assert prepare([DEFAULT_MODEL], settings, None).vlms == {}
    assert prepare(["vlm:shapes"], settings, None) == Served(settings.repository, {}, {"shapes": SHAPES})
    everything = Served(settings.repository, {"sam2": SPEC}, {"llava": LLAVA, "shapes": SHAPES})
    assert prepare([], settings, None) == everything


@pytest.mark.torch
@pytest.mark.parametrize("own", [False, True])
def test_a_repository_with_vision_language_models_only(
    own: bool, tmp_path: Path, settings: Settings, set_ups: list[tuple[str, Path]]
) -> None:
    repository = tmp_path / "mine" if own else settings.repository
    write_vlm(SHAPES, repository)
    assert prepare([], settings, repository if own else None) == Served(repository, {}, {"shapes": SHAPES})
    assert set_ups == []


@pytest.mark.torch
def test_a_repository_of_ones_own_without_the_vision_language_model(tmp_path: Path, settings: Settings) -> None:
    mine = write_repository(tmp_path / "mine")
    with pytest.raises(SetupError, match=rf"has no model vlm:llava: run `triton-sam setup vlm:llava .*{mine}`"):
        prepare([DEFAULT_MODEL, "llava"], settings, mine)
    write_vlm(LLAVA, mine)
    assert prepare(["llava"], settings, mine) == Served(mine, {}, {"llava": LLAVA})
    assert prepare([], settings, mine) == Served(mine, {"sam2": SPEC}, {"llava": LLAVA})


@pytest.mark.torch
def test_a_config_of_another_release_keeps_its_checkpoint(settings: Settings) -> None:
    checkpoint = bundled_folder(SHAPES)
    write_vlm(LLAVA, settings.repository, checkpoint)
    config = settings.repository / "llava" / "config.pbtxt"
    right = config.read_text()
    config.write_text(right.replace("usage_json", "usage"))
    assert prepare([], settings, None).vlms == {"llava": LLAVA}
    assert config.read_text() == right
    assert own_checkpoint(LLAVA, settings.repository) == checkpoint


def test_an_unknown_vision_language_model(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match="no vision-language model 'vlm:gpt'"):
        prepare(["vlm:gpt"], settings, None)
    assert not settings.home.exists()


# serving


class FakeSupervisor:
    """Notes what it was made of; ``failure`` hinders its start."""

    made: list[FakeSupervisor]
    failure: Exception | None = None

    def __init__(
        self,
        options: ServerOptions,
        segmenters: tuple[str, ...],
        ping_policy: PingPolicy | None,
        shall_stop: Callable[[], bool],
    ) -> None:
        assert not shall_stop()
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
        with serving.serving(repository, {"sam2": SPEC}, settings, ports=FREE, raw=raw, with_service=False):
            assert supervisors[-1].options.models == expected
            assert supervisors[-1].segmenters == ("sam2",)
    with serving.serving(repository, {}, settings, ports=FREE, with_service=False):
        assert supervisors[-1].options.models == ("sam2_encoder", "tool_encoder")
        assert supervisors[-1].segmenters == ()


def test_vision_language_models_are_loaded_under_both_names(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "check_vlm_runtime", lambda: "")
    models = {"shapes": SHAPES, "llava": LLAVA}
    with serving.serving(tmp_path, {"sam2": SPEC}, settings, vlms=models, ports=FREE, with_service=False) as running:
        assert supervisors[-1].options.models == ("sam2", "shapes", "shapes_stream", "llava", "llava_stream")
        assert supervisors[-1].segmenters == ("sam2",), "the others are not pinged"
        assert running.vlms == models
    with serving.serving(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE, with_service=False):
        assert supervisors[-1].options.models == ("shapes", "shapes_stream")


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
    with serving.serving(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE):
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
        pytest.raises(SetupError, match=rf"{missing} is not installed .* pip install 'triton-sam\[vlm\]'"),
        serving.serving(tmp_path, {}, settings, vlms={"shapes": SHAPES}, ports=FREE, with_service=False),
    ):
        pytest.fail("served")
    assert supervisors == []
    with serving.serving(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False):
        assert supervisors[0].options.models == ("sam2",)


@pytest.mark.parametrize("raw", [False, True])
def test_what_the_server_is_told(
    raw: bool, tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    policy = PingPolicy(every=1)
    with serving.serving(
        tmp_path / "repository",
        {"sam2": SPEC},
        settings,
        ports=FREE,
        raw=raw,
        log_level="info",
        with_service=False,
        environment={"A": "b"},
        ping_policy=policy,
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
    running = Running(SimpleNamespace(), Ports(), "127.0.0.1", {}, "127.0.0.1")  # type: ignore[arg-type]
    assert running.urls["service"] == "http://127.0.0.1:8080"


def test_a_server_that_does_not_start_is_stopped(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeSupervisor, "failure", ServerError("it does not load"))
    with (
        pytest.raises(ServerError, match="does not load"),
        serving.serving(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False),
    ):
        pytest.fail("served")
    assert supervisors[0].steps == ["start", "stop"]


def test_an_error_in_the_block_stops_the_server(
    tmp_path: Path, settings: Settings, supervisors: list[FakeSupervisor]
) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        serving.serving(tmp_path, {"sam2": SPEC}, settings, ports=FREE, with_service=False),
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
            serving.serving(tmp_path, {"sam2": SPEC}, settings, ports=ports),
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
    with serving.serving(tmp_path, {"sam2": SPEC}, settings, ports=FREE) as running:
        assert "service" not in running.urls
    assert "pip install 'triton-sam[service]'" in caplog.text


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
            tmp_path, {"sam2": SPEC}, settings, triton_bind=bind, ports=FREE, with_service=False
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
        serving.serving(tmp_path, {"sam2": SPEC}, guarded, bind="0.0.0.0", ports=FREE) as running,
    ):
        assert running.supervisor.options.host == "127.0.0.1"
        assert running.urls["service"].startswith("http://127.0.0.1:")
    assert (OPEN_SERVICE_WARNING in caplog.messages) is warned
    assert EXPOSED_WARNING not in caplog.messages

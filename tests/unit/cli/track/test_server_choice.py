"""Which server and which model ``triton-sam track`` uses where none is named."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from triton_sam import serving as serving_module
from triton_sam.cli import track_server as module
from triton_sam.cli.track_server import TrackModels, TrackServer, track_server
from triton_sam.errors import NotFound, ServerUnreachable, SetupError, Unavailable
from triton_sam.models.catalog import TEXT_MODEL, VIDEO_MODEL
from triton_sam.models.specs import triton_name
from triton_sam.server import host, selection
from triton_sam.settings import get_settings

IMAGES = {"sam2": {"model_id": "sam2:tiny"}}
OURS = {"sam2_tiny_video": {"model_id": VIDEO_MODEL, "memory": "sam2.1"}}
METAS = {"sam2.1_tiny": {"model_id": "sam2.1:tiny", "memory": "sam2.1"}}
TOY = {"sam3_shapes": {"model_id": TEXT_MODEL, "concepts": "32"}}
WHOLE = {"sam3": {"model_id": "sam3:full", "memory": "sam3", "concepts": "32"}}
Models = Mapping[str, Mapping[str, str]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Models]:
    """Address -> what is served there; the first ones are recorded as this machine's."""
    servers: dict[str, Models] = {}

    class Transport:
        def __init__(self, url: str) -> None:
            self.url = url

        def served(self) -> list[str]:
            return list(servers.get(self.url, {}))

        def parameters(self, name: str) -> Mapping[str, str]:
            if name == "broken":
                raise Unavailable("gone")
            if self.url not in servers:
                raise ServerUnreachable(f"no server responds at {self.url}")
            if name not in servers[self.url]:
                raise NotFound(name)
            return servers[self.url][name]

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "Endpoint", lambda url, *_, **__: SimpleNamespace(transport=lambda: Transport(url)))
    monkeypatch.setattr(
        module,
        "find_running",
        lambda _: [SimpleNamespace(triton_url=url) for url in servers if url != "localhost:8000"],
    )
    monkeypatch.setenv("TRITON_SAM_HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_URL", raising=False)
    get_settings.cache_clear()
    return servers


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was set up and served for a run."""
    seen: list[Any] = []

    def prepare(ids: list[str], *_: object) -> Any:
        seen.append(ids)
        segmenters = {triton_name(model_id): SimpleNamespace(id=model_id) for model_id in ids}
        return SimpleNamespace(repository=Path("models"), segmenters=segmenters)

    @contextlib.contextmanager
    def serving(options: Any) -> Iterator[Any]:
        assert not options.with_service
        assert (options.ports.http, options.ports.service) == (0, 0)
        yield SimpleNamespace(urls={"HTTP": "http://127.0.0.1:1234"})
        seen.append("stopped")

    monkeypatch.setattr(host, "check_platform", lambda: None)
    monkeypatch.setattr(selection, "prepare", prepare)
    monkeypatch.setattr(serving_module, "serving", serving)
    return seen


def chosen(urls: list[str] | None = None, model: str | None = None) -> tuple[list[str] | None, str]:
    with track_server(urls, TrackModels(model), None) as server:
        assert isinstance(server, TrackServer)
        assert server.text_model == ""
        return None if server.urls is None else list(server.urls), server.model


def chosen_for_words(
    urls: list[str] | None = None, model: str | None = None, text_model: str | None = None
) -> tuple[list[str] | None, str, str]:
    with track_server(urls, TrackModels(model, text_model, finds=True), None) as server:
        return None if server.urls is None else list(server.urls), server.model, server.text_model


def test_a_model_that_is_named_is_asked_for_where_it_always_was(machine: dict[str, Models]) -> None:
    machine["here:1"] = OURS
    assert chosen(None, "sam2.1_large") == (None, "sam2.1_large")
    assert chosen(["there:1"], "sam2") == (["there:1"], "sam2")


def test_a_server_of_this_machine_that_takes_videos(machine: dict[str, Models]) -> None:
    machine |= {"here:1": IMAGES, "here:2": {**IMAGES, **OURS}}
    assert chosen() == (["here:2"], "sam2_tiny_video")


def test_a_memory_by_meta_comes_first_on_one_server_and_on_several(machine: dict[str, Models]) -> None:
    machine["here:1"] = {**OURS, **METAS}
    assert chosen() == (["here:1"], "sam2.1_tiny")
    machine |= {"here:1": OURS, "here:2": METAS}
    assert chosen() == (["here:2"], "sam2.1_tiny")
    machine |= {"here:2": OURS, "localhost:8000": METAS}
    assert chosen() == (["localhost:8000"], "sam2.1_tiny")


def test_a_server_that_is_named_serves_even_if_it_takes_no_videos(
    machine: dict[str, Models], started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine |= {"there:1": METAS, "there:2": IMAGES, "there:3": {"broken": {}}, "here:1": OURS}
    assert chosen(["there:1"]) == (["there:1"], "sam2.1_tiny")
    assert chosen(["there:2"]) == (["there:2"], "sam2")
    assert chosen(["there:3", "there:1"]) == (["there:3", "there:1"], "sam2.1_tiny")
    monkeypatch.setenv("TRITON_URL", "there:1")
    get_settings.cache_clear()
    assert chosen() == (None, "sam2.1_tiny")
    assert started == []


def test_a_server_for_this_run(machine: dict[str, Models], started: list[Any]) -> None:
    machine["here:1"] = IMAGES
    assert chosen() == (["http://127.0.0.1:1234"], "sam2_tiny_video")
    assert started == [[VIDEO_MODEL], "stopped"]


def test_where_no_server_can_be_started(
    machine: dict[str, Models], started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise SetupError("Triton runs on Linux")

    monkeypatch.setattr(host, "check_platform", refuse)
    with pytest.raises(SetupError, match=r"no server with a model for videos answers.*Triton runs on Linux"):
        chosen()
    assert started == []


def test_a_model_that_is_set_up(
    monkeypatch: pytest.MonkeyPatch, started: list[Any], machine: dict[str, Models]
) -> None:
    monkeypatch.setattr(module, "video_model", lambda _: "sam2.1:tiny")
    chosen()
    assert started[0] == ["sam2.1:tiny"]


# Words


def test_words_need_a_model_that_takes_text(machine: dict[str, Models]) -> None:
    machine["there:1"] = {**OURS, **TOY, **IMAGES}
    assert chosen_for_words(["there:1"]) == (["there:1"], "sam2_tiny_video", "sam3_shapes")
    assert chosen_for_words(["there:1"], "sam2.1_large") == (["there:1"], "sam2.1_large", "sam3_shapes")
    assert chosen_for_words(["there:1"], "sam2", "mine") == (["there:1"], "sam2", "mine")
    machine["there:1"] = {**OURS, **TOY, **WHOLE}
    assert chosen_for_words(["there:1"]) == (["there:1"], "sam3", "sam3")
    machine["there:1"] = OURS
    with pytest.raises(ServerUnreachable, match="no server responds at nowhere:1"):
        chosen_for_words(["nowhere:1"])
    with pytest.raises(NotFound, match=r"no model on there:1 takes text: .* setup sam3"):
        chosen_for_words(["there:1"])
    assert chosen_for_words(["there:1"], None, "mine") == (["there:1"], "sam2_tiny_video", "mine")


def test_a_server_of_this_machine_that_takes_videos_and_words(machine: dict[str, Models], started: list[Any]) -> None:
    machine |= {"here:1": OURS, "here:2": {**OURS, **TOY}}
    assert chosen_for_words() == (["here:2"], "sam2_tiny_video", "sam3_shapes")
    assert started == []


def test_a_server_for_this_run_with_words(machine: dict[str, Models], started: list[Any]) -> None:
    machine["here:1"] = METAS
    assert chosen_for_words() == (["http://127.0.0.1:1234"], "sam2_tiny_video", "sam3_shapes")
    assert started == [[VIDEO_MODEL, TEXT_MODEL], "stopped"]

"""Set-up and removal of the model that is put together here, with mere bytes as its graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from triton_sam.errors import SetupError, WeightsError
from triton_sam.export import cpu_decoder, cpu_encoder, ort_to_onnx
from triton_sam.export.assembly import run
from triton_sam.models.catalog import DEFAULT_MODEL, VIDEO_MODEL, get_spec
from triton_sam.models.specs import MEMORY_FILE, MEMORY_GRAPHS, NETWORK_FILE, EngineChoice
from triton_sam.models.weights import WeightStore
from triton_sam.repository import assembling, export_cache, setup
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.segmenters import find_segmenters, is_current, write_models
from triton_sam.repository.setup import SetupRequest, set_up, uninstall
from triton_sam.repository.video_choice import best_for_video, video_model
from triton_sam.server import selection
from triton_sam.settings import Settings

SPEC = get_spec(VIDEO_MODEL)
NAMES = ["sam2_tiny_video", "sam2_tiny_video_encoder", "sam2_tiny_video_decoder"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WeightStore:
    """With the published files, which count as whole."""
    store = WeightStore(tmp_path / "home")
    store.blobs.mkdir(parents=True)
    for file in SPEC.files:
        with store.path(file).open("wb") as sparse:
            sparse.truncate(file.size)
    monkeypatch.setattr(WeightStore, "_is_whole", WeightStore._present)
    return store


@pytest.fixture
def repository(store: WeightStore) -> Path:
    return store.home / "model_repository"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the module that puts models together."""
    asked: list[Any] = []

    def assembled(spec: Any, graphs: Any, bundled: Any, folder: Path, say: Any) -> Path:
        asked.append((spec.id, sorted(graphs), [path.name for path in bundled]))
        own = folder / f"{spec.variant_name}-assembled-1"
        own.mkdir(parents=True, exist_ok=True)
        for name in ("encoder.onnx", "decoder.onnx", *MEMORY_GRAPHS, MEMORY_FILE):
            (own / name).write_bytes(name.encode())
        return own

    monkeypatch.setattr(ort_to_onnx, "as_onnx", lambda path, _: path)
    monkeypatch.setattr(assembling, "bundled_path", Path)
    monkeypatch.setattr(run, "assembled", assembled)
    monkeypatch.setattr(run, "assembled_checkpoint", lambda *_: Path("checkpoint.safetensors"))
    monkeypatch.setattr(setup, "_has_gpu", lambda: False)
    for module, name in ((cpu_encoder, "make_cpu_encoder"), (cpu_decoder, "make_cpu_decoder")):
        monkeypatch.setattr(module, name, lambda plain, target, *_, **__: target.write_bytes(b"fast") and target)
    return asked


def request(store: WeightStore, repository: Path, **options: Any) -> SetupRequest:
    return SetupRequest(SPEC, store, repository, cpu_encoder=True, fast_decoder=True, **options)


def test_it_is_set_up_beside_the_family_and_not_as_its_default(
    store: WeightStore, repository: Path, asked: list[Any]
) -> None:
    assert set_up(request(store, repository)) == NAMES
    assert asked == [(VIDEO_MODEL, ["decoder", "encoder"], ["memory.safetensors", "recipes"])]
    found = find_segmenters(repository)
    assert list(found) == ["sam2_tiny_video"]
    assert found["sam2_tiny_video"].memory is not None
    files = {path.name for path in (repository / "sam2_tiny_video" / "1").iterdir()}
    assert files >= {*MEMORY_GRAPHS, MEMORY_FILE, "encoder_cpu_float32.onnx", "decoder_cpu.onnx"}
    assert NETWORK_FILE not in files
    assert is_current(SPEC, repository)
    assert video_model(repository) == VIDEO_MODEL


def test_the_quick_start_gets_the_familys_name_after_it(store: WeightStore, repository: Path, asked: list[Any]) -> None:
    set_up(request(store, repository))
    plain, graphs = get_spec(DEFAULT_MODEL), [store.path(file) for file in SPEC.files]
    assert write_models(plain, *graphs, repository, raw=(graphs[0], graphs[1]))[0] == "sam2"
    assert set(find_segmenters(repository)) == {"sam2", "sam2_tiny_video"}


@pytest.mark.parametrize(("engine", "has_gpu"), [(EngineChoice.AUTO, True), (EngineChoice.TORCH, False)])
def test_with_the_weights_for_torch(
    engine: EngineChoice,
    has_gpu: bool,
    store: WeightStore,
    repository: Path,
    asked: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    network = tmp_path / NETWORK_FILE
    network.write_bytes(b"weights")
    monkeypatch.setattr(setup, "_has_gpu", lambda: has_gpu)
    monkeypatch.setattr(setup, "write_network", lambda *_: network)
    set_up(request(store, repository, engine=engine))
    assert (repository / "sam2_tiny_video" / "1" / NETWORK_FILE).read_bytes() == b"weights"


def test_a_gpu_without_the_packages(
    store: WeightStore, repository: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Path:
        raise SetupError("the weights for torch need transformers")

    monkeypatch.setattr(setup, "_has_gpu", lambda: True)
    monkeypatch.setattr(setup, "write_network", refuse)
    said: list[str] = []
    assert set_up(request(store, repository, say=said.append)) == NAMES
    assert any("it runs on ONNX Runtime: the weights for torch need transformers" in line for line in said)
    with pytest.raises(SetupError, match="need transformers"):
        set_up(request(store, repository, engine=EngineChoice.TORCH))


def test_torch_makes_its_weights_of_the_whole_model(
    store: WeightStore, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = export_cache._checkpoint(SPEC, store, ExportRequest(), lambda *_: lambda *_: None)
    assert checkpoint == Path("checkpoint.safetensors")
    mine = export_cache._checkpoint(SPEC, store, ExportRequest(Path("mine.pt")), lambda *_: lambda *_: None)
    assert mine == Path("mine.pt")


@pytest.mark.parametrize(
    "export", [ExportRequest(Path("mine.pt")), ExportRequest(image_size=1024), ExportRequest(seed=3)]
)
def test_what_is_asked_for_otherwise_is_exported(
    export: ExportRequest, store: WeightStore, repository: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    exported: list[ExportRequest] = []
    monkeypatch.setattr(setup, "export_model", lambda *words, **_: (exported.append(words[2]), (Path("x"), {}))[1])
    monkeypatch.setattr(setup, "write_exported", lambda *_, **__: ["written"])
    assert set_up(request(store, repository, export=export)) == ["written"]
    assert exported == [export]
    assert asked == []


def test_without_its_published_files(tmp_path: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    empty = WeightStore(tmp_path / "other")
    monkeypatch.setattr(WeightStore, "_pull_file", lambda *_: (_ for _ in ()).throw(WeightsError("no npm")))
    with pytest.raises(WeightsError, match="no npm"):
        set_up(request(empty, tmp_path / "other" / "models"))
    assert asked == []
    assert not (tmp_path / "other" / "models").exists()


def test_removal_keeps_what_the_quick_start_is_made_of(store: WeightStore, repository: Path, asked: list[Any]) -> None:
    plain = get_spec(DEFAULT_MODEL)
    graphs = [store.path(file) for file in SPEC.files]
    write_models(plain, *graphs, repository, raw=(graphs[0], graphs[1]))
    set_up(request(store, repository))
    conversion = store.home / "converted" / f"{graphs[0].stem}.onnx"
    conversion.parent.mkdir(exist_ok=True)
    conversion.write_bytes(b"x")
    freed = uninstall(SPEC, store, repository)
    assert 0 < freed < 1000, "its graphs alone"
    assert list((store.home / "exports").iterdir()) == []
    assert list(find_segmenters(repository)) == ["sam2"]
    assert conversion.exists()
    assert uninstall(plain, store, repository) == SPEC.size
    assert not conversion.exists()


def test_removal_of_the_quick_start_keeps_what_this_one_is_made_of(
    store: WeightStore, repository: Path, asked: list[Any]
) -> None:
    set_up(request(store, repository))
    assert uninstall(get_spec(DEFAULT_MODEL), store, repository) == 0
    assert store.is_installed(SPEC)
    assert uninstall(SPEC, store, repository) > SPEC.size


def test_another_memory_in_the_package_is_noticed(
    store: WeightStore, repository: Path, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(request(store, repository))
    folder = repository / "sam2_tiny_video" / "1"
    digests = iter(["new", "old"])
    monkeypatch.setattr(run, "content_digest", lambda *_: next(digests))
    assert not assembling.is_outdated(SPEC, folder), "it does not say of what it was made: an own checkpoint"
    (folder / MEMORY_FILE).unlink()
    (folder / MEMORY_FILE).write_text('{"assembled": "old"}')
    assert assembling.is_outdated(SPEC, folder)
    assert not assembling.is_outdated(SPEC, folder)
    assert not assembling.is_outdated(get_spec(DEFAULT_MODEL), folder)
    settings = Settings(home=store.home)
    monkeypatch.setattr(run, "content_digest", lambda *_: "new")
    done: list[str] = []
    monkeypatch.setattr(selection, "set_up", lambda request: done.append(request.spec.id))
    selection.prepare([VIDEO_MODEL], settings, None)
    assert done == [VIDEO_MODEL]
    monkeypatch.setattr(run, "content_digest", lambda *_: "old")
    selection.prepare([VIDEO_MODEL], settings, None)
    assert done == [VIDEO_MODEL]


def test_the_model_for_videos(repository: Path) -> None:
    meta = get_spec("sam2.1:tiny")
    with_memory = [dataclasses.replace(spec, memory=object()) for spec in (SPEC, meta)]
    assert best_for_video({"sam2_tiny_video": with_memory[0], "sam2": with_memory[1]}) == "sam2"
    assert best_for_video({"sam2_tiny_video": with_memory[0], "sam2": meta}) == "sam2_tiny_video"
    assert best_for_video({"sam2": meta}) is None
    assert video_model(repository) == VIDEO_MODEL

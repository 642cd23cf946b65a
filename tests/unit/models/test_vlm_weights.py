from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.helpers import COMMIT, FileServer, Served, Steps, use_hub
from tests.unit.hub_helpers import FILES, SOURCE, add_repository, cache_folder, downloaded, fill_cache
from triton_sam.errors import SetupError, WeightsError
from triton_sam.models import vlm_weights
from triton_sam.models.fetch import snapshot
from triton_sam.models.specs import ModelFile
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_specs import HubSnapshot
from triton_sam.models.vlm_weights import VlmStore, bundled_folder, checkpoint_folder, part_folders, user_folder
from triton_sam.settings import get_settings

huggingface_hub = pytest.importorskip("huggingface_hub")

SHAPES = get_vlm("vlm:shapes")
SPEC = dataclasses.replace(get_vlm("vlm:llava"), source=SOURCE, size=400_000)
WEIGHTS = "model.safetensors"
WANTED = {"config.json", "tokenizer.json", WEIGHTS}


@pytest.fixture(autouse=True)
def _hub(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_hub(server.url, tmp_path / "hf", monkeypatch)
    monkeypatch.setenv("TRITON_SAM_HOME", str(tmp_path / "home"))
    get_settings.cache_clear()
    yield
    get_settings.cache_clear()
    if hasattr(huggingface_hub, "close_session"):
        huggingface_hub.close_session()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "hf"


@pytest.fixture
def store(tmp_path: Path) -> VlmStore:
    return VlmStore(tmp_path / "home")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


class Told(dict[str, Steps]):
    """A progress factory that remembers the steps."""

    def __call__(self, file: ModelFile, step: str) -> Steps:
        assert (file.name, file.size) == (SPEC.id, SPEC.size)
        return self.setdefault(step, Steps())


def never_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vlm_weights, "drop_wrong_files", lambda *_: pytest.fail("hashed again"))
    monkeypatch.setattr(snapshot, "drop_wrong_files", lambda *_: pytest.fail("hashed again"))


# pull and find


def test_a_pull_and_a_second_one(store: VlmStore, server: FileServer, cache: Path, monkeypatch: Any) -> None:
    add_repository(server)
    assert not store.is_installed(SPEC)
    assert store.find(SPEC) is None
    told = Told()
    folder = store.pull(SPEC, told)
    assert folder == cache_folder(cache) / "snapshots" / COMMIT
    assert set(told) == {"download", "verify"}
    assert downloaded(server) == WANTED
    server.requests.clear()
    server.heads.clear()
    never_hash(monkeypatch)
    assert store.pull(SPEC) == store.find(SPEC) == folder
    assert store.is_installed(SPEC)
    assert server.requests == server.heads == []


def test_what_is_noted(store: VlmStore, server: FileServer) -> None:
    add_repository(server)
    folder = store.pull(SPEC)
    note = json.loads((store.home / "vlm" / "llava.json").read_text())
    assert note["source"] == [SOURCE.repo, SOURCE.revision, list(SOURCE.files)]
    assert note["folder"] == str(folder)
    assert note["downloaded"] is True
    assert {name: size for name, (size, _) in note["files"].items()} == {name: len(FILES[name]) for name in WANTED}


def test_what_another_tool_has_downloaded_is_verified_once(
    store: VlmStore, server: FileServer, cache: Path, offline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill_cache(cache)
    assert store.is_installed(SPEC)
    assert not store.home.exists(), "looking leaves nothing"
    told = Told()
    assert store.find(SPEC, told) == folder
    assert set(told) == {"verify"}
    never_hash(monkeypatch)
    assert store.find(SPEC) == folder
    assert server.requests == []


def test_a_damaged_file_is_noticed_without_a_network(
    store: VlmStore, cache: Path, offline: None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fill_cache(cache)
    blob = (folder / WEIGHTS).resolve()
    blob.write_bytes(FILES[WEIGHTS][::-1])
    assert store.find(SPEC) is None
    assert "model.safetensors has the wrong checksum" in caplog.text
    assert not blob.exists()
    assert not store.is_installed(SPEC)


@pytest.mark.parametrize("change", ["content", "gone", "note", "another revision"])
def test_a_change_since_the_verification_counts(change: str, store: VlmStore, server: FileServer) -> None:
    add_repository(server)
    folder = store.pull(SPEC)
    blob, spec = (folder / WEIGHTS).resolve(), SPEC
    if change == "content":
        blob.write_bytes(FILES[WEIGHTS][::-1])
        os.utime(blob, (1, 1))
    elif change == "gone":
        blob.unlink()
    elif change == "note":
        (store.home / "vlm" / "llava.json").write_text("{")
    else:
        spec = dataclasses.replace(SPEC, source=dataclasses.replace(SOURCE, revision="f" * 40))
    assert store._noted(spec.name, spec.source) is None
    if change != "another revision":
        assert (store.pull(spec) / WEIGHTS).read_bytes() == FILES[WEIGHTS]
        assert store._noted(spec.name, spec.source) == folder


def test_nothing_there_and_no_network(store: VlmStore, offline: None) -> None:
    with pytest.raises(WeightsError) as caught:
        store.pull(SPEC)
    told = str(caught.value)
    assert told.startswith("vlm:llava could not be downloaded; Hugging Face owner/talker")
    assert "HF_HUB_OFFLINE is set" in told
    assert "`triton-sam pull vlm:llava` fills the cache" in told
    assert "`triton-sam setup vlm:llava --checkpoint FOLDER`" in told
    assert "\n" not in told


def test_a_gated_repository(store: VlmStore, server: FileServer) -> None:
    add_repository(server, refusal=Served(status=403, headers={"X-Error-Code": "GatedRepo"}))
    with pytest.raises(WeightsError, match=r"owner/talker is gated.*--checkpoint FOLDER"):
        store.pull(SPEC)
    assert not (store.home / "vlm").exists()


def test_a_home_that_cannot_be_written(tmp_path: Path, server: FileServer) -> None:
    (tmp_path / "file").write_text("")
    add_repository(server)
    with pytest.raises(WeightsError, match="set TRITON_SAM_HOME to a writable folder"):
        VlmStore(tmp_path / "file" / "home").pull(SPEC)
    assert downloaded(server) == set()


# parts: what the checkpoint's code asks for beside it

PART = HubSnapshot("owner/words", COMMIT, ("tokenizer.json",))
PART_FILES = {"tokenizer.json": b'{"other": "words"}', "README.md": b"read me"}
PARTED = dataclasses.replace(SPEC, parts=(PART,))


def test_a_pull_brings_the_parts_too(store: VlmStore, server: FileServer, cache: Path) -> None:
    add_repository(server)
    add_repository(server, PART_FILES, PART)
    folder = store.pull(PARTED)
    assert folder == cache_folder(cache) / "snapshots" / COMMIT
    assert downloaded(server) == WANTED
    server.requests.clear()
    parts = part_folders(PARTED)
    assert list(parts) == ["owner/words"]
    assert (parts["owner/words"] / "tokenizer.json").read_bytes() == PART_FILES["tokenizer.json"]
    assert store.find(PARTED) == folder
    assert server.requests == []
    assert store.remove(PARTED) > 0
    assert not cache_folder(cache, PART).exists()


@pytest.mark.parametrize("missing", [SOURCE, PART])
def test_a_model_without_one_of_its_parts_is_not_installed(missing: HubSnapshot, store: VlmStore, cache: Path) -> None:
    for source, files in ((SOURCE, FILES), (PART, PART_FILES)):
        if source is not missing:
            fill_cache(cache, files, source)
    assert not store.is_installed(PARTED)
    assert store.find(PARTED) is None


def test_a_part_without_its_file(store: VlmStore, server: FileServer) -> None:
    add_repository(server, {"README.md": b"", "other.json": b"{}"}, PART)
    with pytest.raises(WeightsError, match=r"owner/words has no tokenizer\.json"):
        store.parts(PARTED)


def test_the_parts_of_a_users_checkpoint(tmp_path: Path, server: FileServer) -> None:
    """Beside it in its folder, else those of the catalogue; the catalogue's checkpoint is not needed."""
    add_repository(server, PART_FILES, PART)
    own = tmp_path / "mine" / "words"
    assert part_folders(PARTED, str(own.parent)) == VlmStore(tmp_path / "home").parts(PARTED)
    own.mkdir(parents=True)
    assert part_folders(PARTED, str(own.parent)) == {"owner/words": own}


def test_most_models_have_no_parts(store: VlmStore) -> None:
    assert part_folders(SPEC) == part_folders(SHAPES) == {}
    assert not store.home.exists()


# removal


def test_what_was_pulled_is_removed(store: VlmStore, server: FileServer, cache: Path) -> None:
    add_repository(server)
    store.pull(SPEC)
    assert store.remove(SPEC) == sum(len(FILES[name]) for name in WANTED)
    assert not store.is_installed(SPEC)
    assert not cache_folder(cache).exists()
    assert store.remove(SPEC) == 0


def test_what_another_tool_has_downloaded_stays(store: VlmStore, cache: Path) -> None:
    folder = fill_cache(cache)
    store.find(SPEC)
    assert store.remove(SPEC) == 0
    assert store.is_installed(SPEC)
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]


def test_a_pull_that_is_verified_again_is_still_a_pull(store: VlmStore, server: FileServer) -> None:
    add_repository(server)
    folder = store.pull(SPEC)
    os.utime((folder / WEIGHTS).resolve(), (1, 1))
    assert store.find(SPEC) == folder
    assert store.remove(SPEC) > 0


# the one that comes with the package


def test_the_bundled_checkpoint(store: VlmStore) -> None:
    folder = bundled_folder(SHAPES)
    assert user_folder(SHAPES, folder) == folder, "it is whole"
    assert store.find(SHAPES) == store.pull(SHAPES) == checkpoint_folder(SHAPES) == folder
    assert store.is_installed(SHAPES)
    assert store.remove(SHAPES) == 0
    assert (folder / "config.json").is_file()
    assert not store.home.exists()


@pytest.mark.parametrize("wheel", [True, False])
def test_where_the_bundled_checkpoint_is(wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "triton_sam"
    monkeypatch.setattr(vlm_weights, "_PACKAGE", package)
    with pytest.raises(SetupError, match="reinstall triton-sam"):
        bundled_folder(SHAPES)
    folder = package / "bundled" / "shapes" if wheel else tmp_path / "training" / "shapes" / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert bundled_folder(SHAPES) == folder


# a user's folder


def test_a_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / WEIGHTS).write_bytes(b"numbers")
    assert user_folder(SPEC, Path("mine")) == checkpoint_folder(SPEC, str(folder)) == folder


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ([], r"has no config\.json, so it is no checkpoint of vlm:llava: name a folder as the Hub or save_pretrained"),
        ([WEIGHTS], r"has no config\.json"),
        (["config.json", "pytorch_model.bin"], r"has no \*\.safetensors.*weights must be \.safetensors"),
    ],
)
def test_a_users_folder_that_is_no_checkpoint(files: list[str], told: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(SetupError, match=told):
        checkpoint_folder(SPEC, str(tmp_path))


def test_a_users_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="there is no folder"):
        checkpoint_folder(SPEC, str(tmp_path / "no"))


# in a server's process


def test_the_servers_process_downloads_what_is_missing(server: FileServer, store: VlmStore) -> None:
    add_repository(server)
    folder = checkpoint_folder(SPEC)
    assert (folder / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert store.find(SPEC) == folder


def test_the_module_needs_neither_torch_nor_the_hubs_library() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('torch', 'transformers', 'huggingface_hub'))); "
        "from triton_sam.models.vlm_catalog import get_vlm; "
        "from triton_sam.models.vlm_weights import checkpoint_folder; "
        "import triton_sam.repository.vlms; print(checkpoint_folder(get_vlm('vlm:shapes')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == str(bundled_folder(SHAPES))

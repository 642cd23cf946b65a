from __future__ import annotations

import dataclasses
import errno
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.helpers import COMMIT, FileServer, Served, Steps, deaf_port, use_hub
from tests.unit.hub_helpers import (
    FILES,
    PARTS,
    SOURCE,
    add_repository,
    cache_folder,
    checksum,
    downloaded,
    fill_cache,
)
from triton_sam.errors import WeightsError
from triton_sam.models.fetch import http, hub
from triton_sam.models.fetch.snapshot import fetch_snapshot, find_snapshot, missing_files, remove_snapshot
from triton_sam.models.vlm_specs import HubSnapshot
from triton_sam.server.host import free_port

huggingface_hub = pytest.importorskip("huggingface_hub")

WANTED = {"config.json", "tokenizer.json", "model.safetensors"}
TAGGED = dataclasses.replace(SOURCE, revision="2025-06-21")
WEIGHTS = "model.safetensors"
#: Of the same length, or the library itself would notice.
DAMAGED = FILES[WEIGHTS][::-1]


@pytest.fixture(autouse=True)
def _hub(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local server plays the Hub, for a user who has no token and an empty cache."""
    use_hub(server.url, tmp_path / "hf", monkeypatch)
    yield
    if hasattr(huggingface_hub, "close_session"):
        huggingface_hub.close_session()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "hf"


def get(source: HubSnapshot = SOURCE, steps: dict[str, Steps] | None = None, size: int = 1000) -> Path:
    told: dict[str, Steps] = {} if steps is None else steps
    return fetch_snapshot(source, size, lambda step: told.setdefault(step, Steps()))


def fails(source: HubSnapshot = SOURCE) -> str:
    """The one sentence of a fetch that brings nothing."""
    with pytest.raises(WeightsError) as caught:
        get(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def blob_of(folder: Path, name: str) -> Path:
    return (folder / name).resolve()


# downloads


@pytest.mark.parametrize("source", [SOURCE, TAGGED], ids=["commit", "tag"])
def test_only_what_is_wanted_comes_and_no_pickle(source: HubSnapshot, server: FileServer, home: Path) -> None:
    add_repository(server, source=source)
    steps: dict[str, Steps] = {}
    folder = get(source, steps)
    assert folder == cache_folder(home) / "snapshots" / COMMIT
    assert content(folder) == {name: FILES[name] for name in WANTED}
    assert downloaded(server) == WANTED
    total = sum(len(FILES[name]) for name in WANTED)
    assert steps["download"][-1] == steps["verify"][-1] == (total, total)


@pytest.mark.parametrize("pattern", ["*", "*.bin", "pytorch_*"])
def test_no_pattern_brings_a_pickle(pattern: str, server: FileServer) -> None:
    add_repository(server)
    folder = get(dataclasses.replace(SOURCE, files=(*SOURCE.files, pattern)))
    assert "pytorch_model.bin" not in {path.name for path in folder.iterdir()}
    assert "pytorch_model.bin" not in downloaded(server)


def test_what_is_there_already_is_not_loaded_again(server: FileServer) -> None:
    add_repository(server)
    folder = get()
    server.requests.clear()
    assert get() == folder
    assert downloaded(server) == set()


def test_only_what_is_missing_is_loaded(server: FileServer, home: Path) -> None:
    add_repository(server)
    fill_cache(home, {name: FILES[name] for name in (WEIGHTS, "config.json")})
    folder = get()
    assert downloaded(server) == {"tokenizer.json"}
    assert content(folder) == {name: FILES[name] for name in WANTED}


def test_the_token_goes_along(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    add_repository(server)
    for path, served in server.files.items():
        if "/resolve/" in path:
            served.wants = "Bearer hf_secret"
    assert content(get()).keys() == WANTED


def test_a_repository_without_weights_that_can_be_used(server: FileServer) -> None:
    add_repository(server, {name: FILES[name] for name in ("config.json", "pytorch_model.bin")})
    assert fails() == f"the repository owner/talker has no *.safetensors at {COMMIT}"


# checksums


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_a_damaged_download_is_refused_and_deleted(name: str, server: FileServer, home: Path) -> None:
    add_repository(server, damaged={name: FILES[name][::-1]})
    told = fails()
    assert f"{name} has the wrong checksum" in told
    assert "so it was not kept" in told
    assert checksum(name, FILES[name])[:12] in told
    folder = cache_folder(home) / "snapshots" / COMMIT
    assert content(folder) == {name_: FILES[name_] for name_ in WANTED - {name}}, "the right ones stay"
    assert not (cache_folder(home) / "blobs" / checksum(name, FILES[name])).exists()
    assert len([path for path, _ in server.requests if path.endswith(f"/{name}")]) == 1
    assert find_snapshot(SOURCE) is None


def test_a_blob_that_was_damaged_later_is_replaced(
    server: FileServer, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = fill_cache(home)
    blob_of(folder, WEIGHTS).write_bytes(DAMAGED)
    add_repository(server)
    assert (get() / WEIGHTS).read_bytes() == FILES[WEIGHTS]
    assert downloaded(server) == {WEIGHTS}
    assert "model.safetensors has the wrong checksum" in caplog.text


def test_files_that_were_copied_without_their_links_are_replaced(server: FileServer, home: Path) -> None:
    """Nothing says what they should be."""
    folder = fill_cache(home)
    copied = folder.with_name("copied")
    shutil.copytree(folder, copied)
    shutil.rmtree(folder)
    shutil.rmtree(cache_folder(home) / "blobs")
    copied.rename(folder)
    add_repository(server)
    assert all(path.is_symlink() for path in get().iterdir() if path.name in WANTED)
    assert downloaded(server) == WANTED


# refusals


def test_a_gated_repository_names_the_fix(server: FileServer) -> None:
    refusal = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model owner/talker is restricted"}
    add_repository(server, refusal=Served(status=403, headers=refusal))
    told = fails()
    assert "owner/talker is gated" in told
    assert "HF_TOKEN" in told


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Served(status=401), "shows no repository owner/talker"),
        (Served(status=404, headers={"X-Error-Code": "RepoNotFound"}), "shows no repository owner/talker"),
        (Served(status=404, headers={"X-Error-Code": "RevisionNotFound"}), f"has no revision {COMMIT}"),
        (Served(status=500), "the Hub answered 500"),
        (Served(b"<html>please log in</html>"), "check HF_ENDPOINT and the proxy"),
        (Served(b'{"id": "owner/talker"}'), "check HF_ENDPOINT and the proxy"),
    ],
    ids=["private", "no repository", "no revision", "500", "a page", "something"],
)
def test_refusals_of_the_hub(refusal: Served, told: str, server: FileServer) -> None:
    add_repository(server)
    server.add(f"/api/models/owner/talker/revision/{COMMIT}", refusal)
    assert told in fails()
    assert downloaded(server) == set()


def test_a_closed_port_is_an_error_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(f"http://127.0.0.1:{free_port()}", home, monkeypatch)
    started = time.monotonic()
    assert "connection failed" in fails()
    assert time.monotonic() - started < 3
    assert not home.exists()


def test_an_unreachable_hub_costs_one_time_limit(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    with deaf_port() as port:
        use_hub(f"http://127.0.0.1:{port}", home, monkeypatch)
        started = time.monotonic()
        assert "connection failed" in fails()
        assert time.monotonic() - started < 2 * limit


def test_a_hub_that_never_answers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "CONNECT_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(f"http://127.0.0.1:{silent.getsockname()[1]}", home, monkeypatch)
        assert "connection failed" in fails()


def test_without_the_library_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in fails()
    assert find_snapshot(SOURCE) is None


# disks


def test_a_disk_that_is_too_small_is_found_before_the_download(
    server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_repository(server)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000_000))
    with pytest.raises(WeightsError, match=r"needs 14\d\d\d MB .* has 1000 MB free: make room or set HF_HOME"):
        get(size=14_000_000_000)
    assert downloaded(server) == set()


def test_what_is_there_needs_no_room(server: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_repository(server)
    fill_cache(home)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert get(size=300_000).is_dir()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full: make room or set HF_HOME"),
        (
            PermissionError(errno.EACCES, "Permission denied", "/hub/x"),
            r"cannot be written \(/hub/x: Permission denied",
        ),
    ],
)
def test_a_cache_that_cannot_be_written(
    error: OSError, told: str, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    add_repository(server)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(WeightsError, match=told):
        get()


# without a network


@pytest.mark.parametrize("source", [SOURCE, TAGGED], ids=["commit", "tag"])
@pytest.mark.parametrize("files", [FILES, PARTS], ids=["whole", "in parts"])
def test_what_is_in_the_cache_is_found(
    files: dict[str, bytes], source: HubSnapshot, server: FileServer, home: Path
) -> None:
    folder = fill_cache(home, files, source)
    assert find_snapshot(source) == folder
    assert server.requests == server.heads == []


@pytest.mark.parametrize(
    ("files", "lost"),
    [(FILES, "config.json"), (FILES, WEIGHTS), (PARTS, "model-2.safetensors")],
    ids=["config", "weights", "a part"],
)
@pytest.mark.parametrize("blob_only", [False, True])
def test_a_cache_that_is_not_whole(files: dict[str, bytes], lost: str, blob_only: bool, home: Path) -> None:
    folder = fill_cache(home, files)
    (blob_of(folder, lost) if blob_only else folder / lost).unlink()
    assert find_snapshot(SOURCE) is None


def test_a_link_that_leads_nowhere(home: Path) -> None:
    folder = fill_cache(home)
    blob_of(folder, "tokenizer.json").unlink()
    assert find_snapshot(SOURCE) is None


def test_another_commit_does_not_count(home: Path) -> None:
    fill_cache(home, commit="f" * 40)
    assert find_snapshot(SOURCE) is None


def test_an_index_that_is_damaged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / WEIGHTS).write_bytes(b"")
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert missing_files(tmp_path) == ["model.safetensors.index.json"]


def test_offline_mode_uses_no_network(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    add_repository(server)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in fails()
    assert server.requests == server.heads == []


# removal


def test_a_removed_snapshot_leaves_what_others_share(home: Path) -> None:
    kept = fill_cache(home, {"config.json": FILES["config.json"]}, commit="f" * 40)
    folder = fill_cache(home)
    freed = remove_snapshot(folder)
    assert freed == sum(len(data) for name, data in FILES.items() if name != "config.json")
    assert not folder.exists()
    assert content(kept) == {"config.json": FILES["config.json"]}
    assert remove_snapshot(kept) == len(FILES["config.json"])
    assert not cache_folder(home).exists()


# rights


def refusing(method: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method of one path fails, as for a user without the rights; the tests may run as root."""
    real = getattr(Path, method)

    def refuse(path: Path, *arguments: object, **named: object) -> object:
        if path.name == name:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *arguments, **named)

    monkeypatch.setattr(Path, method, refuse)


def test_a_file_that_cannot_be_read(server: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fill_cache(home)
    add_repository(server)
    refusing("open", checksum(WEIGHTS, FILES[WEIGHTS]), monkeypatch)
    assert fails() == "model.safetensors in the Hub's cache cannot be read (Permission denied): check its permissions"
    assert (folder / WEIGHTS).is_file()


def test_a_wrong_file_that_cannot_be_deleted(server: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = blob_of(fill_cache(home), WEIGHTS)
    blob.write_bytes(DAMAGED)
    add_repository(server)
    refusing("unlink", blob.name, monkeypatch)
    told = fails()
    assert "model.safetensors has the wrong checksum" in told
    assert "cannot be written" in told
    assert "HF_HOME" in told

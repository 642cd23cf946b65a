from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.unit.helpers import COMMIT, FileServer, Served, Steps, add_hub_file, deaf_port, use_hub
from triton_sam.errors import WeightsError
from triton_sam.models.fetch import http, hub
from triton_sam.models.fetch.sources import fetch
from triton_sam.models.specs import HubSource
from triton_sam.server.host import free_port

huggingface_hub = pytest.importorskip("huggingface_hub")

CONTENT = np.random.default_rng(4).bytes(3_000_000)
HALF = len(CONTENT) // 2
SUM = hashlib.sha256(CONTENT).hexdigest()
SOURCE = HubSource("owner/models", "model.safetensors")
GATED = HubSource("owner/models", "model.safetensors", gated=True)


@pytest.fixture(autouse=True)
def _hub(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The local server plays the Hub, for a user who has no token and an empty cache."""
    use_hub(server.url, tmp_path / "hf", monkeypatch)
    yield
    if hasattr(huggingface_hub, "close_session"):
        huggingface_hub.close_session()


def downloads(server: FileServer) -> list[tuple[str, str | None]]:
    """The library asks the Hub for things of its own, too."""
    return [(path, asked) for path, asked in server.requests if not path.startswith("/api/")]


def get(tmp_path: Path, sha256: str | None = SUM, source: HubSource = SOURCE, steps: Steps | None = None) -> bytes:
    expected = fetch(source, tmp_path / "model", tmp_path / "work", Steps() if steps is None else steps, sha256)
    assert expected == SUM
    assert list((tmp_path / "work").iterdir()) == []
    return (tmp_path / "model").read_bytes()


def fails(tmp_path: Path, sha256: str | None = SUM, source: HubSource = SOURCE) -> str:
    """The one sentence of a fetch that brings nothing."""
    with pytest.raises(WeightsError) as caught:
        get(tmp_path, sha256, source)
    assert not (tmp_path / "model").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("sha256", [SUM, None])
def test_a_file_comes_from_the_commit_that_was_looked_up(
    sha256: str | None, server: FileServer, tmp_path: Path
) -> None:
    add_hub_file(server, SOURCE, CONTENT)
    steps = Steps()
    assert get(tmp_path, sha256, steps=steps) == CONTENT
    assert server.heads == ["/owner/models/resolve/main/model.safetensors"]
    assert downloads(server) == [(f"/owner/models/resolve/{COMMIT}/model.safetensors", None)]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert len(steps) > 1


@pytest.mark.parametrize("sent", [HALF, 10_000])
def test_a_cut_connection_is_resumed(sent: int, server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, Served(CONTENT, send=sent))
    if sent == HALF:
        assert get(tmp_path) == CONTENT
        assert [asked for _, asked in downloads(server)] == [None, f"bytes={HALF}-"]
        return
    assert "the connection ended" in fails(tmp_path)
    add_hub_file(server, SOURCE, CONTENT)
    assert get(tmp_path) == CONTENT
    assert server.requests[-1][1] == "bytes=30000-"


def test_what_a_kill_before_the_rename_leaves(server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, Served(CONTENT, send=10_000))
    fails(tmp_path)
    (partial,) = (tmp_path / "work").iterdir()
    partial.write_bytes(CONTENT)
    server.requests.clear()
    add_hub_file(server, SOURCE, CONTENT)
    assert get(tmp_path) == CONTENT
    assert downloads(server) == []


def test_a_partial_file_of_another_content_is_not_gone_on_with(server: FileServer, tmp_path: Path) -> None:
    """The branch moved on between two tries."""
    add_hub_file(server, SOURCE, Served(b"x" * len(CONTENT), send=10_000))
    fails(tmp_path, None)
    server.requests.clear()
    add_hub_file(server, SOURCE, CONTENT)
    assert fetch(SOURCE, tmp_path / "model", tmp_path / "work", Steps(), None) == SUM
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert [asked for _, asked in downloads(server)] == [None]


def test_the_bytes_may_come_from_another_host_which_gets_no_token(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with FileServer() as storage:
        elsewhere = storage.add("/signed", CONTENT)
        tells = {"X-Linked-Etag": f'"{SUM}"', "X-Linked-Size": str(len(CONTENT))}
        add_hub_file(server, SOURCE, Served(redirect=elsewhere, wants="Bearer hf_secret", headers=tells))
        assert get(tmp_path, None) == CONTENT
        assert storage.authorizations == [("/signed", None)]
    assert {authorization for _, authorization in server.authorizations} == {"Bearer hf_secret"}


# checksums


@pytest.mark.parametrize("etag", ["0123456789abcdef", "something", SUM.upper()])
def test_without_a_checksum_the_hub_must_have_one(etag: str, server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, CONTENT, etag)
    assert "offers no checksum" in fails(tmp_path, None)
    assert downloads(server) == []
    assert get(tmp_path, SUM) == CONTENT, "the catalogue's own is enough"


def test_a_small_file_has_the_checksum_of_git(server: FileServer, tmp_path: Path) -> None:
    etag = hashlib.sha1(f"blob {len(CONTENT)}\0".encode() + CONTENT, usedforsecurity=False).hexdigest()
    add_hub_file(server, SOURCE, CONTENT, etag)
    assert fetch(SOURCE, tmp_path / "model", tmp_path / "work", Steps(), None) == SUM
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_a_small_file_that_is_damaged_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, CONTENT, "0123456789abcdef0123456789abcdef01234567")
    assert "wrong checksum (git 0123456789ab...)" in fails(tmp_path, None)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_another_file_is_refused_before_it_is_downloaded(server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, b"another")
    told = fails(tmp_path)
    assert "the Hub has another file" in told
    assert SUM[:12] in told
    assert downloads(server) == []


# refusals


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("token", ["hf_secret", None])
def test_a_gated_repository_names_the_fix(
    status: int, token: str | None, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    refusal = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model owner/models is restricted"}
    add_hub_file(server, SOURCE, Served(status=status, headers=refusal))
    told = fails(tmp_path)
    assert "owner/models is gated" in told
    assert "licence" in told
    assert "HF_TOKEN" in told
    assert "hf_secret" not in told


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_of_a_repository_that_is_known_to_be_gated(status: int, server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, GATED, Served(status=status))
    assert "owner/models is gated" in fails(tmp_path, source=GATED)


def test_a_token_opens_a_gated_repository(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_hub_file(server, GATED, Served(CONTENT, wants="Bearer hf_secret"))
    assert "gated" in fails(tmp_path, None, GATED)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert get(tmp_path, None, GATED) == CONTENT


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (Served(status=401), "shows no repository owner/models"),
        (Served(status=404, headers={"X-Error-Code": "RepoNotFound"}), "shows no repository owner/models"),
        (Served(status=404, headers={"X-Error-Code": "EntryNotFound"}), r"has no file model\.safetensors"),
        (Served(status=404, headers={"X-Error-Code": "RevisionNotFound"}), "has no revision main"),
        (Served(status=500), "the Hub answered 500"),
        (Served(status=503), "the Hub answered 503"),
        (Served(status=403), "the Hub answered 403"),
    ],
    ids=["private", "no repository", "no file", "no revision", "500", "503", "403"],
)
def test_refusals_of_the_hub(refusal: Served, told: str, server: FileServer, tmp_path: Path) -> None:
    add_hub_file(server, SOURCE, refusal)
    with pytest.raises(WeightsError, match=told):
        get(tmp_path)
    fails(tmp_path)


def test_a_server_that_is_no_hub(server: FileServer, tmp_path: Path) -> None:
    server.add("/owner/models/resolve/main/model.safetensors", b"please log in")
    assert "HF_ENDPOINT" in fails(tmp_path)


def test_a_closed_port_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_hub(f"http://127.0.0.1:{free_port()}", tmp_path, monkeypatch)
    started = time.monotonic()
    assert "connection failed" in fails(tmp_path)
    assert time.monotonic() - started < 3


def test_an_unreachable_hub_costs_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    with deaf_port() as port:
        use_hub(f"http://127.0.0.1:{port}", tmp_path, monkeypatch)
        started = time.monotonic()
        assert "connection failed" in fails(tmp_path)
        assert time.monotonic() - started < 2 * limit


def test_a_hub_that_never_answers_costs_one_time_limit(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would try again and again, if it were let."""
    limit = 1.5
    monkeypatch.setattr(hub, "CONNECT_SECONDS", limit)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        use_hub(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path, monkeypatch)
        started = time.monotonic()
        assert "connection failed" in fails(tmp_path)
        assert time.monotonic() - started < 4 * limit


def test_without_the_library_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in fails(tmp_path)


# the Hub's own cache, and its offline mode


def cache(home: Path, content: bytes = CONTENT, blob: str = SUM) -> Path:
    """The file as the library itself keeps it."""
    repository = home / "hub" / "models--owner--models"
    snapshot = repository / "snapshots" / COMMIT
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    kept = repository / "blobs" / blob
    kept.write_bytes(content)
    (snapshot / SOURCE.file).symlink_to(kept)
    return kept


@pytest.mark.parametrize("sha256", [SUM, None])
def test_what_the_library_has_already_is_taken_offline(
    sha256: str | None, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = cache(tmp_path / "hf")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert get(tmp_path, sha256) == CONTENT
    assert server.heads == []
    (tmp_path / "model").unlink()
    assert kept.read_bytes() == CONTENT


@pytest.mark.parametrize(("content", "blob"), [(b"cut", SUM), (CONTENT, "f" * 40)], ids=["damaged", "not vouched for"])
def test_a_cached_file_that_cannot_be_trusted_is_passed_over(
    content: bytes, blob: str, server: FileServer, tmp_path: Path
) -> None:
    cache(tmp_path / "hf", content, blob)
    add_hub_file(server, SOURCE, CONTENT)
    assert get(tmp_path, None) == CONTENT
    assert len(downloads(server)) == 1


def test_offline_mode_uses_no_network(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_hub_file(server, SOURCE, CONTENT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in fails(tmp_path)
    assert server.heads == []


@pytest.mark.parametrize("offline", [False, True])
def test_the_settings_are_the_librarys_own(offline: bool, server: FileServer, tmp_path: Path) -> None:
    """A process of its own, because the library reads its environment when it is imported."""
    add_hub_file(server, SOURCE, Served(CONTENT, wants="Bearer hf_kept"))
    home = tmp_path / "home"
    home.mkdir()
    (home / "token").write_text("hf_kept")
    code = (
        "import sys; from pathlib import Path; from triton_sam.models.fetch.sources import fetch; "
        "from triton_sam.models.specs import HubSource; folder = Path(sys.argv[1]); "
        "fetch(HubSource('owner/models', 'model.safetensors'), folder / 'model', folder, lambda *_: None, None)"
    )
    settings = {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline))}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=environment | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ("HF_HUB_OFFLINE is set" in done.stderr) == offline
    assert (tmp_path / "model").exists() != offline
    if not offline:
        assert (tmp_path / "model").read_bytes() == CONTENT

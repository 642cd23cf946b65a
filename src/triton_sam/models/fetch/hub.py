"""Files of the Hugging Face Hub, through the user's own huggingface_hub and its settings (HF_HOME, HF_TOKEN, ...).

The library finds a file's address and checksum; the bytes come through our own download, because the library starts
again from the beginning after an interrupted download.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.installation import install
from triton_sam.models.checksums import digest_of
from triton_sam.models.fetch.archive import copy_file
from triton_sam.models.fetch.http import CONNECT_SECONDS, Access, Progress, check_reachable, download, redact
from triton_sam.models.specs import HubSource

NO_HUB = "the response is not from a Hugging Face Hub: check HF_ENDPOINT and the proxy"
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: Small files are in git itself, which names them after this.
_SHA1 = re.compile(r"[0-9a-f]{40}")


def fetch_from_hub(source: HubSource, target: Path, work: Path, progress: Progress, sha256: str | None) -> str:
    """Downloads the file to ``target`` and returns the checksum it must have: ``sha256``, or else the Hub's own."""
    try:
        from huggingface_hub import constants
    except ImportError:
        raise WeightsError(f"the library for it is not installed: {install('huggingface_hub')}") from None
    cached = _cached(source, sha256)
    if cached is not None:
        path, digest = cached
        copy_file(path, target, progress)
        return digest
    if constants.HF_HUB_OFFLINE:
        raise WeightsError("HF_HUB_OFFLINE is set and the file is not in the Hub's cache: unset it to download")
    url, etag, size = _look_up(source)
    offered = etag if _SHA256.fullmatch(etag) else None
    in_git = sha256 is None and _SHA1.fullmatch(etag) is not None
    if sha256 is None and offered is None and not in_git:
        raise WeightsError("the Hub offers no checksum that the file could be compared with, so it is not used")
    if sha256 is not None and offered is not None and offered != sha256:
        raise WeightsError(f"the Hub has another file (sha256 {offered[:12]}..., expected {sha256[:12]}...)")
    partial = work / f"{hashlib.sha256(etag.encode()).hexdigest()[:16]}-{target.name}.part"
    if target.exists():
        target.replace(partial)  # an earlier try was killed before it was verified
    if not partial.exists() or partial.stat().st_size != size:
        download(url, partial, progress, Access(_authorization()))
    if in_git:
        if git_digest(partial) != etag:
            partial.unlink()
            raise WeightsError(f"{target.name} has the wrong checksum (git {etag[:12]}...), so it was not kept")
        offered = digest_of(partial)
    partial.replace(target)
    return sha256 or offered or ""


def git_digest(path: Path) -> str:
    """The checksum by which git, and so the Hub, knows a small file."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _cached(source: HubSource, sha256: str | None) -> tuple[Path, str] | None:
    """The file in the Hub's cache and its checksum, if it is intact; a blob's name is the Hub's checksum."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(source.repo, source.file, revision=source.revision)
    if not isinstance(found, str):
        return None
    path = Path(found).resolve()
    expected = sha256 or path.name
    if _SHA1.fullmatch(expected):
        return (path, digest_of(path)) if git_digest(path) == expected else None
    if not _SHA256.fullmatch(expected):
        return None
    try:
        return (path, expected) if digest_of(path) == expected else None
    except OSError:
        return None


def _look_up(source: HubSource) -> tuple[str, str, int | None]:
    """The address of the file at the present commit, its etag and its size."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.repo, source.file, revision=source.revision)
    check_reachable(url)
    with hub_errors(source.repo, source.revision, source.file, source.gated):
        metadata = get_hf_file_metadata(url, timeout=answer_seconds())
    if not metadata.etag or not metadata.commit_hash:
        raise WeightsError(NO_HUB)
    return hf_hub_url(source.repo, source.file, revision=metadata.commit_hash), metadata.etag, metadata.size


def answer_seconds() -> float:
    """Timeout of a metadata request to the Hub: the user's own, else the short one."""
    from huggingface_hub import constants

    configured = float(constants.HF_HUB_ETAG_TIMEOUT)
    return CONNECT_SECONDS if configured == constants.DEFAULT_ETAG_TIMEOUT else configured


@contextmanager
def hub_errors(repo: str, revision: str, file: str = "", gated: bool = False) -> Iterator[None]:
    """Turns errors of the library into a WeightsError of one sentence."""
    try:
        yield
    except WeightsError:
        raise
    except Exception as error:  # the HTTP library, and its errors, differ between versions
        raise WeightsError(_sentence(error, repo, revision, file, gated)) from None


def _sentence(error: BaseException, repo: str, revision: str, file: str, gated: bool) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ is not None:
        return _sentence(error.__cause__, repo, revision, file, gated)  # the Hub itself failed
    if isinstance(error, errors.GatedRepoError):
        return _gated(repo)
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository {repo} has no revision {revision}"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return f"the repository {repo} has no file {file}" if file else f"the repository {repo} lacks a file it lists"
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        if gated and status in (401, 403):
            return _gated(repo)
        if status in (401, 404):
            return f"the Hub shows no repository {repo}: if it is private, set HF_TOKEN to a token that may read it"
        return f"the Hub answered {status}"
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return redact(f"the connection failed ({reason})")


def _gated(repo: str) -> str:
    return (
        f"the repository {repo} is gated: accept its licence there, "
        "then set HF_TOKEN to a token of yours with read access"
    )


def _authorization() -> str | None:
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return f"Bearer {token}" if token else None

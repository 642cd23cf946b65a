"""The package indexes of the user's pip, read from pip itself, so that this code names none."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.models.fetch.http import redact

_PIP_SECONDS = 60
#: Later sections override earlier ones, as in pip.
_SECTIONS = ("global", "install", "download", ":env:")
_LINE = re.compile(r"(?P<section>[^.=]+)\.(?P<key>[^=]+)=(?P<value>.*)")
_TRUE = ("1", "true", "yes", "on", "y", "t")


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The settings that pip would use for a download.

    Attributes:
        indexes: addresses or folders of simple indexes, with the user's credentials, if any.
        find_links: folders or pages that list packages.
        certificates: a file of certificate authorities.
    """

    indexes: tuple[str, ...] = field(repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    certificates: str | None = None
    proxy: str | None = field(default=None, repr=False)


def read_pip_settings(where: Path) -> PipSettings:
    """The settings of this environment's pip, or else of the one on PATH, run in the folder ``where``."""
    pip = find_pip()
    if pip is None:
        raise WeightsError("pip is not installed, and its settings name the index: python -m ensurepip")
    values = _merged(_run(pip, where, "config", "list"))
    indexes: list[str] = []
    if values.get("no-index", "").lower() not in _TRUE:
        indexes = values.get("index-url", "").split()[:1] or [_default_index(pip, where)]
        indexes += values.get("extra-index-url", "").split()
    return PipSettings(
        tuple(dict.fromkeys(indexes)),
        tuple(values.get("find-links", "").split()),
        values.get("cert") or None,
        values.get("proxy") or None,
    )


def find_pip() -> list[str] | None:
    """The command that runs pip: this Python's, or the one on PATH."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    found = shutil.which("pip") or shutil.which("pip3")
    return [found] if found else None


def _run(pip: list[str], where: Path, *words: str) -> str:
    wide = {**os.environ, "COLUMNS": "1000"}
    try:
        done = subprocess.run(
            [*pip, *words], cwd=where, env=wide, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"pip did not answer ({type(error).__name__})") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise WeightsError(f"pip failed: {redact(lines[-1].strip())[:200]}")
    return done.stdout


def _merged(listing: str) -> dict[str, str]:
    """The values of ``pip config list``, whose lines read ``section.key='value'``."""
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in listing.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or match["section"] not in sections:
            continue
        try:
            sections[match["section"]][match["key"]] = str(ast.literal_eval(match["value"]))
        except (ValueError, SyntaxError):
            continue
    merged: dict[str, str] = {}
    for name in _SECTIONS:
        merged |= sections[name]
    return merged


def _default_index(pip: list[str], where: Path) -> str:
    """The default index of pip, read from its help."""
    words = _run(pip, where, "--isolated", "install", "--help")
    described = re.search(r"--index-url <url>.*?\(default\s+(\S+?)\)", words, re.DOTALL)
    if described is None:
        raise WeightsError("pip names no index: set PIP_INDEX_URL to one")
    return described[1]

"""Commands that install what is missing here; each works when it is typed as it stands.

This package is on no index, so ``pip install triton-sam[...]`` would find nothing, or something else. An extra is
installed from where this package came from: its clone, its wheel file, its address. Where that is gone or unknown, the
packages of the extra are named one by one, as this package's metadata list them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_NAME = "triton-sam"
_ITSELF = re.compile(r"triton[-_.]sam\s*\[([^\]]*)\]", re.IGNORECASE)
_EXTRA_MARKER = re.compile(r"""(?:\s+and\s+)?\(?extra\s*==\s*['"]([^'"]+)['"]\)?(?:\s+and\s+)?""")
#: Extra -> modules that its users import.
_MODULES = {
    "server": ("onnxruntime", "onnx", "cv2"),
    "export": ("torch", "transformers", "safetensors", "onnx", "onnxruntime"),
    "torch": ("torch", "transformers", "safetensors"),
    "video": ("av",),
    "vlm": ("torch", "transformers", "safetensors", "jinja2"),
}


def missing_module(extra: str) -> str:
    """The first module of an extra that is not installed; empty if all are. Nothing is imported."""
    return next((name for name in _MODULES[extra] if importlib.util.find_spec(name) is None), "")


def install_extra(extra: str) -> str:
    """The command that adds an extra of this package to this environment."""
    words = extra_words(extra, clone=_clone(), direct_url=_direct_url(), requires=_requires())
    return f"{_pip()} {shlex.join(words)}"


def install(*requirements: str) -> str:
    """The command that installs packages of an index into this environment."""
    return f"{_pip()} {shlex.join(requirements)}"


def extra_words(
    extra: str, *, clone: Path | None, direct_url: Mapping[str, Any] | None, requires: Sequence[str]
) -> list[str]:
    """What follows ``pip install`` to install an extra.

    Args:
        clone: the repository whose ``src`` this package runs from.
        direct_url: content of ``direct_url.json`` (PEP 610), which pip writes for what came from no index.
        requires: requirements of this package's metadata, with their markers.
    """
    if clone is not None:
        return ["-e", f"{clone}[{extra}]"]
    return _from_origin(extra, direct_url or {}) or _packages(extra, requires) or [f"{_NAME}[{extra}]"]


def _from_origin(extra: str, direct_url: Mapping[str, Any]) -> list[str]:
    """The same from where pip took this package; empty if that is gone or unknown."""
    url = str(direct_url.get("url", ""))
    parts = urlsplit(url)
    if "vcs_info" in direct_url:
        vcs = direct_url["vcs_info"]
        folder = direct_url.get("subdirectory")
        suffix = f"#subdirectory={folder}" if folder else ""
        return [f"{_NAME}[{extra}] @ {vcs['vcs']}+{url}@{vcs['commit_id']}{suffix}"]
    if parts.scheme == "file":
        path = Path(unquote(parts.path))
        is_there = (path / "pyproject.toml").is_file() if "dir_info" in direct_url else path.is_file()
        editable = bool(direct_url.get("dir_info", {}).get("editable"))
        return [*(["-e"] if editable else []), f"{path}[{extra}]"] if is_there else []
    return [f"{_NAME}[{extra}] @ {url}"] if "archive_info" in direct_url and url else []


def _packages(extra: str, requires: Sequence[str]) -> list[str]:
    """The requirements of extras ("a,b") and of the extras that these name; markers other than ``extra`` stay."""
    found: list[str] = []
    if "," in extra:
        return list(dict.fromkeys(word for name in extra.split(",") for word in _packages(name.strip(), requires)))
    for line in requires:
        requirement, _, marker = line.partition(";")
        named = _EXTRA_MARKER.search(marker)
        if named is None or named[1] != extra:
            continue
        inner = _ITSELF.match(requirement.strip())
        if inner is not None:
            found += _packages(inner[1], requires)
            continue
        rest = _EXTRA_MARKER.sub("", marker).strip().replace("'", '"')  # the word is in single quotes
        found.append(f"{requirement.strip()}; {rest}" if rest else requirement.strip())
    return list(dict.fromkeys(found))


def _pip() -> str:
    """``pip install`` for this environment, whichever environment the user's shell has activated."""
    interpreter = _interpreter()
    python = shlex.quote(str(interpreter))
    if importlib.util.find_spec("pip") is None:  # as in environments that uv makes
        if shutil.which("uv") is not None:
            return f"uv pip install --python {python}"
        return f"{python} -m ensurepip && {python} -m pip install"
    found = shutil.which("pip")
    activated = found is not None and Path(found).parent == interpreter.parent
    return "pip install" if activated else f"{python} -m pip install"


def _interpreter() -> Path:
    """Python of this environment; a program that embeds Python, as Triton's does, is not it."""
    own = Path(sys.executable or "")
    return own if own.name.startswith("python") else Path(sys.prefix) / "bin" / "python"


def _clone() -> Path | None:
    """The repository that this module runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    try:
        text = (root / "pyproject.toml").read_text()
    except OSError:
        return None
    return root if f'name = "{_NAME}"' in text else None


def _direct_url() -> Mapping[str, Any] | None:
    try:
        text = importlib.metadata.distribution(_NAME).read_text("direct_url.json")
        document = json.loads(text or "null")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _requires() -> list[str]:
    try:
        return importlib.metadata.requires(_NAME) or []
    except importlib.metadata.PackageNotFoundError:
        return []

"""Hooks of mkdocs.yml: what pages link to outside of docs/ becomes part of the site.

A link to a file of the repository leads to a page with its text, so that the site is whole without the repository.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent
ICON = ROOT / "src" / "triton_sam" / "service" / "static" / "icon.svg"
#: Where the site keeps files of the repository.
_FOLDER = "repository"
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^( *)(```+|~~~+)")
_LANGUAGES = {".yml": "yaml", ".yaml": "yaml", ".py": "python", ".sh": "bash", ".json": "json", ".toml": "toml"}
_QUIET = "---\nsearch:\n  exclude: true\n---\n"


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each file of the repository that a page links to, and the icon."""
    files.append(_added(config, "assets/icon.svg", path=ICON))
    wanted: set[str] = set()
    for file in files.documentation_pages():
        folder = posixpath.join("docs", posixpath.dirname(file.src_uri))
        _rewritten(Path(file.abs_src_path).read_text(), folder, lambda target: wanted.add(target) or target)
    for target in sorted(wanted):
        if (ROOT / target).suffix == ".ipynb":
            files.append(_added(config, f"{_FOLDER}/{target}", path=ROOT / target))
        elif (ROOT / target).exists():
            files.append(_added(config, _page_of(target), text=_text_of(target, wanted)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Turns links that leave docs/ to those pages."""
    source = page.file.src_uri
    if source.startswith(f"{_FOLDER}/"):
        return markdown
    folder = posixpath.dirname(source)
    return _rewritten(
        markdown, posixpath.join("docs", folder), lambda target: posixpath.relpath(_page_of(target), folder or ".")
    )


def _added(config: Any, uri: str, *, path: Path | None = None, text: str | None = None) -> File:
    inclusion = InclusionLevel.NOT_IN_NAV
    if path is not None:
        return File.generated(config, uri, abs_src_path=str(path), inclusion=inclusion)
    return File.generated(config, uri, content=text, inclusion=inclusion)


def _page_of(target: str) -> str:
    return f"{_FOLDER}/{target}" + ("" if target.endswith((".md", ".ipynb")) else ".md")


def _text_of(target: str, known: set[str]) -> str:
    """The page of a file or folder of the repository."""
    path = ROOT / target
    if path.is_dir():
        names = sorted(child.name for child in path.iterdir() if not child.name.startswith((".", "_")))
        return f"{_QUIET}# {target}\n\n" + "".join(f"- `{name}`\n" for name in names)
    if path.suffix != ".md":
        return f"{_QUIET}# {target}\n\n````{_LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"
    here = posixpath.dirname(_page_of(target))

    def moved(other: str) -> str:
        if other.startswith("docs/"):
            return posixpath.relpath(other.removeprefix("docs/"), here)
        return posixpath.relpath(_page_of(other), here) if other in known else ""

    return _QUIET + _rewritten(path.read_text(), posixpath.dirname(target), moved, everything=True)


def _rewritten(text: str, folder: str, moved: Callable[[str], str], *, everything: bool = False) -> str:
    """The text with other targets of its links out of docs/; a link without a target becomes plain text.

    Args:
        folder: of the text, from the repository's root.
        moved: a target, from the root -> its new spelling.
        everything: also links into docs/.
    """

    def replaced(match: re.Match[str]) -> str:
        address, mark, anchor = match[3].partition("#")
        if not address or ":" in address:
            return match[0]
        target = posixpath.normpath(posixpath.join(folder, address))
        if not everything and (target == "docs" or target.startswith("docs/")):
            return match[0]
        new = moved(target)
        inner = _LINK.sub(replaced, match[2])
        return f"{match[1]}[{inner}]({new}{mark}{anchor})" if new else inner

    lines, fence = [], ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[2]
        elif found and found[2] == fence:
            fence = ""
        lines.append(line if fence or found else _LINK.sub(replaced, line))
    return "".join(lines)

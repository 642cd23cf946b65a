"""Draws the packages of triton_sam, one layer above the other: docs/images/packages.svg.

The layers are those of `.importlinter`, the texts are the first lines of the packages' docstrings.
`scripts/generate_docs.py` calls it.
"""

from __future__ import annotations

import ast
import configparser
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = "docs/images/packages.svg"
_WIDTH, _MARGIN, _GAP, _HEIGHT = 900, 20, 8, 56
#: Modules that only re-export public names; they are left out of the picture.
_ALIASES = frozenset({"speculative", "vlm", "masks", "demo"})
_SIDE_NOTES = {
    "service": "fastapi, uvicorn",
    "client": "tritonclient",
    "backend": "inside Triton",
    "engines": "onnxruntime, torch",
    "server": "nvidia-pytriton",
    "export": "onnx, torch",
    "networks": "torch",
}


def layers(text: str) -> list[list[str]]:
    """The layers from top to bottom, each with its packages, without the aliases of public names."""
    parser = configparser.ConfigParser()
    parser.read_string(text)
    lines = [line for line in parser["importlinter:contract:layers"]["layers"].splitlines() if line.strip()]
    rows = [[name.strip() for name in line.replace(":", "|").split("|")] for line in lines]
    return [kept for row in rows if (kept := [name for name in row if name not in _ALIASES])]


def first_line(package: str) -> str:
    """The first sentence of a package's or module's docstring."""
    home = ROOT / "src" / "triton_sam"
    path = home / package / "__init__.py"
    path = path if path.exists() else home / f"{package}.py"
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n\n")[0].replace("\n", " ").split(". ")[0].rstrip(".").replace("``", "")


def picture(_before: str = "") -> str:
    """The whole SVG document."""
    rows = layers((ROOT / ".importlinter").read_text())
    height = 2 * _MARGIN + len(rows) * (_HEIGHT + _GAP) + 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 10}" font-size="14" fill="#475569">'
        "src/triton_sam: a package imports only from the layers below it</text>",
    ]
    for number, row in enumerate(rows):
        top = _MARGIN + 24 + number * (_HEIGHT + _GAP)
        each = (_WIDTH - 2 * _MARGIN - (len(row) - 1) * _GAP) / len(row)
        for place, name in enumerate(row):
            parts.append(_box(name, _MARGIN + place * (each + _GAP), top, each, number / max(1, len(rows) - 1)))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(name: str, left: float, top: float, width: float, depth: float) -> str:
    """One package; ``depth`` from 0 (top layer) to 1 (bottom) chooses its colour."""
    hue, light = 205 + 30 * depth, 96 - 10 * depth
    note = _SIDE_NOTES.get(name, "")
    words = textwrap.wrap(first_line(name), int(width / 7.4), max_lines=2, placeholder=" …")
    lines = [
        f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{_HEIGHT}" rx="6" '
        f'fill="hsl({hue:.0f},60%,{light:.0f}%)" stroke="#94a3b8"/>',
        f'<text x="{left + 10:.0f}" y="{top + 19}" font-size="14" font-weight="bold" fill="#0f172a">{name}</text>',
    ]
    if note:
        lines.append(
            f'<text x="{left + width - 10:.0f}" y="{top + 19}" font-size="11" text-anchor="end" '
            f'fill="#64748b">{escape(note)}</text>'
        )
    lines += [
        f'<text x="{left + 10:.0f}" y="{top + 35 + 14 * row}" font-size="11.5" fill="#334155">{escape(line)}</text>'
        for row, line in enumerate(words)
    ]
    return "\n".join(lines)

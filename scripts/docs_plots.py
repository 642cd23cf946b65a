"""Plots of docs/data/*.json as SVG: groups of horizontal bars, readable on light and on dark pages.

`scripts/generate_docs.py` writes them to docs/images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from docs_figures import find, shown

_WIDTH, _MARGIN, _LABEL, _VALUE = 760, 16, 250, 105
_BAR, _GAP = 20, 6
#: Ours, other systems, and what cannot be undercut: Okabe and Ito's palette.
_STYLE = """<style>
.page{fill:#ffffff}.text{fill:#1f2937}.faint{fill:#6b7280}.ours{fill:#0072b2}.other{fill:#9ca3af}
@media (prefers-color-scheme:dark){
.page{fill:#1e2129}.text{fill:#e5e7eb}.faint{fill:#9ca3af}.ours{fill:#56b4e9}.other{fill:#6b7280}}
</style>"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure of a file of docs/data; those of other systems are grey."""

    label: str
    file: str
    figure: str
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Bars of one unit with one scale."""

    title: str
    bars: Sequence[Bar]


CPU = (
    Group(
        "A click: less is better",
        (
            Bar("triton-sam, HTTP", "compare", "click, (b) this server, HTTP", ours=True),
            Bar("two stages on Triton, HTTP", "compare", "click, (c) two stages, HTTP"),
            Bar("transformers, no server", "compare", "click, (d) transformers, eager"),
            Bar("ONNX Runtime alone, no server", "compare", "click, (a) bare engine"),
        ),
    ),
    Group(
        "A new image: less is better",
        (
            Bar("triton-sam, HTTP", "compare", "encode, (b) this server, HTTP", ours=True),
            Bar("two stages on Triton, HTTP", "compare", "encode, (c) two stages, HTTP"),
            Bar("transformers, no server", "compare", "encode, (d) transformers, eager"),
            Bar("ONNX Runtime alone, no server", "compare", "encode, (a) bare engine"),
        ),
    ),
)
GPU = (
    Group(
        "A frame of a video: less is better",
        tuple(
            bar
            for count, name in ((1, "1 object"), (5, "5 objects"), (16, "16 objects"))
            for bar in (
                Bar(f"{name}, triton-sam, HTTP", "gpu_video", f"a frame with {name}", ours=True),
                Bar(f"{name}, transformers", "gpu_video", f"transformers, a frame with {name}"),
            )
        ),
    ),
    Group(
        "All instances of a text: less is better",
        (
            Bar("new image, triton-sam, HTTP", "gpu_words", "served: new image, new text, masks over HTTP", ours=True),
            Bar("new image, transformers", "gpu_words", "transformers, new image, new text"),
            Bar("known image, triton-sam, HTTP", "gpu_words", "served: new text, masks over HTTP", ours=True),
            Bar("known image, transformers", "gpu_words", "transformers, new text"),
        ),
    ),
    Group(
        "Tokens a second of LLaVA 7B: more is better",
        (
            Bar("1 question, triton-sam, HTTP", "gpu_vlm", "llava, batch 1: served, rate", ours=True),
            Bar("1 question, transformers", "gpu_vlm", "llava, batch 1: bare transformers, rate"),
            Bar("8 questions, triton-sam, HTTP", "gpu_vlm", "llava, batch 8: served, rate", ours=True),
            Bar("8 questions, transformers", "gpu_vlm", "llava, batch 8: bare transformers, rate"),
        ),
    ),
)


def plot(groups: Sequence[Group], title: str) -> str:
    """The whole SVG document; ``title`` is read aloud instead of it."""
    top, parts = _MARGIN, []
    for group in groups:
        parts.append(f'<text class="text" x="{_MARGIN}" y="{top + 14}" font-weight="bold">{escape(group.title)}</text>')
        top += 26
        figures = [find(bar.file, bar.figure) for bar in group.bars]
        scale = (_WIDTH - 2 * _MARGIN - _LABEL - _VALUE) / max(figure.value for figure in figures)
        for bar, figure in zip(group.bars, figures, strict=True):
            length, middle = max(1.0, figure.value * scale), top + _BAR * 0.72
            left = _MARGIN + _LABEL
            parts += [
                f'<text class="text" x="{left - 10}" y="{middle:.0f}" text-anchor="end">{escape(bar.label)}</text>',
                f'<rect class="{"ours" if bar.ours else "other"}" x="{left}" y="{top}" width="{length:.1f}" '
                f'height="{_BAR}" rx="3"/>',
                f'<text class="text" x="{left + length + 8:.0f}" y="{middle:.0f}">{shown(figure)}</text>',
            ]
            top += _BAR + _GAP
        top += 14
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" font-family="sans-serif" '
        f'font-size="14" role="img" aria-label="{escape(title)}">'
    )
    page = f'<rect class="page" width="{_WIDTH}" height="{top}" rx="8"/>'
    return "\n".join([head, _STYLE, page, *parts, "</svg>"]) + "\n"


#: File -> what makes it; the earlier contents are not read.
PICTURES: dict[str, Callable[[str], str]] = {
    "docs/images/results-cpu.svg": lambda _: plot(CPU, "Clicks and images on two cores, by four ways"),
    "docs/images/results-gpu.svg": lambda _: plot(GPU, "Videos, text and language models on one H200"),
}

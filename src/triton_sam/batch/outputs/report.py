"""report.html: one file that tells how a job went. It has no script and loads nothing."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from triton_sam.batch.outputs import charts
from triton_sam.batch.outputs.contact_sheet import Thumbnail
from triton_sam.batch.outputs.facts import FailureGroup, JobFacts
from triton_sam.batch.outputs.report_style import STYLE
from triton_sam.batch.outputs.statistics import TIMES_A_SECOND, Statistics

NAME = "report.html"
_MOST_CATEGORIES = 50
#: With them a name looks like another one.
_DIRECTIONS = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
#: What a job's folder may have, and what it is.
_FILES = {
    "annotations.json": "all masks as COCO JSON",
    "masks.geojson": "all outlines as GeoJSON",
    "labels": "a label image for each image",
    "overlays": "each image with its masks",
    "results": "each image's masks as JSON",
}


def report_page(folder: Path, facts: JobFacts, statistics: Statistics, pictures: Sequence[Thumbnail]) -> bytes:
    """The page as UTF-8. Links are relative to ``folder``, and are to what is there."""
    title = f"Batch job {folder.absolute().name}".rstrip()
    body = "\n".join(
        (
            f"<h1>{_text(title)}</h1>",
            _state(facts),
            _tiles(facts, statistics),
            _section("Files", _files(folder)),
            _section("What failed", _failures(facts)),
            _section("Categories", _categories(facts, statistics)),
            _section("Results", _histograms(statistics)),
            _section("Samples", _sheet(pictures)),
            _section("What ran", _definition(facts, statistics)),
            f"<footer>triton-sam {_text(facts.version)}</footer>",
        )
    )
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing can be loaded or run, whatever an image is called.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>{_plain(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )
    return page.encode("utf-8", "replace")  # a file's name need not be Unicode


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{title}</h2>\n{content}\n</section>" if content else ""


def _state(facts: JobFacts) -> str:
    total = facts.done + facts.failed + facts.waiting
    if facts.waiting:
        kind, words = "warn", f"{facts.waiting:,} of {_counted(total, 'image')} are waiting: the same command goes on"
    elif facts.failed:
        kind, words = "bad", f"{facts.failed:,} of {_counted(total, 'image')} failed"
    else:
        kind, words = "good", "All images are done" if total else "There were no images"
    began = facts.began.isoformat(sep=" ", timespec="minutes")
    return f'<p class="quiet"><strong class="{kind}">{words}</strong> · began {_text(began)}</p>'


def _tiles(facts: JobFacts, statistics: Statistics) -> str:
    rate = facts.done / facts.seconds if facts.seconds > 0 else 0.0
    tiles = {
        "images done": f"{facts.done:,}",
        "failed": f"{facts.failed:,}",
        **({"waiting": f"{facts.waiting:,}"} if facts.waiting else {}),
        "masks": f"{statistics.area.count:,}",
        "masks an image": f"{statistics.masks.mean:,.1f}",
        "time": _duration(facts.seconds),
        "images a second": f"{rate:,.3g}" if rate < 100 else f"{rate:,.0f}",
    }
    entries = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in tiles.items())
    return f'<dl class="tiles">{entries}</dl>'


def _files(folder: Path) -> str:
    there = [
        f'<li><a href="{name}{"/" if (folder / name).is_dir() else ""}">{name}</a> '
        f'<span class="quiet">{what}</span></li>'
        for name, what in _FILES.items()
        if (folder / name).exists()
    ]
    return f'<ul class="files">{"".join(there)}</ul>' if there else ""


def _failures(facts: JobFacts) -> str:
    if not facts.failures:
        return ""
    rows = "".join(
        f"<tr><td>{_reason(group)}</td><td class='count'>{group.count:,}</td></tr>" for group in facts.failures
    )
    return f'<table class="failures">{rows}</table>'


def _reason(group: FailureGroup) -> str:
    if not group.examples:
        return _text(group.reason)
    names = "".join(f"<li>{_text(name)}</li>" for name in group.examples)
    more = group.count - len(group.examples)
    names += f"<li class='quiet'>and {more:,} more</li>" if more > 0 else ""
    return f"{_text(group.reason)}<details><summary>which</summary><ul>{names}</ul></details>"


def _categories(facts: JobFacts, statistics: Statistics) -> str:
    """Masks and images of each category, the most frequent first; of words also those that were nowhere."""
    named = {int(category["id"]): str(category.get("name", "")) for category in facts.categories if "id" in category}
    counts = [(statistics.of_categories[number], name, number) for number, name in named.items()]
    if not counts:
        return ""
    ordered = sorted(counts, key=lambda entry: -entry[0])
    rows = "".join(
        f"<tr><td>{_text(name)}</td><td class='count'>{count:,}</td>"
        f"<td class='count'>{statistics.with_categories[number]:,}</td></tr>"
        for count, name, number in ordered[:_MOST_CATEGORIES]
    )
    more = len(ordered) - _MOST_CATEGORIES
    rows += f"<tr><td class='quiet' colspan='3'>and {more:,} more</td></tr>" if more > 0 else ""
    head = "<tr><th>name</th><th class='count'>masks</th><th class='count'>images</th></tr>"
    return f"<table>{head}{rows}</table>"


def _histograms(statistics: Statistics) -> str:
    score, area, masks, seconds = statistics.score, statistics.area, statistics.masks, statistics.seconds
    drawn = [
        (score.count, f"mean {score.mean:.3f}", charts.score_bars(statistics.scores)),
        (
            area.count,
            f"mean {area.mean:,.0f} px",
            charts.doubling_bars("Masks by area", "pixels", statistics.areas, unit=" px"),
        ),
        (
            masks.count,
            f"mean {masks.mean:,.1f}, most {max(masks.greatest, 0):,.0f}",
            charts.doubling_bars("Images by number of masks", "masks", statistics.masks_per_image, unit=" masks"),
        ),
        (
            seconds.count,
            f"mean {seconds.mean:.3g} s, most {max(seconds.greatest, 0):.3g} s",
            charts.doubling_bars("Images by time of the answer", "seconds", statistics.times, 1 / TIMES_A_SECOND, " s"),
        ),
    ]
    figures = [
        f"<figure><figcaption>{_plain(bars.title)} <span>{_plain(about)}</span></figcaption>"
        f"{charts.histogram(bars)}</figure>"
        for count, about, bars in drawn
        if count
    ]
    return f'<div class="charts">{"".join(figures)}</div>' if figures else ""


def _sheet(pictures: Sequence[Thumbnail]) -> str:
    figures = []
    for one in pictures:
        about = _counted(one.masks, "mask") + ("" if one.has_picture else "; the image could not be read")
        figures.append(
            f'<figure><img src="{one.data}" width="{one.width}" height="{one.height}" alt="" loading="lazy">'
            f"<figcaption>{_text(one.name)} <span>{about}</span></figcaption></figure>"
        )
    return f'<div class="sheet">{"".join(figures)}</div>' if figures else ""


def _definition(facts: JobFacts, statistics: Statistics) -> str:
    models = [f"{name} ({_counted(count, 'image')})" for name, count in statistics.models.most_common() if name]
    rows = [*_rows(facts.definition), *([("models that answered", ", ".join(models))] if models else [])]
    cells = "".join(f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in rows)
    return f"<table>{cells}</table>" if cells else ""


def _rows(definition: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values; of a mapping its own, with the names of both. What was not chosen is left out."""
    for key, value in definition.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            if value:
                yield from _rows(value, f"{name}: ")
            else:
                yield name, "yes"
        elif isinstance(value, list | tuple):
            yield name, ", ".join(str(one) for one in value)
        elif value is not None:
            yield name, str(value)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = timedelta(seconds=round(seconds)) // timedelta(minutes=1)
    if minutes < 60:
        return f"{minutes} min {round(seconds) % 60} s"
    return f"{minutes // 60} h {minutes % 60} min"


def _text(words: str) -> str:
    """Any text inside an element, also of right-to-left letters, without an effect on what stands beside it."""
    return f"<bdi>{_plain(words)}</bdi>"


def _plain(words: str) -> str:
    """HTML is shown as text, and what would change the text around it as a sign: control and direction characters."""
    return html.escape("".join(_sign(letter) for letter in words))


def _sign(letter: str) -> str:
    if letter in _DIRECTIONS:
        return "\N{REPLACEMENT CHARACTER}"
    if unicodedata.category(letter) != "Cc":
        return letter
    return chr(0x2400 + ord(letter)) if ord(letter) < 0x20 else "\N{REPLACEMENT CHARACTER}"

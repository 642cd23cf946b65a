"""Regions of an answer, ``{"label", "box"}`` or ``{"label", "point"}`` in original pixels; and the words around them.

Pure. The words are English, as those of the models are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from triton_sam.engines.vlm.crops import Crop

#: A region as JSON.
Region = Mapping[str, Any]

_QUESTION = re.compile(
    r"""(?:(?:please|can\ you|could\ you)\s+)?
    (?:where(?:'s|\ is|\ are)|find|locate|detect|segment|outline|mark|point\ (?:to|at|out)|show(?:\ me)?
      |what\ is\ the\ (?:place|position|location)\ of|is\ there|are\ there)\s+""",
    re.VERBOSE | re.IGNORECASE,
)
_ARTICLE = re.compile(r"(?:all\s+of\s+the|all\s+the|all|every|each|any|the|an|a)\s+", re.IGNORECASE)
_ENDING = re.compile(r" in (?:this|the) (?:image|picture|photo|scene)$", re.IGNORECASE)


def asked_phrase(question: str) -> str:
    """What a question asks for: ``Where is the red cup?`` -> ``the red cup``. Other texts only lose their ending."""
    text = _ENDING.sub("", " ".join(question.split()).rstrip(" ?.!"))
    return _without(_QUESTION, text)


def asked_object(question: str) -> str:
    """As :func:`asked_phrase`, without the article: ``red cup``."""
    return _without(_ARTICLE, asked_phrase(question))


def _without(beginning: re.Pattern[str], text: str) -> str:
    matched = beginning.match(text)
    return text[matched.end() :] if matched else text


def place_shares(text: str, places: Sequence[Sequence[str]]) -> list[tuple[str, list[float]]]:
    """(label, box) of each thing that a text puts at a place: ``The red circle is at the top.``

    Args:
        places: the words for each cell of a grid, row by row.

    Returns:
        Boxes of whole cells, x0, y0, x1, y1 as shares of what the model sees.
    """
    cells = {
        words: [column / len(row), line / len(places), (column + 1) / len(row), (line + 1) / len(places)]
        for line, row in enumerate(places)
        for column, words in enumerate(row)
    }
    # The longest first: "at the top" is also the beginning of "at the top left".
    words = "|".join(re.escape(place) for place in sorted(cells, key=len, reverse=True))
    name = r"(?:(?!(?:the|an?|is|are) )[\w-]+ )+?"
    thing = re.compile(rf"\b(?:the|an?) ({name})(?:(?:is|are) )?({words})\b", re.IGNORECASE)
    return [(match[1].rstrip(), cells[match[2].lower()]) for match in thing.finditer(" ".join(text.split()))]


def box_region(label: str, shares: Sequence[float], crop: Crop) -> list[Region]:
    """The region of a box in shares of what the model sees; empty if nothing of it is in the image."""
    box = crop.to_original(shares)
    return [] if box is None else [{"label": label, "box": box}]


def point_region(label: str, x: float, y: float, crop: Crop) -> list[Region]:
    """As :func:`box_region`, for a point."""
    point = crop.point_to_original(x, y)
    return [] if point is None else [{"label": label, "point": point}]

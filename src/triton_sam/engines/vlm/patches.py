"""Reads the tags of Kosmos-2's text: phrases, and their boxes as places of a grid of 32 x 32 patches. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Patches a side. A box is written as the patches of its first and its last corner, counted row by row.
SIDE = 32
Shares = tuple[float, float, float, float]

_PATCH = "<patch_index_([0-9]+)>"
_TAG = re.compile("<.*?>")
_CORNERS = re.compile(_PATCH + _PATCH)
_BOXES = re.compile(
    "(?:<phrase>(?P<phrase>[^<]+)</phrase>)?<object>"
    "(?P<boxes>{box}(?:</delimiter_of_multi_objects/>{box})*)</object>".format(box=_CORNERS.pattern.replace("(", "(?:"))
)


@dataclass(frozen=True, slots=True)
class Located:
    """A phrase and where it is.

    Attributes:
        phrase: None for boxes without a phrase.
        start, end: of the phrase in the text without tags, in characters.
        boxes: x0, y0, x1, y1 of each occurrence, as shares of what the model sees.
    """

    phrase: str | None
    start: int
    end: int
    boxes: tuple[Shares, ...]


def without_tags(text: str) -> str:
    """The text as people read it; blanks at its ends are left as they are."""
    return _TAG.sub("", text)


def read_located(text: str) -> tuple[str, list[Located]]:
    """(the text without tags and without blanks around it, the phrases that have boxes, in order)."""
    plain = without_tags(text)
    offset = len(plain) - len(plain.lstrip())
    found = []
    for match in _BOXES.finditer(text):
        phrase = match["phrase"]
        start = end = len(without_tags(text[: match.start()])) - offset
        if phrase is not None:
            start += len(phrase) - len(phrase.lstrip())
            end = start + len(phrase.strip())
        boxes = tuple(box_of(int(first), int(last)) for first, last in _CORNERS.findall(match["boxes"]))
        found.append(Located(None if phrase is None else phrase.strip(), start, end, boxes))
    return plain.strip(), found


def box_of(first: int, last: int) -> Shares:
    """The box from patch ``first`` to patch ``last``.

    Its corners are the centres of the patches. A box within one row or column of patches takes them whole: between
    centres it would have no area.
    """
    (top, left), (bottom, right) = divmod(first, SIDE), divmod(last, SIDE)
    begin, end = (0.0, 1.0) if top == bottom or left == right else (0.5, 0.5)
    return (left + begin) / SIDE, (top + begin) / SIDE, (right + end) / SIDE, (bottom + end) / SIDE

"""Concepts of a request: parsing and validation, exemplars in original pixels.

The JSON form, inside ``prompt_json``::

    {"text": "coin"}   or   {"text": ["coin", "spoon"]}
    {"exemplars": [[x0, y0, x1, y1], ...], "exemplar_labels": [1, 0, ...]}   with one text or without
    {"concepts": [{"text": ..., "exemplars": ..., "exemplar_labels": ...}, ...]}
    "score_threshold": 0.5, "max_instances": 100
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.json_values import is_finite_number, kind, short
from triton_sam.core.prompt_values import FOREGROUND, box_row, is_empty, label_row, refuse_unknown
from triton_sam.errors import InvalidInput

#: Meta's own; transformers has 0.3.
SCORE_THRESHOLD = 0.5
#: The word that stands for "as in the examples" where a concept has no text, in both references.
VISUAL = "visual"
#: Characters of a text: more than any 32 tokens have.
LONGEST_TEXT = 400
#: Where others know the limit.
NO_LIMIT = 2**31
#: The keys that describe one concept, and all that make a request one for concepts.
_CONCEPT_KEYS = frozenset({"text", "exemplars", "exemplar_labels"})
CONCEPT_KEYS = _CONCEPT_KEYS | {"concepts", "score_threshold", "max_instances"}


@dataclass(frozen=True, slots=True, eq=False)
class ConceptPrompt:
    """What names one concept.

    Attributes:
        text: None if only exemplars say what it is.
        boxes: [E,4] float32 x0, y0, x1, y1 in original pixels, the exemplars.
        labels: [E] int32, 1 for an example of it, 0 for what it is not.
    """

    text: str | None
    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]

    @property
    def words(self) -> str:
        """The text that the network reads."""
        return VISUAL if self.text is None else self.text


@dataclass(frozen=True, slots=True)
class ConceptRequest:
    """Concepts that are looked for in one image.

    Attributes:
        score_threshold: instances with a higher score are found.
        most: instances of one concept that are returned, those with the highest scores.
    """

    concepts: tuple[ConceptPrompt, ...]
    score_threshold: float = SCORE_THRESHOLD
    most: int = 200

    def check_inside(self, width: int, height: int) -> None:
        """Raises InvalidInput that names the first exemplar outside a ``width`` x ``height`` image."""
        for which, concept in enumerate(self.concepts):
            where = _where(which, len(self.concepts))
            for index, (x0, y0, x1, y1) in enumerate(concept.boxes.tolist()):
                if not (x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height):
                    raise InvalidInput(
                        f"exemplar {index}{where} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) reaches outside the image "
                        f"of {width} x {height} pixels: clip it"
                    )


@dataclass(frozen=True, slots=True)
class ConceptLimits:
    """Limits of one request: concepts, exemplars of each, and instances of each."""

    concepts: int = 16
    exemplars: int = 64
    instances: int = 200


def concepts_from(document: Mapping[str, Any], limits: ConceptLimits | None = None) -> ConceptRequest | None:
    """The concepts of a parsed ``prompt_json``; None if it asks for none.

    Raises:
        InvalidInput: one sentence that names what is wrong.
    """
    limits = limits or ConceptLimits()
    if not any(document.get(key) is not None for key in CONCEPT_KEYS):
        return None
    entries = _entries(document)
    if not entries:
        alone = next(key for key in sorted(CONCEPT_KEYS) if document.get(key) is not None)
        raise InvalidInput(f"{alone} needs a concept: add text or exemplars")
    if len(entries) > limits.concepts:
        raise InvalidInput(f"{len(entries):,} concepts are too many: {limits.concepts} are allowed")
    concepts = tuple(_concept(entry, _where(index, len(entries)), limits) for index, entry in enumerate(entries))
    return ConceptRequest(
        concepts, _threshold(document.get("score_threshold")), _most(document.get("max_instances"), limits.instances)
    )


def _entries(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """One mapping with text and exemplars for each concept."""
    listed = document.get("concepts")
    top = {key: document[key] for key in _CONCEPT_KEYS if document.get(key) is not None}
    if listed is not None:
        if not isinstance(listed, list):
            raise InvalidInput(f"concepts is a list, not {kind(listed)}")
        if top:
            raise InvalidInput(f"{min(top)} cannot be combined with concepts: move it into one of them")
        for index, entry in enumerate(listed):
            if not isinstance(entry, dict):
                raise InvalidInput(f"concept {index} is a JSON object with text or exemplars, not {kind(entry)}")
            refuse_unknown(entry, _CONCEPT_KEYS, f"concept {index}")
        return list(listed)
    texts = top.get("text")
    if not isinstance(texts, list | tuple):
        return [top] if top else []
    if len(texts) > 1 and (not is_empty(top.get("exemplars")) or not is_empty(top.get("exemplar_labels"))):
        raise InvalidInput("several texts with exemplars are ambiguous: use concepts, with exemplars in each")
    return [{**top, "text": text} for text in texts or [""]]


def _concept(entry: Mapping[str, Any], where: str, limits: ConceptLimits) -> ConceptPrompt:
    given = entry.get("text")
    text = None if given is None else concept_text(given, where)
    exemplars = [] if is_empty(entry.get("exemplars")) else entry["exemplars"]
    if isinstance(exemplars, np.ndarray):
        exemplars = exemplars.tolist()
    if not isinstance(exemplars, list | tuple):
        raise InvalidInput(f"exemplars{where} is a list of [x0, y0, x1, y1], not {kind(exemplars)}")
    if len(exemplars) > limits.exemplars:
        raise InvalidInput(f"{len(exemplars):,} exemplars{where} are too many: {limits.exemplars} are allowed")
    rows = [box_row(box, where, f"exemplar {index}") for index, box in enumerate(exemplars)]
    boxes = np.stack(rows) if rows else np.zeros((0, 4), np.float32)
    labels = label_row(entry.get("exemplar_labels"), len(boxes), where, name="exemplar_label", rows="exemplars")
    if text is None and not len(boxes):
        raise InvalidInput(f"{where.removeprefix(' of ') or 'the concept'} is empty: give a text or exemplars")
    if text is None and not (labels == FOREGROUND).any():
        raise InvalidInput(
            f"negative exemplars{where} alone name nothing: add an exemplar with label 1, or a text to take them from"
        )
    return ConceptPrompt(text, boxes, labels)


def concept_text(value: Any, where: str = "") -> str:
    """A text without blanks around it; InvalidInput if it cannot name anything."""
    if not isinstance(value, str):
        raise InvalidInput(f"text{where} is a string or a list of strings, not {kind(value)}")
    if len(value) > LONGEST_TEXT:
        raise InvalidInput(f"text{where} has {len(value):,} characters and {LONGEST_TEXT} are allowed: use a few words")
    text = " ".join(value.split())
    if not text:
        raise InvalidInput(f'text{where} is empty: name what to look for, for example "yellow bus"')
    # Marks (Mn, Cf) belong to letters of many scripts; control characters, lone surrogates and the like do not.
    if any(unicodedata.category(sign) in {"Cc", "Cs", "Cn", "Co"} for sign in text):
        raise InvalidInput(f"text{where} has control characters or ones that are not assigned: send plain words")
    if not any(sign.isalnum() for sign in text):
        raise InvalidInput(f"text{where} {short(text)} has no letter or digit: name what to look for in words")
    return text


def _threshold(value: Any) -> float:
    if value is None:
        return SCORE_THRESHOLD
    if not is_finite_number(value) or not 0 <= value <= 1:
        raise InvalidInput(f"score_threshold is a number from 0 to 1, not {short(value)}")
    return float(value)


def _most(value: Any, allowed: int) -> int:
    if value is None:
        return allowed
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= allowed:
        to = " on" if allowed >= NO_LIMIT else f" to {allowed}"
        raise InvalidInput(f"max_instances is a whole number from 1{to}, not {short(value)}")
    return value


def _where(index: int, count: int) -> str:
    return f" of concept {index}" if count > 1 else ""

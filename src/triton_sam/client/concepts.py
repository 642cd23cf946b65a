"""Words and examples: the request, and the instances that a server finds of them. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.client.core import ClickRequest, Segmentation
from triton_sam.client.wire import Outputs
from triton_sam.core.concepts.request import NO_LIMIT, VISUAL, ConceptLimits, ConceptPrompt, concepts_from
from triton_sam.core.json_values import kind
from triton_sam.core.mask_cleaning import cleaning_from
from triton_sam.core.masks import MaskSet
from triton_sam.errors import InternalError, InvalidInput
from triton_sam.settings import get_settings

#: The server enforces its own limits.
_NO_LIMITS = ConceptLimits(concepts=NO_LIMIT, exemplars=NO_LIMIT, instances=NO_LIMIT)
#: Instances of a text for which there is room in a request, if there is for several texts at all.
_ENOUGH = 100
#: Of a concept in a request.
Concept = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FoundConcept:
    """What was found of one concept of a request.

    Attributes:
        text: None if only exemplars say what it is.
        presence: probability that it is in the image at all.
        found: instances above the threshold.
        returned: those of them with the highest scores, up to ``max_instances``.
    """

    text: str | None
    presence: float
    found: int
    returned: int

    @property
    def name(self) -> str:
        """For display: the text, or what stands for examples alone."""
        return VISUAL if self.text is None else self.text


@dataclass(frozen=True, slots=True, eq=False)
class ConceptSegmentation(Segmentation):
    """The instances of concepts: K masks, ordered by concept and then by falling score. K may be 0."""

    @property
    def masks(self) -> MaskSet:
        """Its masks are [K,H,W] bool, and its objects the instances' concepts; from ``format`` bits, png or rle."""
        return wire.mask_set(self.result, self.packed, by="concept")

    @property
    def boxes(self) -> npt.NDArray[np.float32]:
        """[K,4] x0, y0, x1, y1 of the instances in original pixels."""
        return np.array([entry["box"] for entry in self.result["masks"]], np.float32).reshape(-1, 4)

    @property
    def concept_indices(self) -> npt.NDArray[np.int32]:
        """[K] which concept of the request each instance is of."""
        return np.array([entry["concept"] for entry in self.result["masks"]], np.int32)

    @property
    def concepts(self) -> list[FoundConcept]:
        """One for each concept of the request, in its order, also if nothing was found of it."""
        return [
            FoundConcept(entry.get("text"), float(entry["presence"]), int(entry["found"]), int(entry["returned"]))
            for entry in self.result["concepts"]
        ]

    @property
    def names(self) -> list[str]:
        """[K] the name of each instance's concept."""
        names = [concept.name for concept in self.concepts]
        return [names[index] for index in self.concept_indices.tolist()]

    def __len__(self) -> int:
        """K."""
        return len(self.result["masks"])


def asks_for_concepts(*values: object) -> bool:
    """Whether a request with these texts, exemplars and options is one for concepts."""
    return any(value is not None for value in values)


def concept_request(
    text: str | Sequence[str] | None = None,
    exemplars: npt.ArrayLike | None = None,
    exemplar_labels: npt.ArrayLike | None = None,
    concepts: Sequence[Concept] | None = None,
    *,
    score_threshold: float | None = None,
    max_instances: int | None = None,
    form: str = "bits",
    clean: int | Mapping[str, int] | None = None,
) -> ClickRequest:
    """The request for all instances of concepts; InvalidInput if it is malformed, or names nothing.

    Args:
        text: one, or several that are looked for separately.
        exemplars: [E,4] x0, y0, x1, y1 in original pixels; exemplar_labels: [E], 1 for examples, 0 for what it is not.
        concepts: several, each ``{"text": ..., "exemplars": ..., "exemplar_labels": ...}``.
    """
    given = {
        "text": text,
        "exemplars": _listed(exemplars),
        "exemplar_labels": _listed(exemplar_labels),
        "concepts": None if concepts is None else _entries(concepts),
        "score_threshold": _listed(score_threshold),
        "max_instances": _listed(max_instances),
    }
    checked = concepts_from(given, _NO_LIMITS)
    if checked is None:
        raise InvalidInput("there is nothing to look for: give a text or exemplars")
    document: dict[str, Any] = {"concepts": list(map(concept_entry, checked.concepts)), "format": form}
    if score_threshold is not None:
        document["score_threshold"] = checked.score_threshold
    if max_instances is not None:
        document["max_instances"] = checked.most
    cleaning = cleaning_from(clean)
    if cleaning is not None:
        document["clean"] = cleaning.as_json()
    return ClickRequest(document, ("result_json", "masks") if form == "bits" else ("result_json",))


def concept_entry(prompt: ConceptPrompt) -> dict[str, Any]:
    """A checked concept in the JSON form of a request."""
    entry: dict[str, Any] = {} if prompt.text is None else {"text": prompt.text}
    if len(prompt.boxes):
        entry |= {"exemplars": prompt.boxes.tolist(), "exemplar_labels": prompt.labels.tolist()}
    return entry


def most_texts(size: tuple[int, int], max_instances: int | None = None) -> int:
    """How many texts go in one request so that the answer has room for the instances of each.

    Args:
        size: (width, height) of the image.
        max_instances: that are asked for of each text; None for the server's limit.
    """
    settings = get_settings()
    pixels = max(1, size[0] * size[1]) * (max_instances or _ENOUGH)
    return max(1, min(settings.max_concepts, settings.max_answer_pixels // pixels))


def not_sent(result: Mapping[str, Any]) -> str | None:
    """What a server has found and not sent, to follow its name in a sentence; None if it has sent all."""
    for concept in result.get("concepts", ()):
        if concept["found"] > concept["returned"]:
            return (
                f"has found {concept['found']} of {concept.get('text')!r} and sends the best {concept['returned']}, "
                "as its limits are (TRITON_SAM_MAX_INSTANCES, TRITON_SAM_MAX_ANSWER_PIXELS)"
            )
    return None


def read_concepts(outputs: Outputs) -> ConceptSegmentation:
    """The result of a request for concepts."""
    result = json.loads(wire.text_of(outputs, "result_json"))
    if "concepts" not in result:
        raise InternalError("the server's answer has no concepts: it may be of another version")
    return ConceptSegmentation(result, outputs.get("masks"))


def _entries(concepts: Any) -> Any:
    if isinstance(concepts, Mapping) or not isinstance(concepts, Sequence) or isinstance(concepts, str | bytes):
        raise InvalidInput(f"concepts is a list of mappings with text or exemplars, not {kind(concepts)}")
    return [
        {name: _listed(value) for name, value in entry.items()} if isinstance(entry, Mapping) else entry
        for entry in concepts
    ]


def _listed(value: Any) -> Any:
    """Arrays and numbers of numpy as Python's; rows may be arrays themselves."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_listed(row) for row in value] if isinstance(value, list | tuple) else value

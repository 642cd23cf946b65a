"""An engine that finds colours (see :mod:`tests.analytic_concepts`), whose calls can be held."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from tests.analytic_concepts import colours_of, found_in
from tests.unit.backend.scheduler_helpers import PATIENCE, GatedEngine
from triton_sam.core.concepts.selection import pixel_boxes, select, square_boxes
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.base import Decoded, Embedding, HostEmbedding
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.errors import InvalidInput
from triton_sam.models.catalog import get_spec

SIDE, CELLS = 256, 64
#: More words are too many, as if each was a token.
MOST_WORDS = 8


class ColourEngine(GatedEngine):
    """Counts its calls for concepts; a closed gate holds them."""

    spec = get_spec("sam2:tiny")

    def __init__(self) -> None:
        super().__init__()
        self.capacity = dataclasses.replace(self.capacity, concepts=True, concept_rows=2)
        self.concept_gate, self.concept_arrived = threading.Event(), threading.Event()
        self.concept_gate.set()
        self.looked_for: list[list[str]] = []
        self.concept_failure: Exception | None = None
        self.bad_text: str | None = None

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        super().encode(prepared)
        return [colour_embedding(picture) for picture in prepared]

    def check_text(self, text: str) -> None:
        if len(text.split()) > MOST_WORDS:
            raise InvalidInput(f"text has {len(text.split())} tokens and {MOST_WORDS} are allowed")

    def begin_concepts(self, rows: Sequence[ConceptRow]) -> Callable[[], list[Instances]]:
        assert len(rows) <= self.capacity.concept_rows
        assert self.capacity.mixes_images or len({id(row.embedding) for row in rows}) == 1
        self.looked_for.append([row.prompt.words for row in rows])
        self.concept_arrived.set()

        def result() -> list[Instances]:
            assert self.concept_gate.wait(PATIENCE)
            if self.concept_failure is not None:
                raise self.concept_failure
            if self.bad_text in (row.prompt.words for row in rows):
                raise RuntimeError("cannot look for this one")
            return [find(row) for row in rows]

        return result


def find(row: ConceptRow) -> Instances:
    """The instances of one row."""
    frame, prompt = row.embedding.frame, row.prompt
    boxes = square_boxes(prompt.boxes, frame).tolist()
    found = found_in(row.embedding.array("backbone_features"), prompt.words, boxes, prompt.labels.tolist())
    chosen = select(found.logits, found.presence, row.threshold, row.most)
    masks = found.masks[chosen.queries]
    decoded = Decoded(chosen.scores, masks)
    return Instances(
        chosen.presence, chosen.found, pixel_boxes(found.boxes[chosen.queries], frame), decoded, text_ms=0.25
    )


def colour_embedding(picture: Image.Image) -> Embedding:
    frame = Frame(*picture.size, SIDE, ResizePolicy.SQUASH)
    return HostEmbedding(frame, {"backbone_features": colours_of(picture, SIDE, CELLS).astype(np.float32)})

"""An engine that finds colours (see :mod:`tests.analytic_concepts`), whose calls can be held, and who asks it."""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from tests.analytic_concepts import colours_of, found_in, scene
from tests.unit.backend.scheduler_helpers import PATIENCE, GatedEngine, Inbox
from triton_sam.backend.concept_replies import build_concepts
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import ALL_OUTPUTS, ModelInfo, needs_of
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.concepts.selection import pixel_boxes, select, square_boxes
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.prompts import prompt_from_mapping
from triton_sam.engines.base import Decoded, Embedding, HostEmbedding
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.errors import InvalidInput, TritonSamError
from triton_sam.models.catalog import get_spec

SIDE, CELLS = 256, 64
PICTURE = scene()
WHO = ModelInfo("colours", "1", "float32")
WANTED = ALL_OUTPUTS - {"embedding"}
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
        assert len({id(row.embedding) for row in rows}) == 1
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


class Mail(Inbox):
    """Keeps the tensors and JSON of a response."""

    def __init__(self, *, gone: bool = False, wanted: frozenset[str] = WANTED) -> None:
        super().__init__(gone=gone)
        self.wanted = wanted
        self.outputs: queue.Queue[dict[str, Any] | TritonSamError] = queue.Queue()

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        self.outputs.put(build_concepts(job, decoded, WHO, self.wanted))

    def fail(self, error: TritonSamError) -> None:
        self.outputs.put(error)

    @property
    def answer(self) -> dict[str, Any]:
        """The tensors, and ``result_json`` parsed."""
        outputs = self.outputs.get(timeout=PATIENCE)
        assert isinstance(outputs, dict), outputs
        return outputs | {"json": json.loads(outputs["result_json"][0])}

    @property
    def error(self) -> TritonSamError:
        error = self.outputs.get(timeout=PATIENCE)
        assert isinstance(error, TritonSamError), error
        return error


def asked(document: dict[str, Any], shared: Embedding | None = None, **fields: Any) -> SegmentJob:
    reply = fields.pop("reply", None) or Mail()
    wish = prompt_from_mapping({"format": "rle"} | document)
    job = SegmentJob(reply, wish, "scene", needs=needs_of(wish, reply.wanted), **fields)
    job.embedding = shared
    return job


def ask(scheduler: Scheduler, document: dict[str, Any] | str, shared: Embedding | None = None, **fields: Any) -> Mail:
    """Sends a request on a cached image."""
    wish = {"text": document} if isinstance(document, str) else document
    job = asked(wish, shared or colour_embedding(PICTURE), **fields)
    scheduler.submit_click(job)
    assert isinstance(job.reply, Mail)
    return job.reply


def texts(*names: str) -> dict[str, Any]:
    return {"text": list(names)}


def hold(engine: ColourEngine, scheduler: Scheduler, text: str | dict[str, Any] = "yellow", **fields: Any) -> Mail:
    """Holds the detector with one request inside, so that later ones have to wait."""
    engine.concept_gate.clear()
    engine.concept_arrived.clear()
    first = ask(scheduler, text, **fields)
    assert engine.concept_arrived.wait(PATIENCE)
    return first

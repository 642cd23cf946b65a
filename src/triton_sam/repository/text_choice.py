"""Which model finds words where none is named: one with published weights before the embedded toy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from triton_sam.models.catalog import TEXT_MODEL
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.video_choice import first_choice


def best_for_text(models: Mapping[str, ModelSpec]) -> str | None:
    """Of Triton names -> models, the name of the one that takes text; None if none does."""
    return first_choice((name, spec.id) for name, spec in models.items() if spec.concepts is not None)


def text_model(repository: Path) -> str:
    """The id of the model to serve for words: one that is set up, or else the embedded toy."""
    there = find_segmenters(repository)
    name = best_for_text(there)
    return TEXT_MODEL if name is None else there[name].id

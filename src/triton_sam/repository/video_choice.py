"""Which model tracks objects where none is named: one with its published memory before the embedded one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from triton_sam.models.catalog import VIDEO_MODEL, find_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.segmenters import find_segmenters


def is_embedded(model_id: str) -> bool:
    """Whether a model's memory is part of this package."""
    spec = find_spec(model_id)
    return spec is not None and spec.assembly is not None


def best_for_video(models: Mapping[str, ModelSpec]) -> str | None:
    """Of Triton names -> models, the name of the one that tracks; None if none has a memory."""
    return first_choice((name, spec.id) for name, spec in models.items() if spec.memory is not None)


def first_choice(models: Iterable[tuple[str, str]]) -> str | None:
    """Of (Triton name, id) of models with a memory, the name of the one that tracks; None if there are none."""
    return min(models, key=lambda model: is_embedded(model[1]), default=(None, ""))[0]


def video_model(repository: Path) -> str:
    """The id of the model to serve for videos: one that is set up, or else the embedded one."""
    there = find_segmenters(repository)
    name = best_for_video(there)
    return VIDEO_MODEL if name is None else there[name].id

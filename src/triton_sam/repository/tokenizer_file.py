"""Puts the file that turns words into tokens beside what finds concepts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from triton_sam.errors import WeightsError
from triton_sam.models.bundled import bundled_path
from triton_sam.models.specs import CONCEPTS_FILE, TOKENIZER_FILE, ModelSpec
from triton_sam.models.weights import ProgressFactory, WeightStore
from triton_sam.repository.model_folders import link_or_copy


def add_tokenizer(
    spec: ModelSpec,
    folder: Path,
    checkpoint: Path | None,
    store: WeightStore,
    progress: ProgressFactory,
    say: Callable[[str], None],
) -> None:
    """Adds the tokenizer to an export; says so if a model that could take words will not.

    Args:
        checkpoint: the user's own file or folder: a tokenizer beside it comes first. None for the official one.
    """
    if spec.architecture.concepts is None:
        return
    if not (folder / CONCEPTS_FILE).is_file():
        say(f"{spec.id} takes points and boxes but no words: these weights have no detector")
        return
    target, own = folder / TOKENIZER_FILE, _own(spec, checkpoint)
    if own is not None:
        target.unlink(missing_ok=True)  # it may be a link to a file of the cache
        shutil.copyfile(own, target)
        return
    if target.is_file():
        return
    try:
        link_or_copy(store.pull_tokenizer(spec, progress), target)
    except WeightsError as error:
        say(
            f"{spec.id} takes points and boxes but no words, for want of a tokenizer: {error}; put {TOKENIZER_FILE} "
            "beside the checkpoint and name that with --checkpoint"
        )


def _own(spec: ModelSpec, checkpoint: Path | None) -> Path | None:
    """The tokenizer beside a checkpoint, or of a model that is part of this package; None if there is none."""
    if checkpoint is not None:
        checkpoint = checkpoint.expanduser()
        beside = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / TOKENIZER_FILE
        if beside.is_file():
            return beside
    if spec.assembly is not None and spec.assembly.tokenizer:
        return bundled_path(spec.assembly.tokenizer)
    return None

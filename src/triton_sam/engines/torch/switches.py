"""The steps of an engine that gain by compiling, in the order in which requests need them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from triton_sam.engines.torch.compile_process import (
    CONCEPT_IMAGE,
    CONCEPTS,
    DECODER,
    ENCODER,
    EXAMPLES,
    GRID,
    MEASURING,
    PACKING,
    RESIZING,
    TEXT,
    TRACKING,
    TRACKING_KERNELS,
)
from triton_sam.engines.torch.concept_words import WordReader
from triton_sam.engines.torch.concepts import COUNTS, MOST_EXAMPLES
from triton_sam.engines.torch.finding import GridRunner
from triton_sam.engines.torch.memory_errors import switch

if TYPE_CHECKING:
    from triton_sam.engines.torch.engine import TorchEngine

Switch = Callable[[Path], object]


def switches(engine: TorchEngine) -> dict[str, Switch]:
    """Step -> what uses its compiled code."""
    images, rows, reader = engine.images, engine.rows, engine.images.reader
    found: dict[str, Switch] = {
        f"{ENCODER}1": partial(images.use_compiled, 1),
        f"{DECODER}1": partial(rows.use_compiled, 1),
        **({PACKING: lambda _: rows.use_packing_kernel()} if rows.packs else {}),
        **({RESIZING: lambda _: reader.use_kernel()} if reader.may_use_kernel else {}),
        **_of_concepts(engine),
        **{f"{DECODER}{count}": partial(rows.use_compiled, count) for count in rows.worth_compiling[::-1]},
        **{f"{ENCODER}{count}": partial(images.use_compiled, count) for count in reversed(images.batches)},
    }
    if engine.capacity.finds:  # clicks and images come first
        found[MEASURING] = lambda _: engine.grids.use_kernels()
        found[f"{GRID}{GridRunner.MOST_POINTS}"] = engine.grids.use_compiled
    tracker = engine.tracker
    if tracker is not None and tracker.worth_compiling:
        found[TRACKING_KERNELS] = lambda _: tracker.use_kernels()
        found |= {f"{TRACKING}{count}": partial(tracker.use_compiled, count) for count in tracker.worth_compiling}
    return {step: partial(switch, use) for step, use in found.items()}


def _of_concepts(engine: TorchEngine) -> dict[str, Switch]:
    finder = engine.concepts
    if finder is None or engine.capacity.on_cpu:
        return {}
    return {
        CONCEPT_IMAGE: finder.use_compiled_image,
        **{f"{TEXT}{count}": partial(finder.use_compiled_text, count) for count in WordReader.COUNTS},
        **{f"{CONCEPTS}{count}": partial(finder.use_compiled, count, 0) for count in COUNTS},
        **{f"{EXAMPLES}{count}": partial(finder.use_compiled, count, MOST_EXAMPLES) for count in COUNTS},
    }

"""Runs decoders on synthetic embeddings and prompts, to analyse them and to compare two decoders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from triton_sam.errors import SetupError
from triton_sam.export.onnx_graph import FloatArray
from triton_sam.models.specs import Graphs

Feeds = Mapping[str, FloatArray]
_SEED = 0
_OBJECT, _CORNERS = 1.0, (2.0, 3.0)


@dataclass(frozen=True, slots=True)
class Trial:
    """One synthetic batch of prompts.

    Attributes:
        rows: prompts in the batch.
        points: points per prompt, without the corners of its box.
        own_images: every prompt has an image of its own, if the decoder accepts that.
    """

    rows: int
    points: int
    box: bool = False
    mask: bool = False
    multimask: bool = False
    own_images: bool = False

    def feeds(self, graphs: Graphs) -> dict[str, FloatArray]:
        """Values for every input that a decoder may have; the same in every run."""
        rng, decoder = np.random.default_rng(_SEED), graphs.decoder
        images = self.rows if self.own_images and decoder.batched else 1
        feeds = {
            name: rng.normal(size=(images, *shape[1:])).astype(np.float32) for name, shape in graphs.encoder.outputs
        }
        corners = _CORNERS if self.box else ()
        labels = [_OBJECT] * self.points + list(corners)
        feeds[decoder.points] = rng.uniform(0, graphs.side, (self.rows, len(labels), 2)).astype(np.float32)
        feeds[decoder.labels] = np.tile(np.array(labels, np.float32), (self.rows, 1))
        logits = rng.normal(0, 8, (self.rows, 1, decoder.mask_side, decoder.mask_side))
        feeds[decoder.mask] = (logits * self.mask).astype(np.float32)
        feeds[decoder.mask_flag] = np.array([self.mask], np.float32)
        if decoder.multimask is not None:
            feeds[decoder.multimask] = np.array([self.multimask], np.float32)
        return feeds


#: Every kind of prompt, alone and in a batch.
CHECKS = (
    Trial(1, 1),
    Trial(1, 1, multimask=True),
    Trial(1, 2, box=True),
    Trial(1, 1, mask=True),
    Trial(3, 1, mask=True, multimask=True),
    Trial(2, 0, mask=True),
    Trial(3, 9),
    Trial(3, 2, own_images=True),
    Trial(2, 1, mask=True, own_images=True),
)


def open_decoder(source: Path | bytes) -> Any:
    """A session on all cores of this process; raises SetupError if the graph does not load."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = len(os.sched_getaffinity(0))
    try:
        return onnxruntime.InferenceSession(
            source if isinstance(source, bytes) else str(source), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # ONNX Runtime's exceptions share no narrower base class
        raise SetupError(f"a decoder does not load: {error}") from None


def run_decoder(session: Any, outputs: Sequence[str], feeds: Feeds) -> list[FloatArray]:
    """Runs a decoder and returns the named outputs; feeds that this decoder has no input for are ignored."""
    known = {entry.name for entry in (*session.get_inputs(), *session.get_overridable_initializers())}
    try:
        answers: list[FloatArray] = session.run(
            list(outputs), {name: array for name, array in feeds.items() if name in known}
        )
    except Exception as error:
        raise SetupError(f"a decoder does not run: {error}") from None
    return answers


def largest_difference(
    plain: Path | bytes, other: Path | bytes, graphs: Graphs, trials: Iterable[Trial] = CHECKS
) -> float:
    """The largest difference of a logit or a score between two decoders; infinite if shapes differ."""
    names = (graphs.decoder.masks, graphs.decoder.scores)
    sessions, worst = [open_decoder(source) for source in (plain, other)], 0.0
    for trial in trials:
        feeds = trial.feeds(graphs)
        wanted, given = (run_decoder(session, names, feeds) for session in sessions)
        for theirs, ours in zip(wanted, given, strict=True):
            if theirs.shape != ours.shape:
                return float("inf")
            gap = np.abs(theirs - ours).max(initial=0.0)
            worst = float("nan") if np.isnan(gap) else max(worst, float(gap))
            if np.isnan(worst):
                return worst
    return worst

"""Parity check after every export: the graphs in ONNX Runtime against the torch network, with all kinds of prompts.

The reference is the network's own ``forward``. It takes points and boxes through other code than our wrappers, so that
errors of a wrapper are found as well as errors of the conversion.

Embeddings and the logits and scores of every mask are compared as numbers. The single mask is one of four candidates.
It is compared with the candidate that the reference chooses or, if rounding may change the choice, with any that it may
choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from triton_sam.export.mask_choice import possible_tokens
from triton_sam.export.parity_reference import Reference, Wanted
from triton_sam.export.parity_report import Comparison, Report, compare, worst_iou
from triton_sam.export.parity_scenes import Case, Scene
from triton_sam.models.specs import Graphs

FloatArray = npt.NDArray[np.float32]
#: The error of the single mask's own token is unknown if another is chosen: it may be larger than the others'.
_ERROR_MARGIN = 4.0
#: Added to it, because the others may happen to agree to the last bit.
_LAST_BITS = 16 * 2.0**-24


@dataclass(frozen=True, slots=True, eq=False)
class _Given:
    """The graph's (masks, scores) for one case: the three alternatives, and the single mask."""

    several: tuple[FloatArray, FloatArray]
    single: tuple[FloatArray, FloatArray]


class ParityCheck:
    """Compares the two graphs of an export with their network; may run several times and encodes each scene once."""

    def __init__(self, reference: Reference, encoder: Path, decoder: Path) -> None:
        self._reference, self._graphs = reference, reference.graphs
        self._encoder, self._decoder = cpu_session(encoder), cpu_session(decoder)
        self._encoded: dict[Scene, dict[str, FloatArray]] = {}

    def run(self, scenes: Sequence[Scene], seed: int) -> Report:
        """Compares all outputs on these scenes; ``seed`` is that of the prompts."""
        report = Report(self._graphs.precision, seed=seed)
        for scene in scenes:
            wanted, given = self._reference.outputs(scene), self._encode(scene)
            report.comparisons += [compare(scene.name, name, wanted[name], given[name]) for name in wanted]
            if all(wanted[name].shape == given[name].shape for name in wanted):  # else the decoder refuses them
                report.comparisons += self._compare_answers(scene, seed, given)
        report.judge()
        return report

    def _encode(self, scene: Scene) -> dict[str, FloatArray]:
        if scene not in self._encoded:
            names = [name for name, _ in self._graphs.encoder.outputs]
            outputs = self._encoder.run(names, {self._graphs.encoder.image: scene.pixels})
            self._encoded[scene] = dict(zip(names, outputs, strict=True))
        return self._encoded[scene]

    def _compare_answers(self, scene: Scene, seed: int, embeddings: dict[str, FloatArray]) -> Iterator[Comparison]:
        answers = self._reference.answers(scene, seed)
        # Over all prompts: the four scores of one are too few for a standard deviation.
        deviation = float(np.concatenate([wanted.scores.ravel() for wanted in answers]).std())
        for wanted in answers:
            yield from self._compare_case(scene.name, wanted, self._ask(wanted.case, embeddings), deviation)

    def _ask(self, case: Case, embeddings: dict[str, FloatArray]) -> _Given:
        names = [self._graphs.decoder.masks, self._graphs.decoder.scores]

        def ask(multimask: bool) -> tuple[FloatArray, FloatArray]:
            masks, scores = self._decoder.run(names, {**embeddings, **_feeds(case, self._graphs, multimask)})
            return masks, scores

        return _Given(several=ask(multimask=True), single=ask(multimask=False))

    def _compare_case(self, image: str, wanted: Wanted, given: _Given, score_deviation: float) -> Iterator[Comparison]:
        """Compares the three alternatives, then the single mask."""
        names = self._graphs.decoder
        deviations = float(wanted.masks.std()), score_deviation
        masks = compare(image, names.masks, wanted.masks[:, 1:], given.several[0], deviations[0])
        masks.iou, masks.sure_iou = worst_iou(wanted.masks[:, 1:], given.several[0])
        scores = compare(image, names.scores, wanted.scores[:, 1:], given.several[1], deviations[1])
        for entry in (masks, scores):
            entry.prompt, entry.multimask = wanted.case.kind, True
            yield entry
        errors = [_ERROR_MARGIN * entry.max_abs_diff + _LAST_BITS * entry.reference_peak for entry in (masks, scores)]
        possible = [
            possible_tokens(self._reference.rule, own_masks, own_scores, *errors)
            for own_masks, own_scores in zip(wanted.masks, wanted.scores, strict=True)
        ]
        yield from self._compare_single(image, wanted, given.single, possible, deviations)

    def _compare_single(
        self,
        image: str,
        wanted: Wanted,
        given: tuple[FloatArray, FloatArray],
        possible: list[list[int]],
        deviations: tuple[float, float],
    ) -> Iterator[Comparison]:
        """Compares the single mask of each prompt with the nearest of its possible candidates."""
        rows = np.arange(len(possible))
        tokens, chosen = np.array([own[0] for own in possible]), None
        if given[0].shape == wanted.masks[:, :1].shape:
            distances = ((wanted.masks.astype(np.float64) - given[0]) ** 2).mean(axis=(2, 3))
            tokens = np.array([min(own, key=row.__getitem__) for own, row in zip(possible, distances, strict=True)])
            # Two tokens may give the same mask: then the possible one counts as chosen.
            same = np.sqrt(distances[rows, tokens]) <= np.sqrt(distances.min(axis=1)) + _LAST_BITS * deviations[0]
            chosen = [int(token) for token in np.where(same, tokens, distances.argmin(axis=1))]
        masks, scores = wanted.masks[rows, tokens][:, None], wanted.scores[rows, tokens][:, None]
        entry = compare(image, self._graphs.decoder.masks, masks, given[0], deviations[0])
        entry.prompt, entry.possible, entry.chosen = wanted.case.kind, possible, chosen
        entry.iou, entry.sure_iou = worst_iou(masks, given[0])
        yield entry
        entry = compare(image, self._graphs.decoder.scores, scores, given[1], deviations[1])
        entry.prompt = wanted.case.kind
        yield entry


def cpu_session(graph: Path) -> Any:
    """A graph in ONNX Runtime, for comparisons."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch needs the cores in between
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _feeds(case: Case, graphs: Graphs, multimask: bool) -> dict[str, FloatArray]:
    """The case as the graph's inputs; inputs that it does not have are left to the graph's defaults."""
    names = graphs.decoder
    coords, labels = case.points, case.labels
    if case.boxes is not None:
        coords = torch.cat([case.boxes.reshape(-1, 2, 2), coords], dim=1)
        labels = torch.cat([torch.tensor([[2.0, 3.0]]).expand(len(case.boxes), -1), labels], dim=1)
    feeds = {names.points: coords.numpy(), names.labels: labels.numpy()}
    if case.mask is not None:
        feeds |= {names.mask: case.mask.numpy(), names.mask_flag: np.ones(1, np.float32)}
    if multimask and names.multimask is not None:
        feeds[names.multimask] = np.ones(1, np.float32)
    return feeds

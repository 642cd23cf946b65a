"""After every export: the graphs in ONNX Runtime against the torch network, end to end, over all prompt kinds.

The reference is the network's own ``forward``: it takes points and boxes by other doors than our wrappers do, so an
error of a wrapper shows as well as one of the conversion.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from torch import Tensor

from triton_sam.export.networks import normalisation
from triton_sam.specs import Architecture, Graphs, Precision

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a graph of some precision may differ by.

    Attributes:
        worst: largest difference of any number, as a share of the reference's standard deviation.
        typical: root mean square of the differences of the encoder's outputs, likewise. (Masks are judged by their
            overlap: where one is chosen among several, a small difference may choose another.)
        iou: overlap of masks that the reference itself is sure of.
    """

    worst: float
    typical: float
    iou: float


LIMITS = {
    Precision.FP32: Limits(worst=1e-3, typical=1e-3, iou=0.999),
    Precision.FP16: Limits(worst=np.inf, typical=0.05, iou=0.99),
    Precision.INT8: Limits(worst=np.inf, typical=0.25, iou=0.98),
}
#: A mask counts as sure where moving the threshold by this many logits changes its area by less than a tenth.
_SURE_MARGIN = 1.0
_SURE_SHARE = 0.9
#: And only where it has as many low-resolution pixels: of a smaller one, single pixels decide.
_SURE_AREA = 16 * 16
_MASK_CLIP = 32.0
#: The name of the image that is fresh noise at every export.
RANDOM_IMAGE = "random"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """Prompts of one kind on one image, model pixels: [B,P,2], [B,P], [B,4] or None, [1,1,h,w] or None."""

    kind: str
    points: Tensor
    labels: Tensor
    boxes: Tensor | None = None
    mask: Tensor | None = None


@dataclass(slots=True)
class Comparison:
    """One output of one run: how far it is from the reference."""

    image: str
    output: str
    max_abs_diff: float
    rms_diff: float
    reference_std: float
    prompt: str = ""
    multimask: bool = False
    iou: float | None = None
    """Worst mask IoU, for masks."""
    sure_iou: float | None = None
    """The same over those masks that the reference is sure of; None where there are none."""


@dataclass(slots=True)
class Report:
    """The whole check."""

    precision: Precision
    comparisons: list[Comparison] = field(default_factory=list)
    passed: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        limits = asdict(LIMITS[self.precision])
        known = {name: limit if np.isfinite(limit) else None for name, limit in limits.items()}  # JSON has no infinity
        return asdict(self) | {"precision": self.precision.value, "limits": known}

    def judge(self) -> None:
        """Sets ``passed`` and, where it fails, the first ``reason``."""
        limits = LIMITS[self.precision]
        for entry in self.comparisons:
            # What a network is sure of in noise is chance, which only exact arithmetic repeats.
            judged = self.precision is Precision.FP32 or entry.image != RANDOM_IMAGE
            where = " ".join(part for part in (entry.output, "on the", entry.image, "image", entry.prompt) if part)
            if not (np.isfinite(entry.max_abs_diff) and entry.max_abs_diff <= limits.worst * entry.reference_std):
                self.reason = f"{where} differs by {entry.max_abs_diff:.2g} (deviation {entry.reference_std:.2g})"
            elif not (entry.prompt or entry.rms_diff <= limits.typical * entry.reference_std):
                self.reason = f"{where} differs by {entry.rms_diff:.2g} rms (deviation {entry.reference_std:.2g})"
            elif judged and entry.sure_iou is not None and entry.sure_iou < limits.iou:
                self.reason = f"{where}: mask IoU {entry.sure_iou:.4f} is below {limits.iou}"
            else:
                continue
            return
        self.passed = bool(self.comparisons)

    def summary(self) -> list[tuple[str, float, float, float | None]]:
        """(output, largest difference, the same as a share of the deviation, worst IoU) over all runs."""
        rows = []
        for output in dict.fromkeys(entry.output for entry in self.comparisons):
            own = [entry for entry in self.comparisons if entry.output == output]
            overlaps = [entry.iou for entry in own if entry.iou is not None]
            shares = [entry.max_abs_diff / max(entry.reference_std, 1e-12) for entry in own]
            rows.append(
                (output, max(entry.max_abs_diff for entry in own), max(shares), min(overlaps) if overlaps else None)
            )
        return rows


def check(
    network: Any,
    architecture: Architecture,
    graphs: Graphs,
    encoder: Path,
    decoder: Path,
    images: dict[str, FloatArray],
) -> Report:
    """Compares both graphs with the network.

    Args:
        images: name -> [1,3,side,side] float32 in [0,1].
    """
    report = Report(graphs.precision)
    encode, decode = _session(encoder), _session(decoder)
    names = [name for name, _ in graphs.encoder.outputs]
    with torch.inference_mode(), _exact_float32():
        for label, pixels in images.items():
            got = dict(zip(names, encode.run(names, {graphs.encoder.image: pixels}), strict=True))
            embeddings = _reference_embeddings(network, architecture, pixels)
            wanted = dict(zip(names, _in_order(embeddings, graphs), strict=True))
            report.comparisons += [_compare(label, name, wanted[name].numpy(), got[name]) for name in names]
            report.comparisons += _check_decoder(network, graphs, decode, label, embeddings, got)
    report.judge()
    return report


@contextlib.contextmanager
def _exact_float32() -> Iterator[None]:
    """A GPU's convolutions round to ten bits by default: the reference would be 0.5 % of its deviation off itself."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = convolutions, products


def random_image(side: int, seed: int | None = None) -> FloatArray:
    """[1,3,side,side] of noise with structure at several scales: plain noise would say little to any network."""
    generator = np.random.default_rng(seed)
    image = np.zeros((3, side, side), np.float32)
    for cells in (4, 16, 64, side):
        coarse = generator.random((3, cells, cells), np.float32)
        index = np.arange(side) * cells // side
        image += coarse[:, index][:, :, index]
    return (image / 4)[None]


def _session(graph: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # torch needs the cores in between
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def _reference_embeddings(network: Any, architecture: Architecture, pixels: FloatArray) -> Any:
    mean, std = normalisation(architecture)
    device = next(network.parameters()).device
    found = network.get_image_embeddings(((torch.from_numpy(pixels) - mean) / std).to(device))
    return [level.cpu() for level in found] if isinstance(found, Sequence) else found.cpu()


def _in_order(embeddings: Any, graphs: Graphs) -> list[Tensor]:
    """The network's levels, which run from fine to coarse, in the order of the graph's outputs."""
    if isinstance(embeddings, Tensor):
        return [embeddings]
    coarse_first = graphs.encoder.outputs[0][0] == graphs.encoder.embedding
    return [embeddings[-1], *embeddings[:-1]] if coarse_first else list(embeddings)


def _check_decoder(
    network: Any, graphs: Graphs, decode: Any, label: str, embeddings: Any, got: dict[str, FloatArray]
) -> Iterator[Comparison]:
    names = graphs.decoder
    results = []
    for case in _cases(network, graphs, embeddings):
        for multimask in (False, True):
            wanted = _reference(network, case, embeddings, multimask)
            feeds = {**got, **_feeds(case, graphs, multimask)}
            results.append((case.kind, multimask, wanted, decode.run([names.masks, names.scores], feeds)))
    # Pooled: the predicted IoU of a single mask is one number, which has no deviation of its own.
    deviations = [float(np.concatenate([wanted[part].ravel() for _, _, wanted, _ in results]).std()) for part in (0, 1)]
    for kind, multimask, wanted, given in results:
        for part, output in enumerate((names.masks, names.scores)):
            entry = _compare(label, output, wanted[part], given[part], deviations[part])
            entry.prompt, entry.multimask = kind, multimask
            if part == 0:
                entry.iou, entry.sure_iou = _worst_iou(wanted[0], given[0])
            yield entry


#: Places in the photograph (scikit-image's coffee) as shares of its sides: a spoon, the rim of a cup, the coffee in it.
_SPOON, _RIM, _COFFEE = (0.6, 0.72), (0.45, 0.1), (0.47, 0.35)
_CUP_BOX = (0.24, 0.04, 0.70, 0.56)


def _cases(network: Any, graphs: Graphs, embeddings: Any) -> Iterator[Case]:
    side = float(graphs.side)

    def at(*places: tuple[float, float]) -> Tensor:
        return torch.tensor([places]) * side

    object_, background = torch.ones(1, 1), torch.zeros(1, 1)
    nothing = torch.zeros(1, 0, 2), torch.zeros(1, 0)
    box = torch.tensor([_CUP_BOX]) * side
    yield (first := Case("point", at(_SPOON), object_))
    yield Case("two points", at(_RIM, _SPOON), torch.tensor([[1.0, 0.0]]))
    yield Case("box", *nothing, boxes=box)
    yield Case("box and point", at(_COFFEE), background, boxes=box)
    logits, _ = _reference(network, first, embeddings, multimask=False)
    mask = torch.from_numpy(logits[:1]).clip(-_MASK_CLIP, _MASK_CLIP)
    yield Case("mask and point", at(_SPOON), object_, mask=mask)
    yield Case("mask", *nothing, mask=mask)
    yield Case("three objects", torch.cat([at(_SPOON), at(_RIM), at(_COFFEE)]), torch.ones(3, 1))


def _reference(network: Any, case: Case, embeddings: Any, multimask: bool) -> tuple[FloatArray, FloatArray]:
    """([B,M,h,w], [B,M]) by the network's own forward; several prompts on one image are its "point batch"."""
    device = next(network.parameters()).device
    has_points = case.points.shape[1] > 0
    moved = [level.to(device) for level in embeddings] if isinstance(embeddings, list) else embeddings.to(device)
    answer = network(
        image_embeddings=moved,
        input_points=case.points[None].to(device) if has_points else None,
        input_labels=case.labels[None].to(device, torch.int64) if has_points else None,
        input_boxes=None if case.boxes is None else case.boxes[None].to(device),
        input_masks=None if case.mask is None else case.mask.to(device),
        multimask_output=multimask,
    )
    return answer.pred_masks[0].cpu().numpy(), answer.iou_scores[0].cpu().numpy()


def _feeds(case: Case, graphs: Graphs, multimask: bool) -> dict[str, FloatArray]:
    """The case as the graph takes it; what is not given is left to the graph's defaults."""
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


def _compare(
    image: str, output: str, wanted: FloatArray, given: FloatArray, deviation: float | None = None
) -> Comparison:
    if wanted.shape != given.shape:
        return Comparison(image, f"{output} {list(given.shape)} instead of {list(wanted.shape)}", np.inf, np.inf, 0.0)
    difference = np.abs(wanted.astype(np.float64) - given)
    return Comparison(
        image,
        output,
        max_abs_diff=float(difference.max()),
        rms_diff=float(np.sqrt((difference**2).mean())),
        reference_std=float(wanted.std()) if deviation is None else deviation,
    )


def _worst_iou(wanted: FloatArray, given: FloatArray) -> tuple[float, float | None]:
    """(of all masks, of those that the reference is sure of)."""
    if wanted.shape != given.shape:
        return 0.0, 0.0
    overlaps, sure = [], []
    for reference, ours in zip(_planes(wanted), _planes(given), strict=True):
        either = ((reference > 0) | (ours > 0)).sum()
        overlaps.append(float(((reference > 0) & (ours > 0)).sum() / either) if either else 1.0)
        inner, outer = (reference > _SURE_MARGIN).sum(), (reference > -_SURE_MARGIN).sum()
        if inner >= _SURE_AREA and inner / outer >= _SURE_SHARE:
            sure.append(overlaps[-1])
    return min(overlaps), min(sure) if sure else None


def _planes(masks: FloatArray) -> FloatArray:
    return masks.reshape(-1, *masks.shape[-2:])

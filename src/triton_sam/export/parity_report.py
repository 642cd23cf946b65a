"""The parity check's result: differences between graphs and network, their limits, and whether the check passed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.export.parity_scenes import DRAWING
from triton_sam.models.specs import Precision

FloatArray = npt.NDArray[np.float32]
#: The rounding of float32, with room for a few operations that subtract large numbers.
_ROUNDING = 16 * 2.0**-24


@dataclass(frozen=True, slots=True)
class Limits:
    """Allowed differences of a precision; all but ``iou`` are shares of the reference's standard deviation.

    Attributes:
        worst: largest difference of any number.
        typical: root mean square of the differences of one of the encoder's outputs.
        answer: the same for the decoder's outputs. (Lower precisions are judged by the IoU of masks.)
        iou: lowest IoU of masks that the reference is sure of.
    """

    worst: float
    typical: float
    answer: float
    iou: float


#: float32: a rounding is 2^-24 of a number. A sum of n products has sqrt(n) times that, and n is at most 4096 (a row of
#: global attention): 4e-6. The errors of about a hundred such steps in a row add up as their root: 4e-5. The limit of
#: the root mean square is a little more than twice that; the largest of millions of numbers is some ten times as far
#: off. float16 was measured: SAM 2 tiny on an ARM processor, 0.050 (photograph) and 0.060 (drawing) of the deviation,
#: plus a margin; x86 was not measured. Whether the masks are right is decided by their IoU.
LIMITS = {
    Precision.FP32: Limits(worst=1e-3, typical=1e-4, answer=1e-4, iou=0.999),
    Precision.FP16: Limits(worst=np.inf, typical=0.1, answer=np.inf, iou=0.99),
    Precision.INT8: Limits(worst=np.inf, typical=0.25, answer=np.inf, iou=0.98),
}
#: A mask counts as sure if moving the threshold by this many logits changes its area by less than a tenth.
_SURE_MARGIN = 1.0
_SURE_SHARE = 0.9
#: And only if it has this many low-resolution pixels: single pixels decide the IoU of a smaller one.
_SURE_AREA = 16 * 16


@dataclass(slots=True)
class Comparison:
    """One output of one run: how far it is from the reference."""

    image: str
    output: str
    max_abs_diff: float
    rms_diff: float
    reference_std: float
    reference_peak: float = 0.0
    """The largest absolute value of the reference, whose own rounding is allowed for."""
    prompt: str = ""
    multimask: bool = False
    iou: float | None = None
    """Worst mask IoU, for masks."""
    sure_iou: float | None = None
    """The same over those masks that the reference is sure of; None if there are none."""
    possible: list[list[int]] | None = None
    """For a single mask: the tokens that the reference may have chosen, for each prompt."""
    chosen: list[int] | None = None
    """For a single mask: the token whose mask the graph returned, for each prompt."""


@dataclass(slots=True)
class Report:
    """Result of a whole check; ``seed`` is that of its images and prompts."""

    precision: Precision
    comparisons: list[Comparison] = field(default_factory=list)
    seed: int = 0
    passed: bool = False
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        limits = asdict(LIMITS[self.precision])
        known = {name: limit if np.isfinite(limit) else None for name, limit in limits.items()}  # JSON has no infinity
        return asdict(self) | {"precision": self.precision.value, "limits": known}

    def judge(self) -> None:
        """Sets ``passed`` and, on failure, the first ``reason``."""
        reasons = (self._fault(entry) for entry in self.comparisons)
        self.reason = next((reason for reason in reasons if reason), "")
        self.passed = bool(self.comparisons) and not self.reason

    def _fault(self, entry: Comparison) -> str:
        """Why a comparison fails; empty if it passes."""
        limits = LIMITS[self.precision]
        where = " ".join(part for part in (entry.output, "on the", entry.image, "image", entry.prompt) if part)
        rounding = _ROUNDING * entry.reference_peak
        worst = limits.worst * entry.reference_std + rounding
        typical = (limits.answer if entry.prompt else limits.typical) * entry.reference_std + rounding
        deviation = f"(deviation {entry.reference_std:.2g})"
        wrong = _wrong_choice(entry) if self.precision is Precision.FP32 else None
        if wrong is not None:
            return f"{where}: mask {wrong[0]} was chosen, but torch chooses {' or '.join(map(str, wrong[1]))}"
        if not (np.isfinite(entry.max_abs_diff) and entry.max_abs_diff <= worst):
            return f"{where} differs by {entry.max_abs_diff:.2g} {deviation}"
        if not entry.rms_diff <= typical:
            return f"{where} differs by {entry.rms_diff:.2g} rms {deviation}"
        # In a drawing, a network trained on photographs is sure of masks that only exact arithmetic reproduces.
        judged = self.precision is Precision.FP32 or entry.image != DRAWING
        if judged and entry.sure_iou is not None and entry.sure_iou < limits.iou:
            return f"{where}: mask IoU {entry.sure_iou:.4f} is below {limits.iou}"
        return ""

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


def _wrong_choice(entry: Comparison) -> tuple[int, list[int]] | None:
    """(token, possible tokens) of the first prompt whose single mask is that of a wrong token."""
    if entry.chosen is None or entry.possible is None:
        return None
    for chosen, possible in zip(entry.chosen, entry.possible, strict=True):
        if chosen not in possible:
            return chosen, possible
    return None


def compare(
    image: str, output: str, wanted: FloatArray, given: FloatArray, deviation: float | None = None
) -> Comparison:
    """Compares two arrays; ``deviation`` replaces the standard deviation of ``wanted`` if that has few numbers."""
    if wanted.shape != given.shape:
        return Comparison(image, f"{output} {list(given.shape)} instead of {list(wanted.shape)}", np.inf, np.inf, 0.0)
    difference = np.abs(wanted.astype(np.float64) - given)
    return Comparison(
        image,
        output,
        max_abs_diff=float(difference.max()),
        rms_diff=float(np.sqrt((difference**2).mean())),
        reference_std=float(wanted.std()) if deviation is None else deviation,
        reference_peak=float(np.abs(wanted).max()),
    )


def worst_iou(wanted: FloatArray, given: FloatArray) -> tuple[float, float | None]:
    """(worst IoU of all masks, of those that the reference is sure of or None if there are none)."""
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

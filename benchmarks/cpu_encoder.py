"""How fast and how exact are the encoders rewritten for CPUs? Against the published graph, in one run and in turns."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from testkit.encoder_agreement import (
    EXACT_IOU,
    PHOTOGRAPHS,
    UNSEEN,
    Agreement,
    agreement,
    encoder_pixels,
    pictures,
)
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.engines.onnx import open_session
from triton_sam.errors import SetupError
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import CPU_ENCODER_FILE, DECODER_FILE, EIGHT_BIT_ENCODER_FILE, ENCODER_FILE, ModelSpec
from triton_sam.models.weights import WeightStore
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.settings import get_settings

_MOST_RATIO = 0.7
_LEAST_IOU = 0.98


@dataclass(frozen=True, slots=True)
class Encoders:
    """The files of one model: its encoder as published, rewritten in float32, and partly in 8 bits; its decoder."""

    published: Path
    float32: Path
    eight_bit: Path
    decoder: Path


def run_cpu_encoder(model: str, rounds: int) -> Result:
    """Sets a model up in a temporary repository, and measures its encoders."""
    spec = get_spec(model)
    result = Result("cpu-encoder", about={"model": model})
    # Not in the user's repository: it would serve the 8-bit encoder from then on.
    with tempfile.TemporaryDirectory(prefix="triton-sam-bench-") as repository:
        store = WeightStore(get_settings().home)
        name = set_up(SetupRequest(spec, store, Path(repository), cpu_encoder=True, fast_encoder=True))[0]
        folder = Path(repository) / name / "1"
        names = (ENCODER_FILE, CPU_ENCODER_FILE, EIGHT_BIT_ENCODER_FILE, DECODER_FILE)
        files = [folder / file for file in names]
        if not all(file.is_file() for file in files):
            raise SetupError(f"{model} has no encoders for CPUs: choose a ready-made model, and pip install onnx")
        result.figures += measure_cpu_encoder(Encoders(*files), spec, rounds)
    return result


def measure_cpu_encoder(encoders: Encoders, spec: ModelSpec, rounds: int) -> Iterator[Figure]:
    """The time first, then the masks of the float32 encoder as a baseline, then those of the 8-bit one.

    Args:
        rounds: runs of each encoder, in an order that is drawn anew for each round.
    """
    yield _time_ratio(encoders, spec, rounds)
    found = _agreement(encoders, encoders.float32, spec, PHOTOGRAPHS)
    detail = f"{found.best.size} prompts; {found.flipped.mean():.1%} choose another mask"
    yield Figure("mask IoU of the float32 encoder, worst", float(found.best.min()), "", None, detail, EXACT_IOU)
    found = _agreement(encoders, encoders.eight_bit, spec, PHOTOGRAPHS)
    prompts = f"{found.best.size} prompts"
    low = int((found.best < _LEAST_IOU).sum())
    flips = int(found.flipped.sum())
    detail = f"{prompts}, {low} under {_LEAST_IOU}"
    yield Figure("mask IoU, mean", float(found.best.mean()), "", None, detail, _LEAST_IOU)
    yield Figure("mask IoU, worst", float(found.best.min()), "", None, prompts)
    detail = f"a different one of the three masks; largest margin of their scores {found.margins.max():.3f}"
    yield Figure("clicks that choose another mask", flips / found.best.size * 100, "%", None, detail)
    same = found.best[~found.flipped]
    yield Figure("mask IoU where both choose alike, mean", float(same.mean()), "", None, prompts, _LEAST_IOU)
    yield Figure("mask IoU where both choose alike, worst", float(same.min()), "")
    found = _agreement(encoders, encoders.eight_bit, spec, UNSEEN)
    detail = f"{found.best.size} prompts on {len(UNSEEN)} photographs; {found.flipped.mean():.1%} choose another mask"
    name = "mask IoU on photographs not seen before, mean"
    yield Figure(name, float(found.best.mean()), "", None, detail, _LEAST_IOU)


def _agreement(encoders: Encoders, encoder: Path, spec: ModelSpec, names: Sequence[str]) -> Agreement:
    parts = [agreement(encoders.published, encoder, encoders.decoder, spec, picture) for picture in pictures(names)]
    return Agreement.joined(parts)


def _time_ratio(encoders: Encoders, spec: ModelSpec, rounds: int) -> Figure:
    """Median seconds of the 8-bit encoder over those of the published one, in one process and in turns."""
    sessions = {"published": open_session(encoders.published), "fast": open_session(encoders.eight_bit)}
    feeds = {spec.encoder.image: encoder_pixels(spec, next(pictures()))}
    seconds: dict[str, list[float]] = {name: [] for name in sessions}
    for number in range(rounds + 1):
        order = list(sessions)
        random.shuffle(order)
        for name in order:
            started = time.perf_counter()
            sessions[name].run(None, feeds)
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - started)
    pairs = [fast / published for fast, published in zip(seconds["fast"], seconds["published"], strict=True)]
    fast, published = median(seconds["fast"]), median(seconds["published"])
    detail = f"{fast:.2f} s / {published:.2f} s; pairs {min(pairs):.2f} to {max(pairs):.2f}"
    return Figure("fast encoder / plain encoder", fast / published, "x", _MOST_RATIO, detail)

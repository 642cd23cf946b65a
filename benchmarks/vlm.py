"""How much does serving a vision-language model cost? Triton against transformers alone, in one run and in turns.

Both start with the bytes of a JPEG and end with text: decoding, processor, ``generate``, detokenizing. The served
answer also goes through HTTP, and is sent token by token.
"""

from __future__ import annotations

import asyncio
import io
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
import transformers
from PIL import Image

from triton_sam.bench.figures import Figure
from triton_sam.bench.machine import machine
from triton_sam.bench.results import Result
from triton_sam.client.vlm_calls import collected, vlm_call
from triton_sam.client.vlm_client import AsyncTritonVLMClient
from triton_sam.engines.vlm.loading import choose_placement
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import checkpoint_folder
from triton_sam.repository.vlms import write_vlm
from triton_sam.serving import Ports, ServingOptions, serving
from triton_sam.settings import Settings, get_settings

#: The least served rate, as a fraction of that of transformers alone.
_LEAST_RATIO = 0.95
_QUESTION = "Describe this image in detail."
_SIZE = (1024, 768)
#: In these rounds kernels are chosen and memory is allocated.
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class VlmPlan:
    """How much to measure: rounds, new tokens of each answer, and the batch sizes."""

    rounds: int
    tokens: int
    batches: Sequence[int]


@dataclass(frozen=True, slots=True)
class BatchTiming:
    """Times of one batch: seconds until the first text of its slowest row, seconds in all, tokens of all rows."""

    first: float
    total: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens a second, of all rows together, from the question to the end."""
        return self.tokens / self.total


class TransformersModel:
    """The checkpoint in transformers, without a server."""

    def __init__(self, spec: VlmSpec, folder: Path, settings: Settings) -> None:
        placement = choose_placement(spec, folder, settings, lambda device: 2**62)
        self.about = f"{placement.dtype} on {placement.device}"
        self._processor = transformers.AutoProcessor.from_pretrained(folder)
        network = transformers.AutoModelForImageTextToText.from_pretrained(
            folder, dtype=getattr(torch, placement.dtype), use_safetensors=True
        )
        self._network = network.to(placement.device).eval()
        self._processor.tokenizer.padding_side = "left"

    def first_text(self, images: Sequence[bytes]) -> float:
        """Seconds to the first token of every row."""
        return self._generate(images, 1)[0]

    def measure(self, images: Sequence[bytes], tokens: int) -> BatchTiming:
        first = self.first_text(images)
        total, count = self._generate(images, tokens)
        return BatchTiming(first, total, count)

    def _generate(self, images: Sequence[bytes], tokens: int) -> tuple[float, int]:
        message = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        prompt = self._processor.apply_chat_template([{"role": "user", "content": message}], add_generation_prompt=True)
        started = time.perf_counter()
        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
        inputs = self._processor(images=pictures, text=[prompt] * len(images), padding=True, return_tensors="pt")
        inputs = inputs.to(self._network.device, self._network.dtype)
        with torch.inference_mode():
            out = self._network.generate(**inputs, do_sample=False, max_new_tokens=tokens)
        generated = out[:, inputs["input_ids"].shape[1] :].tolist()  # the copy waits for the GPU
        self._processor.batch_decode(generated, skip_special_tokens=True)
        spent = time.perf_counter() - started
        ends = {self._network.generation_config.pad_token_id, self._network.generation_config.eos_token_id}
        return spent, sum(token not in ends for row in generated for token in row)


async def measure_served(client: AsyncTritonVLMClient, model: str, images: Sequence[bytes], tokens: int) -> BatchTiming:
    """Sends all questions at once, each as its own stream."""
    started = time.perf_counter()

    async def one(image: bytes) -> tuple[float, int]:
        first, pieces = 0.0, []
        async for piece in client.pieces(vlm_call(model, image, _QUESTION, max_new_tokens=tokens)):
            first = first or time.perf_counter() - started
            pieces.append(piece)
        return first, collected(pieces).completion_tokens

    rows = await asyncio.gather(*(one(image) for image in images))
    return BatchTiming(max(first for first, _ in rows), time.perf_counter() - started, sum(count for _, count in rows))


def run_vlm(model: str, checkpoint: Path | None, plan: VlmPlan) -> Result:
    """Serves a model from a temporary repository, and measures it.

    Args:
        checkpoint: a folder in place of the catalogue's checkpoint.
    """
    settings = get_settings()
    spec = get_vlm(model)
    folder = checkpoint_folder(spec, str(checkpoint or ""))
    about = machine(("torch", "transformers", "numpy", "nvidia-pytriton"))
    result = Result("vlm", about={"model": spec.id}, machine=about)
    with tempfile.TemporaryDirectory() as repository:
        write_vlm(spec, Path(repository), checkpoint)
        options = ServingOptions(
            Path(repository), {}, settings, vlms={spec.name: spec}, ports=Ports(0, 0, 0, 0), with_service=False
        )
        with serving(options) as running:
            alone = TransformersModel(spec, folder, settings)
            result.figures += measure_vlm(running.urls["HTTP"], spec, alone, plan)
    return result


def measure_vlm(url: str, spec: VlmSpec, transformers_model: TransformersModel, plan: VlmPlan) -> Iterator[Figure]:
    """Rates and times to the first text, of transformers alone and served, in turns; the bar is on the rate."""
    tokens, rounds = plan.tokens, plan.rounds

    async def all_rounds(images: Sequence[bytes]) -> tuple[list[BatchTiming], list[BatchTiming]]:
        async with AsyncTritonVLMClient(url) as client:
            pairs = [
                (transformers_model.measure(images, tokens), await measure_served(client, spec.name, images, tokens))
                for _ in range(_WARM_UP_ROUNDS + rounds)
            ]
        kept = pairs[_WARM_UP_ROUNDS:]
        return [pair[0] for pair in kept], [pair[1] for pair in kept]

    for batch in plan.batches:
        alone, served = asyncio.run(all_rounds([_photograph(number) for number in range(batch)]))
        detail = f"{transformers_model.about}, {tokens} new tokens, median of {rounds} rounds in turns"
        name = f"{spec.name}, batch {batch}"
        for side, timings in (("bare transformers", alone), ("served", served)):
            yield Figure(f"{name}: {side}, first text", median(t.first for t in timings) * 1e3, "ms", None, detail)
            yield Figure(f"{name}: {side}, rate", median(t.rate for t in timings), "tokens/s", None, detail)
        ratios = [ours.rate / theirs.rate for ours, theirs in zip(served, alone, strict=True)]
        spread = f"rounds from {min(ratios):.3f} to {max(ratios):.3f}"
        yield Figure(f"{name}: rate served / bare", median(ratios), "", None, spread, _LEAST_RATIO)


def _photograph(number: int) -> bytes:
    """A JPEG of 1024 x 768 px, different for each number."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()

"""A vision-language model through Triton against the same checkpoint in bare transformers, in one run, in turns.

Both sides go the whole way, from the bytes of a JPEG to text: decoding, processor, ``generate``, detokenizing. What is
served also goes through HTTP and is sent token by token.
"""

from __future__ import annotations

import asyncio
import io
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
from triton_sam.client.vlm_calls import collected, vlm_call
from triton_sam.client.vlm_client import AsyncTritonVLMClient
from triton_sam.engines.vlm.loading import choose_placement
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.settings import Settings

#: Served at least this share of the bare rate.
BAR = 0.95
_QUESTION = "Describe this image in detail."
_SIZE = (1024, 768)
#: Kernels are chosen and memory is taken then.
_WARM_UP_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Timing:
    """Of one batch: seconds until the first text of its slowest row, seconds in all, tokens of all rows."""

    first: float
    total: float
    tokens: int

    @property
    def rate(self) -> float:
        """Tokens a second, of all rows together, from the question to the end."""
        return self.tokens / self.total


class BareModel:
    """The checkpoint in transformers, with nothing of ours around it."""

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

    def measure(self, images: Sequence[bytes], tokens: int) -> Timing:
        first = self.first_text(images)
        total, count = self._generate(images, tokens)
        return Timing(first, total, count)

    def _generate(self, images: Sequence[bytes], tokens: int) -> tuple[float, int]:
        message = [{"type": "image"}, {"type": "text", "text": _QUESTION}]
        prompt = self._processor.apply_chat_template([{"role": "user", "content": message}], add_generation_prompt=True)
        started = time.perf_counter()
        pictures = [Image.open(io.BytesIO(data)).convert("RGB") for data in images]
        inputs = self._processor(images=pictures, text=[prompt] * len(images), padding=True, return_tensors="pt")
        inputs = inputs.to(self._network.device, self._network.dtype)
        with torch.inference_mode():
            out = self._network.generate(**inputs, do_sample=False, max_new_tokens=tokens)
        said = out[:, inputs["input_ids"].shape[1] :].tolist()  # the copy waits for the GPU
        self._processor.batch_decode(said, skip_special_tokens=True)
        spent = time.perf_counter() - started
        ends = {self._network.generation_config.pad_token_id, self._network.generation_config.eos_token_id}
        return spent, sum(token not in ends for row in said for token in row)


async def measure_served(client: AsyncTritonVLMClient, model: str, images: Sequence[bytes], tokens: int) -> Timing:
    """All questions at once, each a stream of its own."""
    started = time.perf_counter()

    async def one(image: bytes) -> tuple[float, int]:
        first, pieces = 0.0, []
        async for piece in client.pieces(vlm_call(model, image, _QUESTION, max_new_tokens=tokens)):
            first = first or time.perf_counter() - started
            pieces.append(piece)
        return first, collected(pieces).completion_tokens

    rows = await asyncio.gather(*(one(image) for image in images))
    return Timing(max(first for first, _ in rows), time.perf_counter() - started, sum(count for _, count in rows))


def measure_vlm(
    url: str, spec: VlmSpec, folder: Path, settings: Settings, *, rounds: int, tokens: int, batches: Sequence[int]
) -> Iterator[Figure]:
    """Rates and times to the first text, bare and served in turns; the bar is on the rate."""
    bare = BareModel(spec, folder, settings)

    async def all_rounds(images: Sequence[bytes]) -> tuple[list[Timing], list[Timing]]:
        async with AsyncTritonVLMClient(url) as client:
            pairs = [
                (bare.measure(images, tokens), await measure_served(client, spec.name, images, tokens))
                for _ in range(_WARM_UP_ROUNDS + rounds)
            ]
        kept = pairs[_WARM_UP_ROUNDS:]
        return [pair[0] for pair in kept], [pair[1] for pair in kept]

    for batch in batches:
        alone, served = asyncio.run(all_rounds([_photograph(number) for number in range(batch)]))
        detail = f"{bare.about}, {tokens} new tokens, median of {rounds} rounds in turns"
        name = f"{spec.name}, batch {batch}"
        for side, timings in (("bare transformers", alone), ("served", served)):
            yield Figure(f"{name}: {side}, first text", median(t.first for t in timings) * 1e3, "ms", None, detail)
            yield Figure(f"{name}: {side}, rate", median(t.rate for t in timings), "tokens/s", None, detail)
        ratios = [mine.rate / theirs.rate for mine, theirs in zip(served, alone, strict=True)]
        spread = f"rounds from {min(ratios):.3f} to {max(ratios):.3f}"
        yield Figure(f"{name}: rate served / bare", median(ratios), "", None, spread, BAR)


def about() -> dict[str, str]:
    """What these figures depend on."""
    return machine(("torch", "transformers", "numpy", "nvidia-pytriton"))


def _photograph(number: int) -> bytes:
    """A JPEG of 1024 x 768 that no other number has."""
    rng = np.random.default_rng(number)
    coarse = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize(_SIZE, Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()

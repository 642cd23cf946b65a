"""Image and prompt reach the network: the logits of the first token are those of transformers itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests.unit.vlm.helpers import ask, question
from triton_sam.engines.vlm.base import Question
from triton_sam.engines.vlm.generate import GeneratingEngine

pytestmark = pytest.mark.torch

#: Sums of some hundred products of float32, in another order where a batch is padded: a few of its last digits.
ROUNDING = 1e-4
#: Of different lengths, so that a batch of them is padded; Kosmos-2 takes such a text as it stands.
PROMPTS = ["<grounding>An image of", "<grounding>A", "<grounding> Question: What is it, and what for? Answer:"]


def reference(network: Any, processor: Any, asked: Question) -> torch.Tensor:
    """[V] by transformers' own classes, the question alone and unpadded."""
    text = asked.text
    if processor.chat_template:
        parts = [{"type": "image"}, {"type": "text", "text": text}]
        text = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    with torch.inference_mode():
        logits: torch.Tensor = network(**processor(images=asked.image, text=text, return_tensors="pt")).logits[0, -1]
    return logits


def first_logits(engine: GeneratingEngine, *questions: Question) -> torch.Tensor:
    """[B,V]: what the engine's network says to the prompts themselves, all in one batch."""
    seen: list[torch.Tensor] = []
    speaking = getattr(engine._network, "text_model", engine._network)  # Kosmos-2 leaves generating to a part of it
    hook = speaking.register_forward_hook(lambda _, __, output: seen.append(output.logits[:, -1].clone()))
    try:
        ask(engine, *questions)
    finally:
        hook.remove()
    return seen[0]


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """In shares of what logits vary by."""
    return float((one - other).abs().max() / one.std())


@pytest.mark.parametrize("family", ["llava", "kosmos2"])
def test_image_and_prompt_reach_the_network(family: str, request: pytest.FixtureRequest) -> None:
    engine: GeneratingEngine = request.getfixturevalue(family)
    folder: Path = request.getfixturevalue(f"{family}_folder")
    asked = [question(text, number, max_new_tokens=1) for number, text in enumerate(PROMPTS)]
    asked.append(question(PROMPTS[0], number=1, max_new_tokens=1))
    network = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    processor = AutoProcessor.from_pretrained(folder)
    wanted = [reference(network, processor, one) for one in asked]
    for given, logits in zip(first_logits(engine, *asked), wanted, strict=True):
        assert difference(logits, given) < ROUNDING
    # The same would hold of a network that sees neither, so both have to matter by far more than rounding does.
    assert difference(wanted[0], wanted[3]) > 20 * ROUNDING, "the image changes nothing"
    assert difference(wanted[1], wanted[3]) > 20 * ROUNDING, "the prompt changes nothing"

"""How often the model is right on scenes that it has not seen: ``python -m training.shapes.evaluate MODEL``."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from training.shapes.scenes import Question, Scene, ask, draw, make_scene

#: Not the one of the training.
SEED = 20_261_115
_BATCH = 50
_LONGEST = 80


def held_out(scenes: int, seed: int = SEED) -> list[tuple[Scene, Question]]:
    """One question about each of ``scenes`` scenes."""
    rng = random.Random(seed)
    made = []
    for _ in range(scenes):
        scene = make_scene(rng)
        made.append((scene, ask(scene, rng)))
    return made


def evaluate(model: Path, scenes: int) -> dict[str, Any]:
    """The share of answers that are right to the letter, in all and by kind of question; as users would ask them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = LlavaForConditionalGeneration.from_pretrained(model, dtype=torch.float32).to(device).eval()
    processor = LlavaProcessor.from_pretrained(model)
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    wrong = []
    cases = held_out(scenes)
    for begin in range(0, len(cases), _BATCH):
        part = cases[begin : begin + _BATCH]
        for (scene, question), said in zip(part, answers(network, processor, part), strict=True):
            asked[question.kind] += 1
            right[question.kind] += said == question.answer
            if said != question.answer:
                wrong.append({"seed": scene.seed, "asked": question.text, "said": said, "right": question.answer})
    return {
        "scenes": scenes,
        "accuracy": right.total() / asked.total(),
        "by_kind": {kind: f"{right[kind]} of {asked[kind]}" for kind in sorted(asked)},
        "wrong": wrong[:10],
    }


def answers(
    network: LlavaForConditionalGeneration, processor: LlavaProcessor, cases: list[tuple[Scene, Question]]
) -> list[str]:
    """Greedy answers, through the chat template and the processor."""
    prompts = [
        processor.apply_chat_template(
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question.text}]}],
            add_generation_prompt=True,
        )
        for _, question in cases
    ]
    inputs = processor(images=[draw(scene) for scene, _ in cases], text=prompts, padding=True, return_tensors="pt")
    inputs = inputs.to(network.device)
    with torch.inference_mode():
        tokens = network.generate(**inputs, max_new_tokens=_LONGEST, do_sample=False)
    said = tokens[:, inputs["input_ids"].shape[1] :]
    return [text.strip() for text in processor.batch_decode(said, skip_special_tokens=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--scenes", type=int, default=200)
    options = parser.parse_args()
    sys.stdout.write(json.dumps(evaluate(options.model, options.scenes), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

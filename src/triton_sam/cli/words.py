"""What commands with words share: their options, and what is shown and written of the instances."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from triton_sam.cli.image_options import ImageSource, numbers
from triton_sam.client.concepts import ConceptSegmentation, concept_request
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.everything.labels import label_png
from triton_sam.core.image_choice import picture_for_model
from triton_sam.core.instance_overlay import instance_labels, instance_overlay
from triton_sam.errors import InvalidInput

TextOption = Annotated[
    list[str] | None,
    typer.Option(metavar="WORDS", help="Find everything that these words name, instead of prompts. Repeatable."),
]
ExemplarOption = Annotated[
    list[str] | None,
    typer.Option(help="x0,y0,x1,y1 around an example of what is meant; with ,0 of what is not. Repeatable."),
]
ScoreThresholdOption = Annotated[
    float | None, typer.Option(min=0, max=1, help="Of words: what has a higher score is found; default 0.5.")
]
MaxInstancesOption = Annotated[
    int | None, typer.Option(min=1, help="Of words: the most instances of each; default: as the server allows.")
]
AnyModelOption = Annotated[
    str | None,
    typer.Option(help="Name of the segmenter on the server; default sam2, and for words one that takes text."),
]
_USAGE = "--exemplar x0,y0,x1,y1[,0]"


@dataclass(frozen=True, slots=True)
class WordsPrompt:
    """Words and examples of a command.

    Attributes:
        exemplars: ([x0, y0, x1, y1] in original pixels, 1 or 0).
    """

    texts: Sequence[str]
    exemplars: Sequence[tuple[list[float], int]] = ()
    score_threshold: float | None = None
    max_instances: int | None = None

    @classmethod
    def of(
        cls, texts: Sequence[str], exemplars: Sequence[str], score_threshold: float | None, max_instances: int | None
    ) -> WordsPrompt | None:
        """From the options; None if they ask for nothing, InvalidInput if they are wrong."""
        if not texts and not exemplars:
            if score_threshold is not None or max_instances is not None:
                raise InvalidInput("--score-threshold and --max-instances are for words: add --text or --exemplar")
            return None
        prompt = cls(texts, [_exemplar(text) for text in exemplars], score_threshold, max_instances)
        concept_request(**prompt.fields)
        return prompt

    @property
    def fields(self) -> dict[str, Any]:
        """As ``SAM2TritonClient.segment`` takes them."""
        return {
            "text": (self.texts[0] if len(self.texts) == 1 else list(self.texts)) if self.texts else None,
            "exemplars": [corners for corners, _ in self.exemplars] or None,
            "exemplar_labels": [label for _, label in self.exemplars] or None,
            "score_threshold": self.score_threshold,
            "max_instances": self.max_instances,
        }


def find_words(client: SAM2TritonClient, image: ImageSource, prompt: WordsPrompt, clean: int) -> ConceptSegmentation:
    """Sends the image and one request for all words."""
    image.send_with(client)
    found: ConceptSegmentation = client.segment(**prompt.fields, clean=clean)
    return found


def write_instances(answer: ConceptSegmentation, image: ImageSource, prompt: WordsPrompt, target: Path) -> None:
    """Writes the result as JSON, a mask, a label image or an overlay, which the name of ``target`` decides."""
    found, stem = answer.masks, target.stem.lower()
    if target.suffix.lower() == ".json":
        rows = zip(found.scores.tolist(), answer.boxes.tolist(), answer.concept_indices.tolist(), strict=True)
        entries = [
            {"score": score, "box": box, "concept": concept, "rle": found.rle(index)}
            for index, (score, box, concept) in enumerate(rows)
        ]
        result = {key: value for key, value in answer.result.items() if key not in ("mask", "masks")}
        target.write_text(json.dumps({**result, "masks": entries}, indent=2, ensure_ascii=False) + "\n", "utf-8")
    elif stem.startswith("mask"):
        Image.fromarray(found.masks.any(axis=0)).convert("L").save(target)
    elif stem.startswith("label"):
        target.write_bytes(label_png(instance_labels(found.masks, found.masks.shape[2], found.masks.shape[1])))
    else:
        seen = picture_for_model(image.path, image.choice)
        instance_overlay(seen, found.masks, answer.boxes, found.scores, prompt.exemplars).save(target)


def told(answer: ConceptSegmentation) -> list[str]:
    """A line for each concept; instances are numbered from 1 on, as in overlays and label images."""
    lines, first = [], 1
    for concept in answer.concepts:
        last = first + concept.returned - 1
        scores = answer.scores[first - 1 : last].tolist()
        if not scores:
            what = "nothing" if not concept.found else f"{concept.found} found, none returned"
        elif len(scores) == 1:
            what = f"{concept.found} found, number {first}, score {scores[0]:.2f}"
        else:
            what = f"{concept.found} found, numbers {first} to {last}, scores {scores[0]:.2f} to {scores[-1]:.2f}"
        lines.append(f"{concept.name}: {what}; presence {concept.presence:.2f}")
        first = last + 1
    return lines


def _exemplar(text: str) -> tuple[list[float], int]:
    values = numbers(text, (4, 5), _USAGE)
    label = values[4] if len(values) > 4 else 1.0
    if label not in (0, 1):
        raise InvalidInput(f"{text!r} is not a {_USAGE}: its last number is 1 (like this) or 0 (not this)")
    return values[:4], int(label)

"""``triton-sam segment``: masks of an image file from a running server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from triton_sam.cli.image_options import (
    ChannelOption,
    ImageArgument,
    ImageSource,
    PageOption,
    WindowOption,
    check_targets,
    numbers,
)
from triton_sam.cli.server_options import TokenOption, UrlOption
from triton_sam.cli.words import (
    AnyModelOption,
    ExemplarOption,
    MaxInstancesOption,
    ScoreThresholdOption,
    TextOption,
    WordsPrompt,
    find_words,
    told,
    write_instances,
)
from triton_sam.client.sync_client import SAM2TritonClient, Segmentation
from triton_sam.client.text_models import model_for_text
from triton_sam.console import out
from triton_sam.core.image_choice import picture_for_model
from triton_sam.core.masks import overlay
from triton_sam.errors import InvalidInput

_USUAL = "sam2"


# Many parameters: each is an option of the command line.
def segment(
    image: ImageArgument,
    point: Annotated[
        list[str] | None, typer.Option(help="x,y or x,y,label (1 object, 0 background); repeatable.")
    ] = None,
    box: Annotated[list[str] | None, typer.Option(help="x0,y0,x1,y1; several boxes are several objects.")] = None,
    text: TextOption = None,
    exemplar: ExemplarOption = None,
    score_threshold: ScoreThresholdOption = None,
    max_instances: MaxInstancesOption = None,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            help="*.json: the result; mask*.png: the mask; label*.png: of words, the number of each instance; other "
            ".png: an overlay. Repeatable.",
        ),
    ] = None,
    page: PageOption = None,
    channel: ChannelOption = None,
    window: WindowOption = None,
    clean: Annotated[int, typer.Option(help="Fill holes and drop islands with fewer pixels than this.", min=0)] = 0,
    model: AnyModelOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Segment an image on a running server (Triton, or the service): at clicks, or all that words and examples name."""
    targets = output or [Path("overlay.png")]
    check_targets(targets)
    words = WordsPrompt.of(text or [], exemplar or [], score_threshold, max_instances)
    if words is not None and (point or box):
        raise InvalidInput("--point and --box cannot be combined with --text or --exemplar: give two commands")
    source = ImageSource.of(image, page, channel, window)
    written = ", ".join(map(str, targets))
    if words is None:
        prompt = parse_prompt(point or [], box or [])
        with SAM2TritonClient(url, model or _USUAL, token=token) as client:
            answer = ask_for_masks(client, source, prompt, clean)
        for target in targets:
            write_masks(answer, source, prompt, target)
        scores = ", ".join(f"{score:.3f}" for score in answer.masks.scores)
        spent = answer.timings_ms.get("total", 0.0)
        out.print(f"{len(answer.masks)} mask(s), score {scores}, {spent:.0f} ms on the server: {written}")
        return
    with SAM2TritonClient(url, model or model_for_text(url, token), token=token) as client:
        found = find_words(client, source, words, clean)
    for target in targets:
        write_instances(found, source, words, target)
    for line in told(found):
        out.print(line)
    out.print(f"{len(found)} instance(s), {found.timings_ms.get('total', 0.0):.0f} ms on the server: {written}")


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """Points and boxes in original pixels."""

    points: Sequence[tuple[float, float, int]]
    """(x, y, label); label 1 is object, 0 background."""
    boxes: Sequence[list[float]]
    """[x0, y0, x1, y1]; several boxes are several objects."""


def parse_prompt(points: Sequence[str], boxes: Sequence[str]) -> FilePrompt:
    """The prompt of the options ``--point`` and ``--box``; InvalidInput if they are wrong or ambiguous."""
    prompt = FilePrompt([_point(text) for text in points], [numbers(text, (4,), "--box x0,y0,x1,y1") for text in boxes])
    if len(prompt.boxes) > 1 and prompt.points:
        raise InvalidInput("several boxes with points are ambiguous: give one box with points, or only boxes")
    if not prompt.points and not prompt.boxes:
        raise InvalidInput("there is nothing to segment: give a --point x,y, a --box x0,y0,x1,y1 or a --text")
    return prompt


def ask_for_masks(client: SAM2TritonClient, image: ImageSource, prompt: FilePrompt, clean: int = 0) -> Segmentation:
    """Sends the image and one request for the whole prompt; ``clean`` as in ``SAM2TritonClient.segment``."""
    image.send_with(client)
    if len(prompt.boxes) > 1:
        return client.segment(objects=[{"box": corners} for corners in prompt.boxes], clean=clean)
    coords = [[x, y] for x, y, _ in prompt.points] or None
    labels = [label for _, _, label in prompt.points] or None
    return client.segment(coords, labels, prompt.boxes[0] if prompt.boxes else None, clean=clean)


def write_masks(answer: Segmentation, image: ImageSource, prompt: FilePrompt, target: Path) -> None:
    """Writes the result as JSON, the mask or an overlay, which the name of ``target`` decides."""
    found = answer.masks
    if target.suffix.lower() == ".json":
        entries = [{"score": float(score), "rle": found.rle(index)} for index, score in enumerate(found.scores)]
        result = {key: value for key, value in answer.result.items() if key not in ("mask", "masks")}
        target.write_text(json.dumps({**result, "masks": entries}, indent=2) + "\n")
    elif target.stem.lower().startswith("mask"):
        Image.fromarray(found.masks.any(axis=0)).convert("L").save(target)
    else:
        seen = picture_for_model(image.path, image.choice)
        overlay(seen, found.masks, prompt.points).save(target)


def _point(text: str) -> tuple[float, float, int]:
    values = numbers(text, (2, 3), "--point x,y[,label]")
    label = values[2] if len(values) > 2 else 1.0
    if label not in (0, 1):
        raise InvalidInput(f"{text!r} is not a --point x,y[,label]: a label is 1 (object) or 0 (background)")
    return values[0], values[1], int(label)

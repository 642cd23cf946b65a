"""``triton-sam segment``: masks of an image file from a running server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from triton_sam.cli.server_options import TokenOption, UrlOption
from triton_sam.client.sync_client import SAM2TritonClient, Segmentation
from triton_sam.console import out
from triton_sam.core.image_choice import ImageChoice, picture_for_model
from triton_sam.core.masks import overlay
from triton_sam.errors import InvalidInput


# Many parameters: each is an option of the command line.
def segment(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    point: Annotated[
        list[str] | None, typer.Option(help="x,y or x,y,label (1 object, 0 background); repeatable.")
    ] = None,
    box: Annotated[list[str] | None, typer.Option(help="x0,y0,x1,y1; several boxes are several objects.")] = None,
    output: Annotated[
        list[Path] | None,
        typer.Option("--out", help="*.json: the result; mask*.png: the mask; other .png: an overlay. Repeatable."),
    ] = None,
    page: Annotated[int | None, typer.Option(help="Page of a TIFF with several, from 0 on.", min=0)] = None,
    channel: Annotated[
        int | None, typer.Option(help="Channel of an image with several, from 0 on, shown as grey.", min=0)
    ] = None,
    window: Annotated[
        str | None, typer.Option(help="LOW,HIGH in the image's own values: LOW becomes black and HIGH white.")
    ] = None,
    clean: Annotated[int, typer.Option(help="Fill holes and drop islands with fewer pixels than this.", min=0)] = 0,
    model: Annotated[str, typer.Option(help="Name of the segmenter on the server.")] = "sam2",
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Segment an image on a running server: Triton, or the service."""
    targets = output or [Path("overlay.png")]
    _check_targets(targets)
    prompt = parse_prompt(point or [], box or [])
    source = ImageSource(image.expanduser(), ImageChoice(page, channel, _window(window)))
    with SAM2TritonClient(url, model, token=token) as client:
        answer = ask_for_masks(client, source, prompt, clean)
    for target in targets:
        write_masks(answer, source, prompt, target)
    scores = ", ".join(f"{score:.3f}" for score in answer.masks.scores)
    spent = answer.timings_ms.get("total", 0.0)
    written = ", ".join(map(str, targets))
    out.print(f"{len(answer.masks)} mask(s), score {scores}, {spent:.0f} ms on the server: {written}")


@dataclass(frozen=True, slots=True)
class ImageSource:
    """An image file, and what of it is meant."""

    path: Path
    choice: ImageChoice


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """Points and boxes in original pixels."""

    points: Sequence[tuple[float, float, int]]
    """(x, y, label); label 1 is object, 0 background."""
    boxes: Sequence[list[float]]
    """[x0, y0, x1, y1]; several boxes are several objects."""


def parse_prompt(points: Sequence[str], boxes: Sequence[str]) -> FilePrompt:
    """The prompt of the options ``--point`` and ``--box``; InvalidInput if they are wrong or ambiguous."""
    prompt = FilePrompt(
        [_point(text) for text in points], [_numbers(text, (4,), "--box x0,y0,x1,y1") for text in boxes]
    )
    if len(prompt.boxes) > 1 and prompt.points:
        raise InvalidInput("several boxes with points are ambiguous: give one box with points, or only boxes")
    if not prompt.points and not prompt.boxes:
        raise InvalidInput("there is nothing to segment: give a --point x,y or a --box x0,y0,x1,y1")
    return prompt


def ask_for_masks(client: SAM2TritonClient, image: ImageSource, prompt: FilePrompt, clean: int = 0) -> Segmentation:
    """Sends the image and one request for the whole prompt; ``clean`` as in ``SAM2TritonClient.segment``."""
    choice = image.choice
    client.set_image(image.path, page=choice.page, channel=choice.channel, window=choice.window)
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


def _check_targets(targets: Sequence[Path]) -> None:
    """InvalidInput if an output cannot be written, before the server is asked."""
    for target in targets:
        if target.suffix.lower() not in (".png", ".json"):
            raise InvalidInput(f"{target} is neither a .png nor a .json file: choose one of these suffixes")
        if not target.resolve().parent.is_dir():
            raise InvalidInput(f"the folder of {target} does not exist: create it first")


def _window(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    low, high = _numbers(text, (2,), "--window LOW,HIGH")
    return low, high


def _point(text: str) -> tuple[float, float, int]:
    values = _numbers(text, (2, 3), "--point x,y[,label]")
    label = values[2] if len(values) > 2 else 1.0
    if label not in (0, 1):
        raise InvalidInput(f"{text!r} is not a --point x,y[,label]: a label is 1 (object) or 0 (background)")
    return values[0], values[1], int(label)


def _numbers(text: str, counts: tuple[int, ...], usage: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) not in counts:
        raise InvalidInput(f"{text!r} is not a {usage}")
    return values

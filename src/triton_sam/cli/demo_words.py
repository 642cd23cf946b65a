"""``triton-sam demo --text``: words and an example, asked of a drawn scene on a toy model that needs no download."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from triton_sam.client.concepts import ConceptSegmentation
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.core.instance_overlay import instance_overlay
from triton_sam.errors import SetupError
from triton_sam.files import whole_file

WORDS_DEMO_MODEL = "sam3:shapes"
TOY_NOTICE = (
    "sam3:shapes is a toy: it knows shapes, colours, sizes and textures, and nothing else. "
    "What it finds in a photograph means nothing; `triton-sam models` lists the real ones."
)

SIDE = 504
_OVERSAMPLING = 3
_GROUND = (232, 234, 228)
_RED, _BLUE, _GREEN, _YELLOW, _PURPLE = (
    (208, 44, 44),
    (44, 92, 206),
    (48, 152, 70),
    (240, 200, 52),
    (136, 66, 164),
)
#: Shape, colour, and x, y, radius in pixels of the picture.
SCENE = (
    ("circle", _RED, 92, 96, 62),
    ("circle", _RED, 410, 380, 58),
    ("circle", _RED, 250, 62, 26),
    ("circle", _BLUE, 216, 300, 60),
    ("square", _BLUE, 388, 92, 66),
    ("square", _BLUE, 66, 302, 27),
    ("star", _YELLOW, 262, 180, 62),
    ("triangle", _PURPLE, 96, 424, 64),
    ("triangle", _PURPLE, 440, 230, 60),
    ("star", _GREEN, 268, 424, 58),
)
#: An example: the first triangle.
_EXAMPLE = [30.0, 356.0, 162.0, 466.0]
_TILE, _CAPTION, _COLUMNS = 336, 26, 3


@dataclass(frozen=True, slots=True)
class WordsQuestion:
    """What is asked: a text or an example."""

    caption: str
    prompt: Mapping[str, Any]
    examples: Sequence[tuple[Sequence[float], int]] = ()


QUESTIONS = (
    WordsQuestion("red circle", {"text": "red circle"}),
    WordsQuestion("star", {"text": "star"}),
    WordsQuestion("small blue square", {"text": "small blue square"}),
    WordsQuestion("like the box", {"exemplars": [_EXAMPLE]}, [(_EXAMPLE, 1)]),
    WordsQuestion("everything blue", {"text": "all blue shapes"}),
    WordsQuestion("white heart", {"text": "white heart"}),
)


@dataclass(frozen=True, slots=True)
class WordsDemoResult:
    """Answers and files of a demonstration; seconds of each answer, the first with the image's encoder."""

    model: str
    answers: Sequence[tuple[WordsQuestion, ConceptSegmentation, float]]
    encode_seconds: float
    scene: Path
    overlay: Path

    @property
    def text(self) -> str:
        """Lines for the terminal."""
        lines = [f"{self.model}: {self.scene.name} ({SIDE} x {SIDE}) encoded in {self.encode_seconds:.2f} s"]
        lines += [
            f"  {question.caption:20} {_told(found):36} {seconds * 1e3:4.0f} ms"
            for question, found, seconds in self.answers
        ]
        return "\n".join([*lines, f"look at {self.overlay}", TOY_NOTICE])


def draw_words_scene(side: int = SIDE) -> Image.Image:
    """Coloured shapes on a plain ground, RGB, ``side`` x ``side``."""
    scale = side * _OVERSAMPLING / SIDE
    picture = Image.new("RGB", (side * _OVERSAMPLING,) * 2, _GROUND)
    pen = ImageDraw.Draw(picture)
    for shape, colour, *place in SCENE:
        x, y, radius = (scale * value for value in place)
        if shape == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        else:
            pen.polygon(_corners(shape, x, y, radius), fill=colour)
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def run_words_demo(url: str, name: str, model: str, folder: Path) -> WordsDemoResult:
    """Asks a server for everything in ``QUESTIONS``; writes ``words.png`` and ``words-overlay.png`` into ``folder``.

    Args:
        url: of Triton; name: of the model there; model: its id.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{folder} cannot be written ({error.strerror}): give another --folder") from None
    picture = draw_words_scene()
    scene, overlay = folder / "words.png", folder / "words-overlay.png"
    picture.save(scene)
    answers = []
    with SAM2TritonClient(url, name) as client:
        started = time.perf_counter()
        client.set_image(scene)
        encoded = time.perf_counter() - started
        for question in QUESTIONS:
            started = time.perf_counter()
            found: ConceptSegmentation = client.segment(**question.prompt)
            answers.append((question, found, time.perf_counter() - started))
    with whole_file(overlay) as file:
        _sheet(picture, answers).save(file, "PNG")
    return WordsDemoResult(model, answers, encoded, scene, overlay)


def _told(found: ConceptSegmentation) -> str:
    scores = found.scores.tolist()
    if not scores:
        return "nothing found"
    return f"{len(scores)} found, score {scores[0]:.2f}" + (f" to {scores[-1]:.2f}" if len(scores) > 1 else "")


def _sheet(picture: Image.Image, answers: Sequence[tuple[WordsQuestion, ConceptSegmentation, float]]) -> Image.Image:
    """A tile with its caption for each answer."""
    rows = -(-len(answers) // _COLUMNS)
    sheet = Image.new("RGB", (_COLUMNS * _TILE, rows * (_TILE + _CAPTION)), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (question, found, _) in enumerate(answers):
        x, y = place % _COLUMNS * _TILE, place // _COLUMNS * (_TILE + _CAPTION)
        drawn = instance_overlay(picture, found.masks.masks, found.boxes, found.scores, question.examples)
        sheet.paste(drawn.resize((_TILE, _TILE), Image.Resampling.LANCZOS), (x, y + _CAPTION))
        pen.text((x + 6, y + 7), f"{question.caption}: {_told(found)}", fill="black")
    return sheet


def _corners(shape: str, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """The corners of a polygon around (x, y), alternately on two radii; the first is at the top, but a square's."""
    count, inner, turn = {"square": (4, 1.0, 0.5), "triangle": (3, 1.0, 0.0), "star": (10, 0.4, 0.0)}[shape]
    corners = []
    for index in range(count):
        far = radius * (inner if index % 2 else 1.0)
        angle = 2 * math.pi * (index + turn) / count - math.pi / 2
        corners.append((x + far * math.cos(angle), y + far * math.sin(angle)))
    return corners

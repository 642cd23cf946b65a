"""``triton-sam demo --vlm``: questions about a drawn scene to a toy model that needs no download."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw

from triton_sam.client.vlm_client import TritonVLMClient

VLM_DEMO_MODEL = "vlm:shapes"
TOY_NOTICE = (
    "vlm:shapes is a toy: it knows seven colours, four shapes and nine places, and nothing else. "
    "What it says about a photograph means nothing; `triton-sam models` lists the real ones."
)

_SIDE = 384
_OVERSAMPLING = 3
_GROUND = (240, 240, 236)
#: Shape, colour as the model has learnt it, and cell of the 3 x 3 grid, counted row by row from the top left.
_SCENE = (
    ("circle", (214, 40, 40), 0),
    ("star", (245, 205, 50), 2),
    ("square", (40, 90, 210), 4),
    ("circle", (44, 160, 60), 6),
    ("triangle", (140, 60, 170), 8),
)
_QUESTIONS = (
    "What colour is the star?",
    "How many circles are there?",
    "Where is the purple triangle?",
)


@dataclass(frozen=True, slots=True)
class VlmDemoAnswer:
    """One question and its answer. Seconds count from the question; the first includes the loading of the model."""

    question: str
    answer: str
    first_word_seconds: float
    seconds: float


@dataclass(frozen=True, slots=True)
class VlmDemoResult:
    """Answers and files of a demonstration."""

    picture: Path
    answers_file: Path
    answers: tuple[VlmDemoAnswer, ...]

    @property
    def text(self) -> str:
        """The answers for the terminal and for the file, without a final line break."""
        lines = [f"{self.picture.name}, asked over the network:"]
        for number, answer in enumerate(self.answers):
            spent = f"first word after {answer.first_word_seconds:.2f} s"
            loading = "; a model loads with its first question" if number == 0 else ""
            lines.append(f"  {answer.question}  {answer.answer}  ({spent}{loading})")
        return "\n".join([*lines, TOY_NOTICE])


def draw_scene(side: int = _SIDE) -> Image.Image:
    """Coloured shapes on a plain background, as in the model's training, RGB, ``side`` x ``side``."""
    full = side * _OVERSAMPLING
    picture = Image.new("RGB", (full, full), _GROUND)
    pen = ImageDraw.Draw(picture)
    cell = full / 3
    for shape, colour, number in _SCENE:
        x, y, radius = (number % 3 + 0.5) * cell, (number // 3 + 0.5) * cell, 0.36 * cell
        if shape == "circle":
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=colour)
        else:
            pen.polygon(_corners(shape, x, y, radius), fill=colour)
    return picture.resize((side, side), Image.Resampling.LANCZOS)


def run_vlm_demo(url: str, folder: Path) -> VlmDemoResult:
    """Asks a server three questions; writes ``shapes.png`` and ``shapes-answers.txt`` into ``folder``.

    Args:
        url: a server with ``vlm:shapes``, which loads at the first question in a few seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / "shapes.png"
    draw_scene().save(picture)
    with TritonVLMClient(url) as client:
        answers = tuple(_ask(client, picture, question) for question in _QUESTIONS)
    result = VlmDemoResult(picture, folder / "shapes-answers.txt", answers)
    result.answers_file.write_text(result.text + "\n")
    return result


def _ask(client: TritonVLMClient, picture: Path, question: str) -> VlmDemoAnswer:
    pieces: list[str] = []
    started = first = time.perf_counter()
    for piece in client.stream(VLM_DEMO_MODEL, picture, question):
        if not pieces:
            first = time.perf_counter()
        pieces.append(piece)
    return VlmDemoAnswer(question, "".join(pieces), first - started, time.perf_counter() - started)


def _corners(shape: str, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """The corners of a polygon around (x, y), alternately on two radii."""
    count, inner, start = {
        "square": (4, 1.0, math.pi / 4),
        "triangle": (3, 1.0, -math.pi / 2),
        "star": (10, 0.42, -math.pi / 2),
    }[shape]
    corners = []
    for index in range(count):
        far = radius * (inner if index % 2 else 1.0)
        angle = start + 2 * math.pi * index / count
        corners.append((x + far * math.cos(angle), y + far * math.sin(angle)))
    return corners

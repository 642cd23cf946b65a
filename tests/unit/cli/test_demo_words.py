"""``triton-sam demo --text``: its scene, and what is made of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.unit import concept_messages as concepts
from tests.unit.client.test_concepts import Server
from tests.unit.service.helpers import SEGMENTERS, Fake, listening
from tests.unit.service.test_concepts import REAL
from triton_sam.cli import app, demo, demo_words
from triton_sam.cli.demo_words import QUESTIONS, SCENE, SIDE, WORDS_DEMO_MODEL
from triton_sam.client.wire import Call, Outputs
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.server import host
from triton_sam.settings import Settings


class SceneServer(Server):
    """Answers with rectangles in a picture of the scene's size."""

    def infer(self, call: Call) -> Outputs:
        if call.parameters.get("about") or not concepts.asks(call):
            return super().infer(call)
        self.calls.append(call)
        return concepts.answer(call, SIDE, SIDE)


@pytest.fixture
def url() -> Iterator[str]:
    fake = Fake(segmenters={**SEGMENTERS, "sam3": REAL})
    fake.transport.answer = SceneServer().infer
    with listening(fake) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_scene() -> None:
    pixels = np.asarray(demo_words.draw_words_scene()).astype(int)
    assert pixels.shape == (SIDE, SIDE, 3)
    free = np.ones((SIDE, SIDE), np.bool_)
    y, x = np.mgrid[:SIDE, :SIDE]
    for shape, colour, left, top, radius in SCENE:
        assert tuple(pixels[top, left]) == colour, shape
        assert radius <= left <= SIDE - radius
        assert radius <= top <= SIDE - radius
        inside = (x - left) ** 2 + (y - top) ** 2 <= radius**2
        assert free[inside].all(), "things do not touch"
        free &= ~inside
    ground = np.abs(pixels - demo_words._GROUND).max(axis=2) <= 16
    assert ground[free].mean() > 0.99
    assert np.array_equal(np.asarray(demo_words.draw_words_scene(252).size), [252, 252])


def test_the_example_is_around_one_thing() -> None:
    [example] = [question for question in QUESTIONS if "exemplars" in question.prompt]
    [(x0, y0, x1, y1)] = example.prompt["exemplars"]
    pixels = np.asarray(demo_words.draw_words_scene()).astype(int)
    thing = np.abs(pixels - demo_words._GROUND).max(axis=2) > 8
    assert thing[int(y0) : int(y1), int(x0) : int(x1)].any()
    border = np.ones_like(thing)
    border[int(y0) + 2 : int(y1) - 2, int(x0) + 2 : int(x1) - 2] = False
    box = np.zeros_like(thing)
    box[int(y0) : int(y1), int(x0) : int(x1)] = True
    assert not (thing & border & box).any()


def test_answers_for_the_terminal_and_a_sheet(url: str, tmp_path: Path) -> None:
    result = demo_words.run_words_demo(url, "sam3", "sam3:shapes", tmp_path / "demo")
    assert [question for question, _, _ in result.answers] == list(QUESTIONS)
    lines = result.text.splitlines()
    assert lines[0].startswith("sam3:shapes: words.png (504 x 504) encoded in ")
    assert "  red circle           nothing found " in lines[1]
    assert "  like the box         2 found, score 0.75 to 0.62 " in lines[4]
    assert lines[-1].startswith("sam3:shapes is a toy")
    with Image.open(tmp_path / "demo" / "words-overlay.png") as sheet:
        assert sheet.size == (3 * 336, 2 * (336 + 26))
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"words.png", "words-overlay.png"}


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "demo").write_text("a file")
    with pytest.raises(SetupError, match="give another --folder"):
        demo_words.run_words_demo("here:1", "x", "y", tmp_path / "demo" / "inner")


def test_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "check_platform", lambda: None)
    settings = Settings(home=tmp_path)
    assert demo.choose_models(settings, vlm=False, text=True) == [WORDS_DEMO_MODEL]
    assert demo.choose_models(settings, vlm=True, text=True)[0] == WORDS_DEMO_MODEL
    done = CliRunner().invoke(app.app, ["demo", "--text", "--video"])
    assert isinstance(done.exception, InvalidInput)
    assert "give one of them" in str(done.exception)

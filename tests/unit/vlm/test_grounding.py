"""Where the models say something is: boxes and points in the original's pixels, by every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.vlm.helpers import Heard, ask
from tests.unit.vlm.placement import ON_CPU
from tests.vlm_checkpoints import FORCED, GROUNDED_CAPTION, forced_words
from triton_sam.engines.vlm.base import Engine, Message, Options, Question
from triton_sam.engines.vlm.generate import GeneratingEngine
from triton_sam.engines.vlm.loading import load_engine
from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_specs import Task
from triton_sam.models.vlm_weights import checkpoint_folder

pytestmark = pytest.mark.torch

SIDE = 56
PATCHES = st.integers(0, 1023)


def asked(text: str, task: Task, image: Image.Image, *more: str) -> Question:
    turns = tuple(Message("assistant" if at % 2 else "user", said) for at, said in enumerate((text, *more)))
    return Question(image, str(id(image)), turns, Options(200), task=task)


def regions(engine: Engine, text: str, task: Task, image: Image.Image) -> list[dict[str, Any]]:
    (heard,) = ask(engine, asked(text, task, image))
    assert heard.ending is not None
    assert heard.ending.regions is not None
    return [dict(region) for region in heard.ending.regions]


def blank(width: int, height: int) -> Image.Image:
    return Image.new("RGB", (width, height), (250, 250, 250))


def painted(width: int, height: int, **boxes: tuple[int, int, int, int]) -> Image.Image:
    """Colour -> x0, y0, x1, y1 of a rectangle."""
    image = blank(width, height)
    for colour, box in boxes.items():
        image.paste({"red": "#f00", "green": "#0f0", "blue": "#00f"}[colour], box)
    return image


# -- Kosmos-2 ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> GeneratingEngine:
    from tests.vlm_checkpoints import make_kosmos2

    folder = make_kosmos2(tmp_path_factory.mktemp("forced"), forced=FORCED)
    engine = load_engine(get_vlm("vlm:kosmos2"), folder, ON_CPU, 4)
    assert isinstance(engine, GeneratingEngine)
    return engine


def test_phrases_of_an_answer_are_regions(forced: GeneratingEngine) -> None:
    image = blank(320, 128)
    (heard,) = ask(forced, asked("Where is the ball?", Task.GROUND, image))
    assert heard.text == "a red ball by a dog."
    assert heard.ending is not None
    assert heard.ending.regions == [
        {"label": "a red ball", "box": [125.0, 6.0, 315.0, 106.0]},
        {"label": "a dog", "box": [55.0, 2.0, 155.0, 114.0]},
    ]
    assert [entity["phrase"] for entity in heard.ending.entities or ()] == ["a red ball", "a dog"]


def test_an_object_is_found_several_times(forced: GeneratingEngine) -> None:
    """Boxes of the phrase in the prompt: patches 0 to 231 and 528 to 1023 of 32 a row."""
    assert regions(forced, "the cup", Task.DETECT, blank(320, 128)) == [
        {"label": "the cup", "box": [5.0, 2.0, 75.0, 30.0]},
        {"label": "the cup", "box": [165.0, 66.0, 315.0, 126.0]},
    ]


def test_a_question_alone_has_no_regions(forced: GeneratingEngine) -> None:
    (heard,) = ask(forced, asked("Where is the ball?", Task.ANSWER, blank(64, 64)))
    assert heard.ending is not None
    assert heard.ending.regions is None
    assert heard.ending.entities


@pytest.mark.parametrize(
    ("text", "task", "more", "words"),
    [
        ("a <phrase>cup</phrase>", Task.DETECT, (), "the name of an object has no tags"),
        ("cup", Task.DETECT, ("yes", "cup"), "one question at a time"),
        ("cup", Task.GROUND, ("yes", "cup"), "one question at a time"),
    ],
)
def test_refusals(forced: GeneratingEngine, text: str, task: Task, more: tuple[str, ...], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        forced.prepare(asked(text, task, blank(8, 8), *more))


@given(st.lists(st.tuples(PATCHES, PATCHES), min_size=1, max_size=4), st.integers(40, 900), st.integers(40, 900))
def test_boxes_that_are_said_arrive_to_the_pixel(
    forced: GeneratingEngine, boxes: list[tuple[int, int]], width: int, height: int
) -> None:
    """The tokens of any boxes -> regions, compared with transformers' own reading of the text."""
    adapter = forced._adapter
    tags = "</delimiter_of_multi_objects/>".join(f"<patch_index_{a:04d}><patch_index_{b:04d}>" for a, b in boxes)
    said = f"<phrase> it</phrase><object>{tags}</object>."
    tokens = adapter._processor.tokenizer(said, add_special_tokens=False)["input_ids"]
    found = adapter.regions(asked("What?", Task.GROUND, blank(width, height)), tokens)
    _, [(phrase, _, expected)] = adapter._processor.post_process_generation(said)
    assert phrase == "it"
    pixels = np.array(expected)[:, [0, 1, 2, 3]] * [width, height, width, height]
    pixels = np.concatenate([np.sort(pixels[:, 0::2]), np.sort(pixels[:, 1::2])], axis=1)[:, [0, 2, 1, 3]]
    pixels = pixels[(pixels[:, 0] < pixels[:, 2]) & (pixels[:, 1] < pixels[:, 3])]
    assert all(region["label"] == "it" for region in found)
    np.testing.assert_allclose(np.array([region["box"] for region in found]).reshape(-1, 4), pixels, atol=0.01)


def test_words_can_be_forced(forced: GeneratingEngine) -> None:
    """The helper itself: another sentence, another answer."""
    before = forced._network.generation_config.sequence_bias
    forced._network.generation_config.sequence_bias = forced_words(
        forced._adapter._processor.tokenizer, {"": GROUNDED_CAPTION.replace("0044", "0055")}
    )
    try:
        found = regions(forced, "Where?", Task.GROUND, blank(320, 128))
    finally:
        forced._network.generation_config.sequence_bias = before
    assert found[0]["box"] == [235.0, 6.0, 315.0, 106.0]


# -- moondream2 --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def moondream2(moondream2_folder: Path) -> Engine:
    return load_engine(get_vlm("vlm:moondream2"), moondream2_folder, ON_CPU, 1)


@pytest.mark.parametrize("text", ["red and blue", "Where are the red and blue?"])
@pytest.mark.parametrize("task", [Task.DETECT, Task.GROUND])
def test_boxes_of_own_code(moondream2: Engine, text: str, task: Task) -> None:
    image = painted(4 * SIDE, 2 * SIDE, red=(40, 20, 120, 60), blue=(200, 100, 224, 112))
    (heard,) = ask(moondream2, asked(text, task, image))
    assert heard.text == ""
    assert heard.ending is not None
    assert heard.ending.reason == "stop"
    assert heard.ending.completion_tokens == 2
    assert heard.ending.regions == [
        {"label": "red and blue", "box": [40.0, 20.0, 120.0, 60.0]},
        {"label": "red and blue", "box": [200.0, 100.0, 224.0, 112.0]},
    ]


def test_points_of_own_code(moondream2: Engine) -> None:
    image = painted(4 * SIDE, 2 * SIDE, green=(40, 20, 120, 60))
    assert regions(moondream2, "green", Task.POINT, image) == [{"label": "green", "point": [80.0, 40.0]}]
    assert regions(moondream2, "red", Task.POINT, image) == []


def test_the_answer_to_a_question_has_no_regions(moondream2: Engine) -> None:
    (heard,) = ask(moondream2, asked("red", Task.ANSWER, blank(60, 60)))
    assert heard.text
    assert heard.ending is not None
    assert heard.ending.regions is None


def test_a_client_that_leaves_ends_the_search(moondream2: Engine) -> None:
    """Between two objects; the engine can be used afterwards."""
    image = painted(4 * SIDE, 2 * SIDE, red=(40, 20, 120, 60))
    heard = Heard(leaves_after=0)
    ask(moondream2, asked("red and red", Task.DETECT, image), listeners=[heard])
    assert heard.ending is None
    assert len(regions(moondream2, "red and red", Task.DETECT, image)) == 2


def test_a_box_over_the_edge_is_clipped(moondream2: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"x_min": -0.1, "y_min": 0.25, "x_max": 0.5, "y_max": 1.2}
    network = moondream2._network  # type: ignore[attr-defined]
    monkeypatch.setattr(type(network), "detect", lambda self, image, name: {"objects": [said]})
    assert regions(moondream2, "it", Task.DETECT, blank(100, 40)) == [{"label": "it", "box": [0.0, 10.0, 50.0, 40.0]}]


# -- the toy -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shapes() -> Engine:
    spec = get_vlm("vlm:shapes")
    return load_engine(spec, checkpoint_folder(spec, ""), ON_CPU, 4)


@pytest.fixture(scope="module")
def scene() -> Image.Image:
    """384 x 384: a red circle at the top left, a yellow star at the top right, ..."""
    from triton_sam.cli.demo_vlm import draw_scene

    return draw_scene()


def test_the_toy_gives_the_cells_of_its_places(shapes: Engine, scene: Image.Image) -> None:
    red, middle = {"label": "red circle"}, [64.0, 64.0]
    for text in ("Where is the red circle?", "where is the red circle"):
        assert regions(shapes, text, Task.GROUND, scene) == [red | {"point": middle}]
    assert regions(shapes, "red circle", Task.DETECT, scene) == [red | {"box": [0.0, 0.0, 128.0, 128.0]}]
    assert regions(shapes, "the red circle", Task.POINT, scene) == [red | {"point": middle}]
    found = regions(shapes, "Describe this image.", Task.GROUND, scene)
    assert {"label": "blue square", "point": [192.0, 192.0]} in found
    assert len(found) == 5


def test_the_toy_sees_the_middle_of_a_wide_image(shapes: Engine, scene: Image.Image) -> None:
    """Its processor crops the centre, so the grid of places lies there."""
    wide = Image.new("RGB", (600, 384), scene.getpixel((0, 0)))  # type: ignore[arg-type]
    wide.paste(scene, (108, 0))
    assert regions(shapes, "red circle", Task.DETECT, wide) == [
        {"label": "red circle", "box": [108.0, 0.0, 236.0, 128.0]}
    ]


def test_the_toy_does_not_pass_one_thing_off_as_another(shapes: Engine, scene: Image.Image) -> None:
    assert regions(shapes, "pink car", Task.DETECT, scene) == []
    assert regions(shapes, "What colour is the star?", Task.GROUND, scene) == []

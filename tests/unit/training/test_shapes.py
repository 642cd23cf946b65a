"""The project's own vision-language model: its data are right, and it answers."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from training.shapes import data, evaluate, scenes, train
from training.shapes.network import make_processor
from training.shapes.scenes import COLOURS, Scene, Thing
from training.shapes.tokens import make_tokenizer

pytestmark = pytest.mark.torch

MODEL = Path(data.__file__).parent / "model"
TABLE = Scene((Thing("circle", "red", 0), Thing("square", "blue", 4), Thing("square", "orange", 8)), seed=3)


def questions_of(scene: Scene, count: int = 400) -> dict[str, str]:
    """Question -> answer."""
    rng = random.Random(1)
    asked = [scenes.ask(scene, rng) for _ in range(count)]
    return {question.text: question.answer for question in asked}


def test_answers_are_true() -> None:
    told = questions_of(TABLE, 4000)
    assert told["What colour is the circle?"] == told["What color is the circle?"] == "The circle is red."
    assert "What colour is the square?" not in told, "there are two"
    assert told["How many shapes are there?"] == "There are three shapes."
    assert told["How many squares are there?"] == "There are two squares."
    assert told["How many stars are there?"] == "There are no stars."
    assert told["How many red shapes are there?"] == "There is one red shape."
    assert told["Where is the orange square?"] == "The orange square is at the bottom right."
    assert told["What is in the centre?"] == "A blue square."
    assert told["What is at the bottom right?"] == "An orange square."
    assert told["What is at the left?"] == "Nothing."
    assert told["Is there an orange square?"] == "Yes, there is an orange square."
    assert told["Is there a green star?"] == "No, there is no green star."
    assert told["Describe this image."] == (
        "There is a red circle at the top left, a blue square in the centre and an orange square at the bottom right."
    )


def test_every_question_and_answer_can_be_said() -> None:
    tokenizer = make_tokenizer()
    rng = random.Random(2)
    for _ in range(1000):
        question = scenes.ask(scenes.make_scene(rng), rng)
        for text in (question.text, question.answer):
            tokens = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in tokens
            assert tokenizer.decode(tokens) == text


def test_things_are_drawn_where_and_as_they_are_said_to_be() -> None:
    rng = random.Random(3)
    for _ in range(60):
        scene = scenes.make_scene(rng)
        cells = (
            np.asarray(scenes.draw(scene), float)[:126, :126].reshape(3, 42, 3, 42, 3).swapaxes(1, 2).reshape(9, -1, 3)
        )
        for thing in scene.things:
            centre = cells[thing.cell].reshape(42, 42, 3)[16:26, 16:26].reshape(-1, 3)
            # The middle of a shape is its colour, whatever its size and angle; its tint varies a little.
            distances = {name: np.abs(centre - value).sum(1).min() for name, value in COLOURS.items()}
            assert min(distances, key=distances.__getitem__) == thing.colour
        empty = [index for index in range(9) if index not in [thing.cell for thing in scene.things]]
        assert all(cells[index].mean() > 180 for index in empty), "the ground is light"


def test_scenes_are_the_same_everywhere() -> None:
    assert np.array_equal(scenes.draw(TABLE), scenes.draw(TABLE))
    assert evaluate.held_out(3) == evaluate.held_out(3)
    assert evaluate.SEED != train.SEED


def test_training_reads_what_the_processor_makes() -> None:
    processor = make_processor(make_tokenizer())
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    inputs = processor(images=[scenes.draw(TABLE)], text=[prompt], return_tensors="pt")
    asked, _ = data.as_texts("What do you see?", "")
    assert inputs["input_ids"][0].tolist() == make_tokenizer()(asked)["input_ids"]
    pixels = torch.from_numpy(np.asarray(scenes.draw(TABLE)).transpose(2, 0, 1).copy()).float() / 127.5 - 1
    torch.testing.assert_close(inputs["pixel_values"][0], pixels, atol=1e-5, rtol=0)


def test_only_answers_count_for_the_loss() -> None:
    batch = data._make((2, 7))
    tokenizer = make_tokenizer()
    for tokens, labels in zip(
        batch.tokens.reshape(-1, data.LENGTH), batch.labels.reshape(-1, data.LENGTH), strict=True
    ):
        told = labels[labels != data.IGNORED]
        text = tokenizer.decode(tokens[tokens != tokenizer.pad_token_id])
        assert told[-1] == tokenizer.eos_token_id
        assert text.endswith(tokenizer.decode(told))
        assert "ASSISTANT" not in tokenizer.decode(told)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("scenes", "least"), [(16, 0.8), pytest.param(200, 0.95, marks=pytest.mark.part("vlm"))])
def test_the_model_is_right_on_scenes_that_it_has_not_seen(scenes: int, least: float) -> None:
    result = evaluate.evaluate(MODEL, scenes=scenes)
    assert result["accuracy"] >= least, result
    assert (MODEL / "model.safetensors").stat().st_size < 20_000_000

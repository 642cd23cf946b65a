"""The small vision-language checkpoints: transformers' own classes load them, and they say the same every time."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor

from tests import vlm_checkpoints as checkpoints

pytestmark = pytest.mark.torch

QUESTIONS = ["What is it?", "Describe the whole image in detail, please.", "Colour?", "Is there a dog or a cat here?"]
PROMPTS = ["<grounding>An image of", "An image of", "<grounding>Question: What is this? Answer:", "Question: ? Answer:"]
GREEDY = {"temperature": 0, "max_tokens": 24}
KEYS = Path(__file__).parents[1] / "data" / "moondream2_keys.json"


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def kosmos2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_kosmos2(tmp_path_factory.mktemp("kosmos2"))


@pytest.fixture(scope="module")
def grounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_kosmos2(tmp_path_factory.mktemp("grounded"), grounded=True)


@pytest.fixture(scope="module")
def moondream2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_moondream2(tmp_path_factory.mktemp("moondream2"))


def images() -> list[Image.Image]:
    """Four that differ in size, colour and texture."""
    noise = np.random.default_rng(1).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    ramp = np.broadcast_to(np.linspace(0, 255, 64, dtype=np.uint8)[None, :, None], (64, 64, 3))
    square = np.zeros((90, 90, 3), np.uint8)
    square[20:60, 30:70] = 20, 200, 90
    arrays = noise, np.full((70, 100, 3), (200, 30, 30), np.uint8), ramp.copy(), square
    return [Image.fromarray(array) for array in arrays]


def chat(processor: Any, question: str) -> str:
    parts = [{"type": "image"}, {"type": "text", "text": question}]
    text: str = processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
    return text


def load(folder: Path) -> tuple[Any, Any]:
    return AutoModelForImageTextToText.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)


def say(model: Any, processor: Any, texts: list[str], pictures: list[Image.Image], **options: Any) -> list[str]:
    """What the model says to each text, all in one batch."""
    batch = processor(text=texts, images=pictures, padding=True, return_tensors="pt")
    ids = model.generate(**batch, do_sample=False, max_new_tokens=24, **options)
    said: list[str] = processor.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return said


def one_by_one(model: Any, processor: Any, texts: list[str], pictures: list[Image.Image]) -> list[str]:
    return [say(model, processor, [text], [picture])[0] for text, picture in zip(texts, pictures, strict=True)]


@pytest.mark.parametrize("make", [checkpoints.make_llava, checkpoints.make_kosmos2, checkpoints.make_moondream2])
def test_a_seed_makes_the_same_weights_every_time(make: Any, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (
        load_file(make(tmp_path / name, seed=seed) / "model.safetensors")
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_any_text_comes_back_from_the_tokenizer(llava: Path, kosmos2: Path) -> None:
    for folder in (llava, kosmos2):
        tokenizer = AutoProcessor.from_pretrained(folder).tokenizer
        ids = tokenizer("Grüße,\n 世界 ☃")["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "Grüße,\n 世界 ☃"


def test_llava_heeds_image_and_question_and_a_padded_batch_says_the_same(llava: Path) -> None:
    model, processor = load(llava)
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    texts = [chat(processor, question) for question in QUESTIONS]
    assert texts[0] == "USER: <image>\nWhat is it? ASSISTANT:"
    alone = one_by_one(model, processor, texts, images())
    assert say(model, processor, texts, images()) == alone
    assert all(answer.isascii() and answer.isprintable() for answer in alone)
    assert len(set(one_by_one(model, processor, texts[:1] * 4, images()))) == 4
    assert len(set(one_by_one(model, processor, texts, images()[:1] * 4))) == 4


def test_kosmos2_heeds_image_and_prompt(kosmos2: Path) -> None:
    model, processor = load(kosmos2)
    assert type(model).__name__ == "Kosmos2ForConditionalGeneration"
    assert len(set(one_by_one(model, processor, PROMPTS[:1] * 4, images()))) == 4
    assert len(set(one_by_one(model, processor, PROMPTS, images()[1:2] * 4))) == 4


def test_kosmos2_says_the_same_in_a_padded_batch_without_its_cache(kosmos2: Path) -> None:
    """With the cache, transformers counts the padding among the positions of what is generated."""
    model, processor = load(kosmos2)
    alone = one_by_one(model, processor, PROMPTS, images())
    assert say(model, processor, PROMPTS, images(), use_cache=False) == alone


@pytest.mark.parametrize("prompt", [checkpoints.GROUNDED_PROMPT, "<grounding> An image of"])
def test_grounded_kosmos2_finds_its_two_things_in_every_image(grounded: Path, prompt: str) -> None:
    model, processor = load(grounded)
    for image in images():
        batch = processor(text=prompt, images=image, return_tensors="pt")
        ids = model.generate(**batch, do_sample=False, max_new_tokens=64)
        (text,) = processor.batch_decode(ids, skip_special_tokens=True)
        caption, entities = processor.post_process_generation(text)
        assert caption == "An image of a red ball by a dog."
        assert entities == [
            ("a red ball", (12, 22), [(0.390625, 0.046875, 0.984375, 0.828125)]),
            ("a dog", (26, 31), [(0.171875, 0.015625, 0.484375, 0.890625)]),
        ]


def test_grounded_kosmos2_names_nothing_unless_asked_to(grounded: Path) -> None:
    model, processor = load(grounded)
    assert say(model, processor, [checkpoints.PLAIN_PROMPT], images()[:1]) == [checkpoints.PLAIN_CAPTION]


def test_moondream2_answers_and_captions(moondream2: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(moondream2, trust_remote_code=True).eval()
    encoded = [model.encode_image(image) for image in images()]
    answers = [model.query(image, "What is it?", settings=GREEDY)["answer"] for image in encoded]
    assert len(set(answers)) == 4
    assert all(0 < len(answer) <= 24 for answer in answers)
    assert answers[0] == model.query(image=encoded[0], question="What is it?", settings=GREEDY)["answer"]
    assert answers[0] != model.query(encoded[0], "Where is it?", settings=GREEDY)["answer"]
    assert model.query(question="What is it?", settings=GREEDY)["answer"]
    captions = {model.caption(encoded[0], length, settings=GREEDY)["caption"] for length in ("short", "normal", "long")}
    assert len(captions) == 3
    with pytest.raises(ValueError, match="tiny"):
        model.caption(encoded[0], "tiny")


def test_moondream2_streams_what_it_would_say_at_once(moondream2: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(moondream2, trust_remote_code=True).eval()
    encoded, settings = model.encode_image(images()[0]), {"temperature": 0, "max_tokens": 60}
    pieces = list(model.query(encoded, "Hm?", stream=True, settings=settings)["answer"])
    assert "".join(pieces) == model.query(encoded, "Hm?", settings=settings)["answer"]
    assert all(piece.endswith(" ") for piece in pieces[:-1])


def test_moondream2_has_weights_of_the_published_names(moondream2: Path) -> None:
    """All but the region head, which only detecting and pointing need; the real one has more blocks of each kind."""
    published = json.loads(KEYS.read_text())["keys"]
    ours = load_file(moondream2 / "model.safetensors")
    assert ours.keys() <= published.keys()
    assert all(tensor.ndim == len(published[name]) for name, tensor in ours.items())


def test_the_published_names_of_moondream2_fill_its_published_file() -> None:
    """Two bytes a number, and a header that lists each tensor: the file has exactly the bytes it has on the Hub."""
    published = json.loads(KEYS.read_text())
    total = sum(math.prod(shape) for shape in published["keys"].values())
    assert total == pytest.approx(1.93e9, rel=0.01)
    assert 2 * total == pytest.approx(published["file_bytes"], rel=0.0001)
    end, header = 0, {"__metadata__": {"format": "pt"}}
    for name, shape in sorted(published["keys"].items()):
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    length = len(json.dumps(header, separators=(",", ":")))
    assert 8 + length + -length % 8 + end == published["file_bytes"]

"""Batches through generate(): compared with plain transformers calls, and each row on its own."""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

from tests import vlm_checkpoints as checkpoints
from tests.unit.vlm.helpers import Heard, ask, question
from triton_sam.engines.vlm.base import Options, Question
from triton_sam.engines.vlm.generate import GeneratingEngine, _Row, _Sampler
from triton_sam.engines.vlm.pieces import PieceMaker
from triton_sam.errors import InvalidInput

pytestmark = pytest.mark.torch

QUESTIONS = ["What is it?", "Describe the whole image in detail, please, and do not be brief.", "Hm", "Is it a dog?"]


class Reference:
    """What transformers says, one question at a time, unpadded."""

    def __init__(self, folder: Path) -> None:
        self.network = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
        self.processor = AutoProcessor.from_pretrained(folder)

    def tokens(self, image: Any, text: str, count: int) -> tuple[list[int], int]:
        """(generated tokens without the end, tokens of the prompt)."""
        inputs = self.processor(images=image, text=text, return_tensors="pt")
        with torch.inference_mode():
            whole = self.network.generate(**inputs, do_sample=False, max_new_tokens=count)[0].tolist()
        length = inputs["input_ids"].shape[1]
        end = self.processor.tokenizer.eos_token_id
        return [token for token in whole[length:] if token != end], length

    def decode(self, tokens: list[int]) -> str:
        return str(self.processor.tokenizer.decode(tokens, skip_special_tokens=True))

    def chat(self, asked: Question) -> str:
        conversation = []
        for place, message in enumerate(asked.messages):
            parts: list[dict[str, str]] = [{"type": "text", "text": message.text}]
            conversation.append({"role": message.role, "content": parts if place else [{"type": "image"}, *parts]})
        return str(self.processor.apply_chat_template(conversation, add_generation_prompt=True))


@pytest.fixture(scope="module")
def llava_says(llava_folder: Path) -> Reference:
    return Reference(llava_folder)


@pytest.fixture(scope="module")
def kosmos2_says(kosmos2_folder: Path) -> Reference:
    return Reference(kosmos2_folder)


@contextmanager
def steps(engine: GeneratingEngine) -> Iterator[list[int]]:
    """Rows of each call of the network."""
    rows: list[int] = []
    hook = engine._network.register_forward_hook(lambda *_: rows.append(1))
    yield rows
    hook.remove()


def check(heard: Heard, said: Reference, image: Any, prompt: str, count: int) -> None:
    tokens, length = said.tokens(image, prompt, count)
    text = said.decode(tokens)
    if "kosmos" in type(said.network).__name__.lower():
        text = said.processor.post_process_generation(text)[0]
    assert heard.text == text.strip()
    assert heard.ending is not None
    assert heard.ending.completion_tokens == len(tokens)
    assert heard.ending.prompt_tokens == length
    assert heard.ending.reason == ("length" if len(tokens) == count else "stop")


@pytest.mark.parametrize("text", QUESTIONS)
def test_llava_alone(text: str, llava: GeneratingEngine, llava_says: Reference) -> None:
    asked = question(text, number=len(text))
    heard = ask(llava, asked)[0]
    check(heard, llava_says, asked.image, llava_says.chat(asked), 24)
    assert len(heard.pieces) > 1 or len(heard.text) < 2


def test_llava_in_a_batch_of_different_lengths(llava: GeneratingEngine, llava_says: Reference) -> None:
    counts = [24, 3, 1, 16]
    asked = [
        question(text, number, max_new_tokens=count)
        for number, (text, count) in enumerate(zip(QUESTIONS, counts, strict=True))
    ]
    for heard, one, count in zip(ask(llava, *asked), asked, counts, strict=True):
        check(heard, llava_says, one.image, llava_says.chat(one), count)


def test_kosmos2_alone_and_in_a_batch(kosmos2: GeneratingEngine, kosmos2_says: Reference) -> None:
    prompts = [
        "<grounding>An image of",
        "<grounding> Question: What is it, and what is it for? Answer:",
        "<grounding>A",
    ]
    asked = [question(text, number, max_new_tokens=12 + number) for number, text in enumerate(prompts)]
    for heard, one in zip(ask(kosmos2, *asked), asked, strict=True):
        check(heard, kosmos2_says, one.image, one.text, one.options.max_new_tokens)
        assert ask(kosmos2, one)[0].text == heard.text


def test_a_conversation(llava: GeneratingEngine, llava_says: Reference) -> None:
    asked = question(["What is it?", "A dog.", "And its colour?"], max_new_tokens=10)
    other = question("Hm", 1, max_new_tokens=10)
    heard, _ = ask(llava, asked, other)
    assert llava_says.chat(asked).count("<image>") == 1
    check(heard, llava_says, asked.image, llava_says.chat(asked), 10)


def test_questions_of_kosmos2_get_the_words_that_it_was_trained_with(kosmos2: GeneratingEngine) -> None:
    short, long = question("What is it?"), question("<grounding> Question: What is it? Answer:")
    assert kosmos2.prepare(short).inputs["input_ids"].tolist() == kosmos2.prepare(long).inputs["input_ids"].tolist()
    with pytest.raises(InvalidInput, match="one question at a time"):
        kosmos2.prepare(question(["a", "b", "c"]))


# -- ends ------------------------------------------------------------------------------------------------------


def test_stop_words_cut_one_row_and_not_the_others(llava: GeneratingEngine) -> None:
    whole = [heard.text for heard in ask(llava, *(question(text, 5) for text in QUESTIONS))]
    stop = whole[0][5:7]
    with steps(llava) as rows:
        heard = ask(llava, question(QUESTIONS[0], 5, stop=(stop, "\x00")))[0]
    assert heard.text == whole[0][: whole[0].index(stop)].strip()
    assert heard.ending is not None
    assert heard.ending.reason == "stop"
    assert len(rows) < 24
    heard, other = ask(llava, question(QUESTIONS[0], 5, stop=(stop,)), question(QUESTIONS[1], 5))
    assert heard.text == whole[0][: whole[0].index(stop)].strip()
    assert other.text == whole[1]


@pytest.mark.parametrize("after", [0, 1, 5])
def test_nobody_listens_any_more(after: int, llava: GeneratingEngine) -> None:
    with steps(llava) as rows:
        heard = ask(llava, question(QUESTIONS[0], 5, max_new_tokens=300), listeners=[Heard(leaves_after=after)])[0]
    assert heard.ending is None
    # A token is a character here. Two more on an idle machine; on a busy one the stream's thread may come late.
    assert len(rows) <= len(heard.text) + 12


def test_a_row_that_ended_stays_ended(llava: GeneratingEngine) -> None:
    """The stream may end a row at the very moment in which the generating thread takes its next token."""
    row = _Row(llava.prepare(question("a")), Heard(leaves_after=0), llava._adapter, frozenset())
    row.send(70, "")
    assert row.done
    row.take(71)
    assert row.done


def test_one_who_leaves_and_one_who_breaks_do_no_harm(
    llava: GeneratingEngine, caplog: pytest.LogCaptureFixture
) -> None:
    alone = [ask(llava, question(text, number))[0].text for number, text in enumerate(QUESTIONS)]
    listeners = [Heard(), Heard(leaves_after=2), Heard(raises_at=1), Heard()]
    with caplog.at_level(logging.CRITICAL):
        heard = ask(llava, *(question(t, n) for n, t in enumerate(QUESTIONS)), listeners=listeners)
    assert [heard[0].text, heard[3].text] == [alone[0], alone[3]]
    assert [listener.ending is not None for listener in heard] == [True, False, False, True]
    assert len(heard[2].pieces) == 1


# -- drawing ---------------------------------------------------------------------------------------------------


def test_a_seed_says_the_same_whoever_else_is_there(llava: GeneratingEngine) -> None:
    hot = {"temperature": 1.5, "max_new_tokens": 12}
    alone = ask(llava, question("a", seed=5, **hot))[0].text
    others = [question("longer than it", 1, **hot), question("b", 2), question("c", 3, seed=9, **hot)]
    assert ask(llava, question("a", seed=5, **hot), *others)[0].text == alone
    assert ask(llava, *others, question("a", seed=5, **hot))[3].text == alone
    assert ask(llava, question("a", seed=-(2**63), **hot))[0].text


@pytest.mark.parametrize("seeds", [(1, 2, 3, 4), (None,) * 4])
def test_another_seed_draws_another_token_and_so_does_none(seeds: tuple[int | None, ...]) -> None:
    """Of ten thousand tokens of equal chance: four draws are the same once in 10^12 runs."""
    chances = torch.zeros(10**4)
    assert len({_Sampler(Options(1, temperature=1.0, seed=seed))(chances) for seed in seeds}) > 1


@pytest.mark.parametrize(
    "options",
    [{"temperature": 1e-6}, {"temperature": 2.0, "top_p": 1e-6}, {"temperature": 1e-38}, {"temperature": 1.4e-45}],
    ids=str,
)
def test_next_to_no_chance_is_none(options: dict[str, float], llava: GeneratingEngine) -> None:
    greedy = ask(llava, question("a"))[0].text
    heard, other = ask(llava, question("a", seed=1, **options), question("b", 1))
    assert heard.text == greedy
    assert other.ending is not None


def test_greedy_rows_stay_greedy_beside_drawn_ones(llava: GeneratingEngine) -> None:
    greedy = ask(llava, question("a"))[0].text
    assert ask(llava, question("b", temperature=2.0), question("a"))[1].text == greedy


# -- refusals --------------------------------------------------------------------------------------------------


def test_a_question_that_is_too_long_and_one_that_just_fits(llava: GeneratingEngine) -> None:
    with pytest.raises(InvalidInput, match=r"tokens with its image, and the model reads 1024: shorten it"):
        llava.prepare(question("x" * 1100))
    room = 1024 - llava.prepare(question("x")).length
    tight = question("x" * (room - 1), max_new_tokens=50)
    assert llava.prepare(tight).max_new_tokens == 2
    heard, other = ask(llava, tight, question("Hm", max_new_tokens=30))
    assert heard.ending is not None
    assert heard.ending.completion_tokens <= 2
    assert other.text == ask(llava, question("Hm", max_new_tokens=30))[0].text


@pytest.mark.parametrize("place", [0, 2])
def test_the_images_place_in_a_text_is_refused(place: int, llava: GeneratingEngine, kosmos2: GeneratingEngine) -> None:
    texts = ["a", "b", "c"]
    texts[place] = "look <image> here"
    with pytest.raises(InvalidInput, match="the server inserts the image token <image> itself"):
        llava.prepare(question(texts))
    for mark in ("<image>", "</image>"):
        with pytest.raises(InvalidInput, match="the server inserts the image token"):
            kosmos2.prepare(question(f"look {mark}"))


@pytest.mark.parametrize(
    "text", ["</s>", "<s>", "<pad>", "<unk>", "\x00", "<phrase>", "</object>", "<patch_index_0001>"]
)
def test_other_words_of_the_models_own_are_answered(
    text: str, llava: GeneratingEngine, kosmos2: GeneratingEngine
) -> None:
    for engine in (llava, kosmos2):
        assert ask(engine, question(f"a {text} b", max_new_tokens=2))[0].ending is not None


# -- grounding -------------------------------------------------------------------------------------------------


def test_phrases_and_boxes_of_a_caption(kosmos2: GeneratingEngine) -> None:
    """As the trained one says it, whose training takes too long for every commit."""
    asked = question(checkpoints.GROUNDED_PROMPT, 3)
    adapter: Any = kosmos2._adapter
    said = adapter._processor.tokenizer(checkpoints.GROUNDED_CAPTION, add_special_tokens=False)["input_ids"]
    maker = PieceMaker(adapter.decode, (), without_tags=adapter.without_tags)
    text = "".join([*map(maker.add, said), maker.end()])
    assert text == "a red ball by a dog."
    check_entities(adapter.entities(asked, said), text, asked.image.size)


@pytest.mark.part("vlm")
def test_phrases_and_boxes(grounded: GeneratingEngine) -> None:
    asked = question(checkpoints.GROUNDED_PROMPT, 3, max_new_tokens=200)
    heard = ask(grounded, asked)[0]
    assert heard.text == "a red ball by a dog."
    assert heard.ending is not None
    check_entities(heard.ending.entities, heard.text, asked.image.size)


def check_entities(entities: Any, text: str, size: tuple[int, int]) -> None:
    """Those of GROUNDED_CAPTION, on an image of (width, height)."""
    width, height = size
    assert [entity["phrase"] for entity in entities] == ["a red ball", "a dog"]
    for entity, (first, last) in zip(entities, [(44, 863), (5, 911)], strict=True):
        assert text[entity["start"] : entity["end"]] == entity["phrase"]
        # two of 32 x 32 patches: from the middle of one to the middle of the other where they differ
        wanted = [(first % 32 + 0.5) * width / 32, (first // 32 + 0.5) * height / 32]
        wanted += [(last % 32 + 0.5) * width / 32, (last // 32 + 0.5) * height / 32]
        assert entity["boxes"] == [pytest.approx(wanted, abs=0.51 * max(width, height) / 32)]


def test_a_phrase_of_the_question_has_no_place_in_the_answer(kosmos2: GeneratingEngine) -> None:
    tokens = kosmos2._adapter._processor.tokenizer  # type: ignore[attr-defined]
    said = tokens("<object><patch_index_0044><patch_index_0863></object> by", add_special_tokens=False)["input_ids"]
    found = kosmos2._adapter.entities(question("<grounding>Find<phrase> the ball</phrase>"), said)
    assert found is not None
    assert [(entity["phrase"], entity["start"], entity["end"]) for entity in found] == [("the ball", None, None)]


@pytest.mark.part("vlm")
def test_phrases_after_a_stop_are_no_part_of_the_answer(grounded: GeneratingEngine) -> None:
    for size in itertools.count(2, 3):
        whole = "a red ball by a dog."
        if size > len(whole):
            break
        stop = whole[size : size + 2]
        heard = ask(grounded, question(checkpoints.GROUNDED_PROMPT, 3, max_new_tokens=200, stop=(stop,)))[0]
        assert heard.ending is not None
        for entity in heard.ending.entities or ():
            assert heard.text[entity["start"] : entity["end"]] == entity["phrase"]


@pytest.mark.parametrize("size", [(20_000, 1), (1, 20_000), (5000, 40)])
def test_a_thin_image_takes_no_gigabytes(size: tuple[int, int], llava: GeneratingEngine) -> None:
    """Fitting its shorter side enlarges all of it, of which the model sees the middle: a few pixels."""
    plain = question("What is it?")
    image = Image.linear_gradient("L").rotate(30).resize(size).convert("RGB")
    processor = llava._adapter._processor
    seen: list[tuple[int, int]] = []
    enlarge = processor.image_processor.preprocess

    def watched(images: Any, *arguments: Any, **named: Any) -> Any:
        seen.append(images.size if isinstance(images, Image.Image) else images[0].size)
        return enlarge(images, *arguments, **named)

    processor.image_processor.preprocess = watched
    try:
        prepared = llava.prepare(dataclasses.replace(plain, image=image, size=(0, 0)))
    finally:
        del processor.image_processor.preprocess
    assert seen
    assert max(seen[0]) <= 64 * min(seen[0])
    assert prepared.question.size == size
    if min(size) >= 40:  # small enough to be compared with the whole image
        whole = processor(images=image, text="<image>", return_tensors="pt")["pixel_values"]
        assert torch.allclose(prepared.inputs["pixel_values"], whole, atol=0.05)  # of about 4, white minus black

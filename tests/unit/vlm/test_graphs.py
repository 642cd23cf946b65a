"""Decode steps over fixed buffers say what generate() says; all but the capture itself, which needs a GPU."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from tests.unit.vlm.helpers import Heard, ask, question
from tests.unit.vlm.placement import ON_CPU
from triton_sam.engines.vlm import loading
from triton_sam.engines.vlm.base import Message, Options, Question
from triton_sam.engines.vlm.generate import GeneratingEngine
from triton_sam.engines.vlm.graphs import DecodeSteps, StepDecoder, can_step
from triton_sam.engines.vlm.loading import choose_placement, load_engine
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.settings import Settings

pytestmark = pytest.mark.torch

QUESTIONS = ["What is it?", "Describe the whole image in detail, please, and do not be brief.", "Hm"]
SHAPES = Path(__file__).parents[3] / "training" / "shapes" / "model"


def stepping(engine: GeneratingEngine, **options: Any) -> GeneratingEngine:
    """The same network and words, decoded in steps."""
    decoder = StepDecoder(engine._network, capture=False, **options)
    return GeneratingEngine(engine._network, engine._adapter, engine.batch, decoder)


@pytest.fixture(scope="module")
def steps(llava: GeneratingEngine) -> GeneratingEngine:
    return stepping(llava, lengths=(128, 256, 512))


@contextmanager
def without_generate(engine: GeneratingEngine) -> Iterator[None]:
    """Fails where a batch is not decoded in steps."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("generate was called")

    engine._network.generate = refuse
    yield
    del engine._network.generate


def same(plain: GeneratingEngine, steps: GeneratingEngine, *questions: Question) -> list[Heard]:
    """Asks both; whatever can be heard must be the same."""
    wanted = ask(plain, *questions)
    with without_generate(steps):
        heard = ask(steps, *questions)
    assert [one.text for one in heard] == [one.text for one in wanted]
    assert [one.ending for one in heard] == [one.ending for one in wanted]
    assert all(one.ending is not None for one in heard)
    return heard


@pytest.mark.parametrize("text", QUESTIONS)
def test_alone(text: str, llava: GeneratingEngine, steps: GeneratingEngine) -> None:
    heard = same(llava, steps, question(text, number=len(text), max_new_tokens=40))[0]
    assert len(heard.pieces) > 1


def test_three_rows_of_different_lengths_and_limits_in_a_bucket_of_four(
    llava: GeneratingEngine, steps: GeneratingEngine
) -> None:
    asked = [
        question(text, number, max_new_tokens=count)
        for number, (text, count) in enumerate(zip(QUESTIONS, (30, 3, 17), strict=True))
    ]
    same(llava, steps, *asked)
    assert steps._decoder is not None
    assert any(batch == 4 for batch, _ in steps._decoder._steps)


def test_one_token(llava: GeneratingEngine, steps: GeneratingEngine) -> None:
    same(llava, steps, question("a", max_new_tokens=1), question("b", 1, max_new_tokens=1))


def test_drawn_rows(llava: GeneratingEngine, steps: GeneratingEngine) -> None:
    hot = {"temperature": 1.5, "max_new_tokens": 20}
    asked = [
        question("a", seed=5, **hot),
        question("longer than it", 1),
        question("c", 2, seed=9, top_p=0.8, **hot),
    ]
    same(llava, steps, *asked)


def test_stop_words(llava: GeneratingEngine, steps: GeneratingEngine) -> None:
    whole = ask(llava, question(QUESTIONS[0], 5))[0].text
    stop = whole[5:7]
    heard, _ = same(llava, steps, question(QUESTIONS[0], 5, stop=(stop,)), question(QUESTIONS[1], 5))
    assert heard.text == whole[: whole.index(stop)].strip()
    assert heard.ending is not None
    assert heard.ending.reason == "stop"


def test_nobody_listens_any_more(steps: GeneratingEngine) -> None:
    with without_generate(steps):
        gone, other = ask(
            steps,
            question("a", max_new_tokens=100),
            question("b", 1, max_new_tokens=9),
            listeners=[Heard(leaves_after=2), Heard()],
        )
    assert gone.ending is None
    assert other.ending is not None


def test_nothing_is_left_of_an_earlier_batch(llava: GeneratingEngine) -> None:
    steps = stepping(llava, lengths=(128, 256))
    long = [question(text * 2, number + 5, max_new_tokens=50) for number, text in enumerate(QUESTIONS)]
    short = [question("Hm", 1, max_new_tokens=20), question("So?", 2), question("a", 3)]
    first = [heard.text for heard in same(llava, steps, *short)]
    same(llava, steps, *long)
    assert steps._decoder is not None
    storage = steps._decoder._storage
    assert storage is not None
    with torch.inference_mode():
        for keys, values in storage._flat:  # what a network of small numbers says of an image that it cannot bear
            keys.fill_(torch.nan)
            values.fill_(torch.inf)
    assert [heard.text for heard in same(llava, steps, *short)] == first


def test_lengths_and_batches_share_their_memory(llava: GeneratingEngine) -> None:
    steps = stepping(llava, batches=(1, 2), lengths=(64, 96, 128))
    decoder = steps._decoder
    assert decoder is not None
    short, middle, long = (question("a", max_new_tokens=count) for count in (4, 60, 80))
    same(llava, steps, short)
    storage = decoder._storage
    assert storage is not None
    assert storage.slots == 128, "two rows of the shortest come for nothing"
    same(llava, steps, middle)
    same(llava, steps, long)
    same(llava, steps, short, question("b", 1, max_new_tokens=4))
    assert decoder._storage is storage
    assert sorted(decoder._steps) == [(1, 64), (1, 96), (1, 128), (2, 64)]
    same(llava, steps, long, question("b", 1))
    assert decoder._storage is not storage
    assert sorted(decoder._steps) == [(2, 128)]
    same(llava, steps, short)


def test_a_trained_model() -> None:
    plain = load_engine(get_vlm("vlm:shapes"), SHAPES, ON_CPU, 4)
    assert isinstance(plain, GeneratingEngine)
    assert can_step(plain._network)
    image = Image.new("RGB", (128, 128), "white")
    image.paste("red", (20, 30, 70, 80))
    asked = [
        Question(image, "0", (Message("user", text),), Options(60))
        for text in ("Describe the image.", "How many shapes are there?", "What colour is the square?")
    ]
    heard = same(plain, stepping(plain), *asked)
    assert all(len(one.text) > 1 for one in heard)


# -- when generate is called after all --------------------------------------------------------------------------


def test_what_fits_nowhere(llava: GeneratingEngine) -> None:
    steps = stepping(llava, batches=(1, 2), lengths=(64,))
    assert steps._decoder is not None
    many = [question("a", number, max_new_tokens=4) for number in range(3)]
    for asked in ([question("a", max_new_tokens=90)], many):
        assert [one.text for one in ask(steps, *asked)] == [one.text for one in ask(llava, *asked)]
    assert not steps._decoder._steps


def test_the_second_of_two_at_a_time(llava: GeneratingEngine, steps: GeneratingEngine) -> None:
    assert steps._decoder is not None
    asked = question("a")
    wanted = ask(llava, asked)[0].text
    inputs = llava._collate([llava.prepare(asked)])
    with steps._decoder.borrow(inputs, 24) as first, steps._decoder.borrow(inputs, 24) as second:
        assert first is not None
        assert second is None
        assert ask(steps, asked)[0].text == wanted
    same(llava, steps, asked)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), RuntimeError("operation not permitted")])
def test_what_cannot_be_made(
    error: RuntimeError,
    llava: GeneratingEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tried = []

    def fail(*_: Any) -> None:
        tried.append(1)
        raise error

    steps = stepping(llava, lengths=(64, 128))
    decoder = steps._decoder
    assert decoder is not None
    monkeypatch.setattr(DecodeSteps, "__init__", fail)
    small, large = question("a", max_new_tokens=4), question("a", max_new_tokens=60)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert ask(steps, large)[0].text == ask(llava, large)[0].text
    assert len(tried) == 1
    assert len(caplog.records) == 1
    assert decoder._storage is None
    assert not decoder._lock.locked()
    monkeypatch.undo()
    if isinstance(error, torch.OutOfMemoryError):
        same(llava, steps, small)  # which needs less
    else:
        ask(steps, small)
        assert decoder._storage is None


def test_no_memory_to_read_is_the_misfortune_of_one_batch(
    llava: GeneratingEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    steps, asked = stepping(llava), question("a")
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(DecodeSteps, "prefill", fail)
        assert ask(steps, asked)[0].text == ask(llava, asked)[0].text
    assert "not enough GPU memory to read" in caplog.text
    same(llava, steps, asked)


def test_buffers_are_no_larger_than_was_told(llava: GeneratingEngine) -> None:
    decoder = StepDecoder(llava._network, max_bytes=1000, capture=False)
    inputs = llava._collate([llava.prepare(question("a"))])
    with decoder.borrow(inputs, 4) as steps:
        assert steps is None


@pytest.mark.parametrize(
    "asked",
    [
        {"repetition_penalty": 1.2},
        {"no_repeat_ngram_size": 3},
        {"bad_words_ids": [[7]]},
        {"min_new_tokens": 5},
        {"suppress_tokens": [9]},
        {"forced_eos_token_id": 2},
        {"stop_strings": ["a"]},
        {"use_cache": False},
    ],
    ids=str,
)
def test_checkpoints_that_ask_for_more_than_the_likeliest(
    asked: dict[str, Any], llava: GeneratingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = copy.deepcopy(llava._network.generation_config)
    config.update(temperature=0.7, repetition_penalty=1.0, do_sample=True)
    monkeypatch.setattr(llava._network, "generation_config", config)
    assert can_step(llava._network)
    config.update(**asked)
    assert not can_step(llava._network)


def test_other_networks(kosmos2: GeneratingEngine, llava: GeneratingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not can_step(kosmos2._network)
    assert can_step(llava._network)
    language = llava._network.model.language_model
    monkeypatch.setattr(language.rotary_emb, "rope_type", "dynamic")
    assert not can_step(llava._network)
    monkeypatch.undo()
    monkeypatch.setattr(llava._network.model, "language_model", torch.nn.Identity())
    assert not can_step(llava._network)


@pytest.mark.parametrize(
    ("device", "graphs", "wanted"), [("cpu", True, False), ("cuda", True, True), ("cuda", False, False)]
)
def test_who_gets_them(
    device: str, graphs: bool, wanted: bool, llava_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: Callable[..., Any] = torch.nn.Module.to
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *to: self if to == ("cuda",) else plain(self, *to))
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: True)
    spec = get_vlm("vlm:llava")
    settings = Settings(vlm_graphs=graphs, vlm_dtype="float32", vlm_device=device)
    placement = choose_placement(spec, llava_folder, settings, lambda _: 0)
    assert placement.graphs is graphs
    engine = load_engine(spec, llava_folder, placement, 4)
    assert isinstance(engine, GeneratingEngine)
    assert (engine._decoder is not None) is wanted

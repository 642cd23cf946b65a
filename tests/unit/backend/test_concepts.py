"""Concepts in the scheduler: what is found and how it is answered, in every format, and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.analytic_concepts import expected_instances
from tests.unit.backend.concept_helpers import (
    CELLS,
    PICTURE,
    SIDE,
    ColourEngine,
    Mail,
    ask,
    asked,
    colour_embedding,
    texts,
)
from tests.unit.backend.scheduler_helpers import Counts, MakeScheduler
from triton_sam.backend.concept_replies import bounded
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.replies import needs_of
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.masks import FORMATS, decode, unpack_bits
from triton_sam.core.prompts import Prompt, prompt_from_mapping
from triton_sam.engines.concepts import ConceptRow
from triton_sam.errors import InvalidInput


@pytest.fixture
def engine() -> ColourEngine:
    return ColourEngine()


def assert_instances(
    answer: dict[str, Any], concept: int, text: str | None, exemplars: Sequence[Sequence[float]] = (), **how: Any
) -> None:
    """Compares the instances of one concept in an answer with those that are in the picture."""
    wanted = expected_instances(PICTURE, text, exemplars, side=SIDE, cells=CELLS, **how)
    chosen = [index for index, mask in enumerate(answer["json"]["masks"]) if mask["concept"] == concept]
    listed = [answer["json"]["masks"][index] for index in chosen]
    assert answer["json"]["concepts"][concept]["found"] == len(wanted) == len(listed)
    masks = unpack_bits(answer["masks"], PICTURE.width)
    for index, given, expected in zip(chosen, listed, wanted, strict=True):
        assert given["score"] == pytest.approx(expected.score, abs=1e-6)
        assert answer["scores"][index, 0] == np.float32(given["score"])
        assert given["box"] == pytest.approx(expected.box, abs=1e-3)
        clear = np.abs(expected.logits) > 1e-3
        assert (masks[index] == (expected.logits > 0))[clear].all()
        if given["encoding"] in ("png", "rle"):
            np.testing.assert_array_equal(decode(given), masks[index])


# -- what is found ---------------------------------------------------------------------------------------------------


def test_a_text(make: MakeScheduler, counts: Counts) -> None:
    answer = ask(make(), "red").answer
    assert_instances(answer, 0, "red")
    result = answer["json"]
    assert [mask["score"] for mask in result["masks"]] == sorted((m["score"] for m in result["masks"]), reverse=True)
    assert result["concepts"][0] | {"presence": 1} == {"text": "red", "presence": 1, "found": 3, "returned": 3}
    assert 0.99 < result["concepts"][0]["presence"] <= 1
    assert result["score"] == result["masks"][0]["score"]
    assert result["mask"] == {name: result["masks"][0][name] for name in ("encoding", "width", "height", "data")}
    assert (result["width"], result["height"], result["model"]) == (*PICTURE.size, "colours")
    assert answer["scores"].shape == (3, 1)
    assert answer["low_res_logits"].shape == (3, 1, CELLS, CELLS)
    assert result["timings_ms"]["text"] == 0.25
    assert result["timings_ms"]["detect"] > 0
    assert (counts["concepts"], counts["concept_instances"], counts["turns"]) == (1, 3, 1)
    assert counts["concept_microseconds"] > 0


def test_exemplars(make: MakeScheduler) -> None:
    scheduler = make()
    blue, yellow = [90.0, 130.0, 150.0, 170.0], [10.0, 190.0, 70.0, 230.0]
    answer = ask(scheduler, {"exemplars": [blue]}).answer
    assert_instances(answer, 0, None, [blue])
    assert answer["json"]["concepts"][0]["text"] is None
    both = ask(scheduler, {"text": "red", "exemplars": [blue, yellow], "exemplar_labels": [1, 0]}).answer
    assert_instances(both, 0, "red", [blue, yellow], labels=[1, 0])
    assert both["json"]["concepts"][0]["found"] == 5


def test_several_concepts_keep_their_order(make: MakeScheduler) -> None:
    answer = ask(make(), texts("yellow", "green", "red", "blue")).answer
    assert [mask["concept"] for mask in answer["json"]["masks"]] == [0, 2, 2, 2, 3, 3]
    assert answer["masks"].shape == (6, 240, 40)
    for index, name in enumerate(("yellow", "green", "red", "blue")):
        assert_instances(answer, index, name)
    best = max(answer["json"]["masks"], key=lambda mask: mask["score"])
    assert answer["json"]["score"] == best["score"]
    assert answer["json"]["mask"]["data"] == best["data"]


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_found(make: MakeScheduler, form: str) -> None:
    answer = ask(make(), {"text": ["green", "plane"], "format": form}).answer
    result = answer["json"]
    assert result["masks"] == []
    assert not {"mask", "score"} & set(result)
    assert [concept["found"] for concept in result["concepts"]] == [0, 0]
    assert all(0 <= concept["presence"] < 0.5 for concept in result["concepts"])
    assert answer["scores"].shape == (0, 1)
    assert answer["scores"].dtype == np.float32
    assert answer["masks"].shape == (0, 240, 40)
    assert answer["masks"].dtype == np.uint8
    assert answer["low_res_logits"].shape == (0, 1, CELLS, CELLS)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format(make: MakeScheduler, form: str) -> None:
    answer = ask(make(), {"text": "blue", "format": form}, reply=Mail(wanted=frozenset({"result_json"}))).answer
    assert set(answer) == {"result_json", "json"}
    for mask in answer["json"]["masks"]:
        assert mask["encoding"] == form
        assert mask["data"]


def test_a_threshold_and_a_maximum(make: MakeScheduler) -> None:
    scheduler = make()
    answer = ask(scheduler, {"text": "red", "score_threshold": 0.9}).answer
    assert_instances(answer, 0, "red", threshold=0.9)
    assert 0 < answer["json"]["concepts"][0]["found"] < 3
    concept = ask(scheduler, {"text": "red", "max_instances": 2}).answer["json"]["concepts"][0]
    assert (concept["found"], concept["returned"]) == (3, 2)


def test_cleaned_masks(make: MakeScheduler) -> None:
    answer = ask(make(), {"text": "red", "clean": {"holes": 9, "islands": 9}}).answer
    assert answer["json"]["clean"] == {"holes": 9, "islands": 9}
    assert_instances(answer, 0, "red")


def test_a_new_image_is_encoded_once(engine: ColourEngine, make: MakeScheduler) -> None:
    image = EncodedImage(file_bytes(PICTURE), max_bytes=10**7, max_pixels=10**7)
    scheduler = make()
    for _ in range(2):
        job = asked({"text": "red"})
        scheduler.submit_image(job, image)
        assert isinstance(job.reply, Mail)
        assert_instances(job.reply.answer, 0, "red")
    assert engine.encodes == 1


# -- limits ----------------------------------------------------------------------------------------------------------


def test_an_answer_is_bounded(engine: ColourEngine, make: MakeScheduler) -> None:
    wish = prompt_from_mapping(texts("red", "blue"))
    assert wish.concepts is not None
    size = PICTURE.size
    pixels = size[0] * size[1]
    limited = bounded(wish.concepts, engine, size, 5 * pixels, logits=False)
    assert limited.most == 2
    assert limited.concepts == wish.concepts.concepts
    answer = ask_prompt(make(), dataclasses.replace(wish, concepts=limited, format="rle"))
    red, blue = answer["json"]["concepts"]
    assert (red["found"], red["returned"], blue["found"], blue["returned"]) == (3, 2, 2, 2)
    with pytest.raises(InvalidInput, match="send fewer concepts"):
        bounded(wish.concepts, engine, size, pixels, logits=False)
    assert bounded(wish.concepts, engine, size, 10**9, logits=False).most == wish.concepts.most
    logits = 8 * engine.spec.decoder.mask_side**2
    assert bounded(wish.concepts, engine, size, 20 * logits, logits=True).most == 10
    assert bounded(wish.concepts, engine, (10**4, 10**4), 20 * 10**8, logits=True).most == 10


def ask_prompt(scheduler: Scheduler, wish: Prompt) -> dict[str, Any]:
    mail = Mail()
    job = SegmentJob(mail, wish, "scene", embedding=colour_embedding(PICTURE), needs=needs_of(wish, mail.wanted))
    scheduler.submit_click(job)
    return mail.answer


def test_a_text_that_cannot_be_read_is_refused_before_it_waits(engine: ColourEngine) -> None:
    wish = prompt_from_mapping(texts("red", "a b c d e f g h i"))
    assert wish.concepts is not None
    with pytest.raises(InvalidInput, match="9 tokens"):
        bounded(wish.concepts, engine, (10, 10), 10**9, logits=False)


def test_rows_say_what_is_needed() -> None:
    wish = prompt_from_mapping({"text": "red", "exemplars": [[1, 2, 3, 4]], "max_instances": 7, "format": "bits"})
    job = SegmentJob(Mail(), wish, "scene", embedding=colour_embedding(PICTURE), needs=needs_of(wish, {"masks"}))
    (row,) = job.concept_rows()
    assert isinstance(row, ConceptRow)
    assert (row.threshold, row.most, row.logits, row.pixels, row.columns) == (0.5, 7, False, True, False)
    assert row.prompt.boxes.tolist() == [[1, 2, 3, 4]]
    assert not job.is_light([])

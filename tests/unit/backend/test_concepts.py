"""Concepts in the scheduler: beside clicks, in turns, cancelled before the next row, answered with every format."""

from __future__ import annotations

import dataclasses
import gc
import json
import queue
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic_concepts import expected_instances, scene
from tests.unit.backend import test_everything as everything
from tests.unit.backend.concept_helpers import CELLS, SIDE, ColourEngine, colour_embedding
from tests.unit.backend.scheduler_helpers import PATIENCE, Counts, Inbox, MakeScheduler, click, embedding, prompt
from tests.waiting import eventually
from triton_sam.backend import concepts, decodes
from triton_sam.backend import everything as searches
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.concept_replies import bounded, build_concepts
from triton_sam.backend.jobs import QueueLimits, SegmentJob
from triton_sam.backend.replies import ALL_OUTPUTS, ModelInfo, needs_of
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.everything.driver import Progress
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.masks import FORMATS, decode, unpack_bits
from triton_sam.core.prompts import Prompt, prompt_from_mapping
from triton_sam.engines.base import Decoded, Embedding
from triton_sam.engines.concepts import ConceptRow
from triton_sam.errors import Cancelled, InternalError, InvalidInput, QueueFull, TritonSamError

PICTURE = scene()
WHO = ModelInfo("colours", "1", "float32")
WANTED = ALL_OUTPUTS - {"embedding"}


class Mail(Inbox):
    """Keeps the tensors and JSON of a response."""

    def __init__(self, *, gone: bool = False, wanted: frozenset[str] = WANTED, order: list[str] | None = None) -> None:
        super().__init__(gone=gone)
        self.wanted = wanted
        self.outputs: queue.Queue[dict[str, Any] | TritonSamError] = queue.Queue()
        self.order = order

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        if self.order is not None:
            self.order.append(job.request_id)
        self.outputs.put(build_concepts(job, decoded, WHO, self.wanted))

    def fail(self, error: TritonSamError) -> None:
        self.outputs.put(error)

    @property
    def answer(self) -> dict[str, Any]:
        """The tensors, and ``result_json`` parsed."""
        outputs = self.outputs.get(timeout=PATIENCE)
        assert isinstance(outputs, dict), outputs
        return outputs | {"json": json.loads(outputs["result_json"][0])}

    @property
    def error(self) -> TritonSamError:
        error = self.outputs.get(timeout=PATIENCE)
        assert isinstance(error, TritonSamError), error
        return error


@pytest.fixture
def engine() -> ColourEngine:
    return ColourEngine()


def asked(document: dict[str, Any], shared: Embedding | None = None, **fields: Any) -> SegmentJob:
    reply = fields.pop("reply", None) or Mail()
    wish = prompt_from_mapping({"format": "rle"} | document)
    job = SegmentJob(reply, wish, "scene", needs=needs_of(wish, reply.wanted), **fields)
    job.embedding = shared
    return job


def ask(scheduler: Scheduler, document: dict[str, Any] | str, shared: Embedding | None = None, **fields: Any) -> Mail:
    """Sends a request on a cached image."""
    wish = {"text": document} if isinstance(document, str) else document
    job = asked(wish, shared or colour_embedding(PICTURE), **fields)
    scheduler.submit_click(job)
    assert isinstance(job.reply, Mail)
    return job.reply


def texts(*names: str) -> dict[str, Any]:
    return {"text": list(names)}


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


# -- order -----------------------------------------------------------------------------------------------------------


def hold(engine: ColourEngine, scheduler: Scheduler, text: str = "yellow", **fields: Any) -> Mail:
    """Holds the detector with one request inside, so that later ones have to wait."""
    engine.concept_gate.clear()
    engine.concept_arrived.clear()
    first = ask(scheduler, text, **fields)
    assert engine.concept_arrived.wait(PATIENCE)
    return first


def test_clicks_do_not_wait(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    assert scheduler.encode_seconds == 0
    held = hold(engine, scheduler)
    assert scheduler.encode_seconds > 0, "the server knows that it works on something"
    waiting = ask(scheduler, "red")
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
    engine.concept_gate.set()
    assert held.answer
    assert waiting.answer


class Both(everything.DiscEngine, ColourEngine):
    """Finds discs in the one scene and colours in the other."""


def test_everything_and_the_background_wait_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    for longest, waits in ((60.0, True), (0.0, False)):
        for module in (decodes, concepts, searches):
            monkeypatch.setattr(module, "LONGEST_WAIT", longest)
        engine = Both()
        scheduler = Scheduler(engine, EmbeddingCache(10**6), Counts(), QueueLimits())
        held = hold(engine, scheduler)
        order: list[str] = []
        search = everything.ask(
            scheduler, everything.EverythingOptions(points_per_side=2), reply=everything.Ordered("search", order)
        )
        job = everything.Ordered("job", order)
        shared = everything.scene_embedding(everything.picture())
        scheduler.submit_click(SegmentJob(job, prompt(), "key", embedding=shared, background=True))
        if waits:
            assert isinstance(click(scheduler, Inbox(), embedding()).get(), list)
            assert engine.kinds == ["click"], "only the click was decoded"
            assert order == []
        else:
            assert isinstance(search.get(), Progress)
            assert isinstance(job.get(), list)
        engine.concept_gate.set()
        assert held.answer
        if waits:
            assert isinstance(search.get(), Progress)
            assert isinstance(job.get(), list)
        scheduler.close()


def test_sessions_take_turns(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    order: list[str] = []
    many = hold(engine, scheduler, texts(*["red"] * 8), session="one", request_id="many", reply=Mail(order=order))
    again = ask(scheduler, "blue", session="one", request_id="again", reply=Mail(order=order))
    few = ask(scheduler, "yellow", session="two", request_id="few", reply=Mail(order=order))
    engine.concept_gate.set()
    assert len(few.answer["json"]["masks"]) == 1
    assert len(many.answer["json"]["concepts"]) == 8
    assert again.answer
    assert order == ["few", "many", "again"]
    assert engine.looked_for == [["red", "red"], ["red", "red"], ["yellow"], ["red", "red"], ["red", "red"], ["blue"]]


def test_rows_of_several_requests_are_one_call(engine: ColourEngine, make: MakeScheduler) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, mixes_images=True, concept_rows=4)
    scheduler = make()
    held = hold(engine, scheduler)
    other = Image.new("RGB", (100, 60), (0, 0, 255))
    waiting = [ask(scheduler, "red"), ask(scheduler, texts("blue", "red")), ask(scheduler, "red")]
    blue = ask(scheduler, "blue", colour_embedding(other))
    engine.concept_gate.set()
    for mail in (held, *waiting):
        assert mail.answer
    assert len(blue.answer["json"]["masks"]) == 16
    assert [len(words) for words in engine.looked_for] == [1, 4, 1]


def test_rows_of_two_images_are_two_calls(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    shared = colour_embedding(PICTURE)
    waiting = [ask(scheduler, "red", shared), ask(scheduler, "blue"), ask(scheduler, "green", shared)]
    engine.concept_gate.set()
    for mail in (held, *waiting):
        assert mail.answer
    assert engine.looked_for == [["yellow"], ["red", "green"], ["blue"]]


def test_the_background_comes_after_people(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    order: list[str] = []
    held = hold(engine, scheduler)
    job = ask(scheduler, texts("red", "blue", "green"), background=True, request_id="job", reply=Mail(order=order))
    person = ask(scheduler, texts("red", "blue", "green"), request_id="person", reply=Mail(order=order))
    engine.concept_gate.set()
    for mail in (held, job, person):
        assert mail.answer
    assert order == ["person", "job"]


def test_the_background_does_not_wait_for_ever(
    engine: ColourEngine, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concepts, "LONGEST_WAIT", 0.0)
    scheduler = make()
    held = hold(engine, scheduler)
    job = ask(scheduler, "red", background=True)
    person = ask(scheduler, texts("blue", "blue", "blue"))
    engine.concept_gate.set()
    for mail in (held, job, person):
        assert mail.answer
    assert engine.looked_for[1] == ["red"]


# -- cancelling and failing ------------------------------------------------------------------------------------------


def test_cancelled_ones_end_before_their_next_row(engine: ColourEngine, make: MakeScheduler, counts: Counts) -> None:
    scheduler = make()
    running = hold(engine, scheduler, texts(*["red"] * 8), session="mine")
    waiting = ask(scheduler, "blue", session="mine")
    spared = ask(scheduler, "green", session="other")
    assert scheduler.cancel_session("mine") == 2
    assert isinstance(running.error, Cancelled)
    assert isinstance(waiting.error, Cancelled)
    engine.concept_gate.set()
    assert spared.answer
    assert engine.looked_for == [["red", "red"], ["green"]]
    assert scheduler.unanswered == 0
    assert counts["cancelled"] == 2


def test_a_newer_request_of_the_session_replaces_it(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    old = ask(scheduler, "red", session="mine", latest_wins=True, sequence=1)
    other = ask(scheduler, "green", session="other")
    new = ask(scheduler, "blue", session="mine", latest_wins=True, sequence=2)
    late = ask(scheduler, "red", session="mine", latest_wins=True, sequence=1)
    assert isinstance(old.error, Cancelled)
    assert isinstance(late.error, Cancelled)
    engine.concept_gate.set()
    for mail in (held, other, new):
        assert mail.answer
    assert engine.looked_for == [["yellow"], ["blue"], ["green"]], "it kept its turn"


def test_nothing_is_computed_for_somebody_who_is_gone(engine: ColourEngine, make: MakeScheduler) -> None:
    mail = ask(make(patience=-1.0), "red", reply=Mail(gone=True))
    assert isinstance(mail.error, Cancelled)
    assert engine.looked_for == []


def test_an_engine_that_fails_is_told_and_others_go_on(engine: ColourEngine, make: MakeScheduler) -> None:
    engine.capacity = dataclasses.replace(engine.capacity, mixes_images=True, concept_rows=4)
    scheduler = make()
    engine.concept_failure = RuntimeError("no memory")
    assert isinstance(ask(scheduler, "red").error, InternalError)
    engine.concept_failure, engine.bad_text = None, "bad"
    held = hold(engine, scheduler)
    good, bad, more = ask(scheduler, "red"), ask(scheduler, texts("red", "bad")), ask(scheduler, "blue")
    engine.concept_gate.set()
    assert isinstance(bad.error, InternalError)
    for mail in (held, good, more):
        assert mail.answer
    engine.concept_failure = InvalidInput("this text cannot be read")
    assert isinstance(ask(scheduler, "red").error, InvalidInput)
    assert scheduler.unanswered == 0
    assert scheduler.alive


def test_too_many_are_refused_at_once(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    shared = colour_embedding(PICTURE)
    taken = [hold(engine, scheduler, shared=shared)]
    many = texts(*["green"] * 16)
    share = concepts.MOST_ROWS // 2 // 16
    taken += [ask(scheduler, many, shared, background=True) for _ in range(share)]
    assert isinstance(ask(scheduler, "red", shared, background=True).error, QueueFull)
    taken += [ask(scheduler, many, shared) for _ in range(concepts.MOST_ROWS // 16)]
    refused = ask(scheduler, "red", shared)
    assert isinstance(refused.error, QueueFull)
    engine.concept_gate.set()
    for mail in taken:
        assert mail.answer


def test_closing_finishes_what_was_taken(engine: ColourEngine, make: MakeScheduler) -> None:
    scheduler = make()
    held = hold(engine, scheduler)
    waiting = [ask(scheduler, texts("red", "blue", "red")), ask(scheduler, "red", background=True)]
    engine.concept_gate.set()
    scheduler.close()
    for mail in (held, *waiting):
        assert mail.answer
    assert isinstance(ask(scheduler, "red").error, TritonSamError)


def test_an_idle_thread_keeps_no_image(make: MakeScheduler) -> None:
    scheduler = make()
    shared = colour_embedding(PICTURE)
    gone = weakref.ref(shared)
    assert ask(scheduler, "red", shared).answer
    del shared

    def freed() -> bool:
        gc.collect()
        return gone() is None

    eventually(freed, "the embedding's end")


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

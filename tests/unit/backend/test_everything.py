"""Everything mode in the scheduler: beside clicks, cancelled at the next chunk, followed while it runs."""

from __future__ import annotations

import dataclasses
import queue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.backend.scheduler_helpers import PATIENCE, GatedEngine, Inbox, MakeScheduler, click, prompt
from tests.unit.core.everything.discs import SIDE, Discs
from tests.waiting import eventually
from triton_sam.backend import decodes
from triton_sam.backend.everything import MOST_RUNS
from triton_sam.backend.jobs import SegmentJob
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.everything.candidates import Candidates
from triton_sam.core.everything.driver import Progress, run
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.everything.records import answer_of
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.prompts import Prompt
from triton_sam.engines.base import Decoded, Embedding, HostEmbedding, Row
from triton_sam.errors import Cancelled, InternalError, QueueFull
from triton_sam.models.catalog import get_spec

WIDTH, HEIGHT = 230, 180
SCENE = ((60, 50, 30), (150, 60, 22), (100, 130, 35), (40, 150, 12), (190, 150, 9))
OPTIONS = EverythingOptions(points_per_side=8)
SPEC = get_spec("sam2:tiny")


class DiscEngine(GatedEngine):
    """Finds discs. The first pixel of a picture tells where in the scene it was cut out."""

    spec = SPEC

    def __init__(self) -> None:
        super().__init__()
        self.discs = Discs(WIDTH, HEIGHT, SCENE)
        self.kinds: list[str] = []

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        self.encodes += len(prepared)
        return [scene_embedding(picture) for picture in prepared]

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        self.kinds.append("chunk" if rows[0].multimask else "click")
        if not rows[0].multimask:
            return super().decode(rows)
        self.decode_arrived.set()
        assert self.decode_gate.wait(PATIENCE)
        if self.failure:
            raise self.failure
        found = []
        for row in rows:
            x, y = row.embedding.array("corner").tolist()
            frame = row.embedding.frame
            masks, scores = self.discs.logits(row.prompt.points[0], (x, y, x + frame.width, y + frame.height))
            found.append(Decoded(scores, masks))
        return found

    def begin(self, rows: Sequence[Row]) -> Callable[[], list[Decoded]]:
        decoded = self.decode(rows)
        return lambda: decoded


@pytest.fixture
def engine() -> DiscEngine:
    return DiscEngine()


def picture() -> Image.Image:
    """Red is a pixel's column and green its row."""
    across, down = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    return Image.fromarray(np.stack([across, down, across * 0], axis=2).astype(np.uint8))


def scene_embedding(part: Image.Image) -> Embedding:
    corner: Any = part.getpixel((0, 0))
    frame = Frame(*part.size, SIDE, ResizePolicy.SQUASH)
    return HostEmbedding(frame, {"corner": np.array(corner[:2], np.int64)})  # type: ignore[dict-item]


def wanted(options: EverythingOptions, **fields: Any) -> SegmentJob:
    reply = fields.pop("reply", None) or Inbox()
    return SegmentJob(reply, Prompt((), True, "rle", everything=options), "scene", **fields)


def ask(scheduler: Scheduler, options: EverythingOptions = OPTIONS, **fields: Any) -> Inbox:
    job = wanted(options, embedding=scene_embedding(picture()), **fields)
    scheduler.submit_click(job)
    assert isinstance(job.reply, Inbox)
    return job.reply


def expected(options: EverythingOptions) -> Candidates:
    discs = Discs(WIDTH, HEIGHT, SCENE)
    options = dataclasses.replace(options, pred_iou_thresh=SPEC.pred_iou_thresh)
    *_, last = run(options, WIDTH, HEIGHT, discs.open(options))
    return last.found


def expect_found(inbox: Inbox, options: EverythingOptions = OPTIONS) -> None:
    answer = inbox.get()
    assert isinstance(answer, Progress)
    assert answer.done == answer.of == options.points_in_all()
    assert answer_of(answer.found, "rle", WIDTH, HEIGHT) == answer_of(expected(options), "rle", WIDTH, HEIGHT)
    assert len(answer.found) > 3


def test_a_cached_image(make: MakeScheduler) -> None:
    expect_found(ask(make()))


def test_crops_are_encoded_once(engine: DiscEngine, make: MakeScheduler) -> None:
    options = EverythingOptions(points_per_side=8, crop_n_layers=1)
    data = file_bytes(picture())
    image = EncodedImage(data, max_bytes=10**7, max_pixels=10**7)
    scheduler = make()
    for _ in range(2):
        job = wanted(options)
        job.image = image
        scheduler.submit_image(job, image)
        assert isinstance(job.reply, Inbox)
        expect_found(job.reply, options)
        assert engine.encodes == 1 + 4


def test_a_click_goes_before_the_next_chunk(engine: DiscEngine, make: MakeScheduler) -> None:
    engine.decode_gate.clear()
    scheduler = make()
    everything = ask(scheduler)
    assert engine.decode_arrived.wait(PATIENCE)
    clicked = click(scheduler, Inbox(), scene_embedding(picture()))
    engine.decode_gate.set()
    assert isinstance(clicked.get(), list)
    expect_found(everything)
    assert engine.kinds[:3] == ["chunk", "click", "chunk"]


def test_two_requests_take_turns(engine: DiscEngine, make: MakeScheduler) -> None:
    scheduler = make()
    long, short = EverythingOptions(points_per_side=40), EverythingOptions(points_per_side=2)
    engine.decode_gate.clear()
    first = ask(scheduler, long)
    assert engine.decode_arrived.wait(PATIENCE)
    second = ask(scheduler, short)
    engine.decode_gate.set()
    assert isinstance(second.get(), Progress)
    assert first.empty, "the long one was served first"
    assert isinstance(first.get(), Progress)


def test_a_cancelled_session_stops_after_its_chunk(engine: DiscEngine, make: MakeScheduler) -> None:
    engine.decode_gate.clear()
    scheduler = make()
    everything = ask(scheduler, session="mine")
    assert engine.decode_arrived.wait(PATIENCE)
    assert scheduler.cancel_session("mine") == 1
    assert isinstance(everything.get(), Cancelled)
    engine.decode_gate.set()
    expect_found(ask(scheduler, EverythingOptions(points_per_side=4)), EverythingOptions(points_per_side=4))
    assert len(engine.kinds) <= 1 + 16
    assert scheduler.unanswered == 0


def test_who_follows_a_cancelled_run_is_told(engine: DiscEngine, make: MakeScheduler) -> None:
    """Also if another run is computed at that moment: Triton waits for every answer before it unloads a model."""
    scheduler = make()
    followed = ask(scheduler, EverythingOptions(points_per_side=60), session="mine", run="run 1")
    news: queue.Queue[dict[str, Any]] = queue.Queue()

    def begun() -> bool:
        scheduler.follow("run 1", 0, news.put)
        return "unknown" not in news.get(timeout=PATIENCE)

    eventually(begun, "the run")
    engine.decode_gate.clear()
    engine.decode_arrived.clear()
    other = ask(scheduler)
    assert engine.decode_arrived.wait(PATIENCE)
    scheduler.follow("run 1", 10**6, news.put)
    scheduler.cancel_session("mine")
    assert isinstance(followed.get(), Cancelled)
    engine.decode_gate.set()
    assert news.get(timeout=PATIENCE)["ended"]
    expect_found(other)


def test_a_newer_request_of_the_session_replaces_it(engine: DiscEngine, make: MakeScheduler) -> None:
    engine.decode_gate.clear()
    scheduler = make()
    old = ask(scheduler, session="mine", latest_wins=True, sequence=1)
    assert engine.decode_arrived.wait(PATIENCE)
    new = ask(scheduler, session="mine", latest_wins=True, sequence=2)
    assert isinstance(old.get(), Cancelled)
    engine.decode_gate.set()
    expect_found(new)


def test_nothing_is_computed_for_somebody_who_is_gone(engine: DiscEngine, make: MakeScheduler) -> None:
    assert isinstance(ask(make(), reply=Inbox(gone=True)).get(), Cancelled)
    assert engine.kinds == []


def test_an_engine_that_fails_is_told_and_others_go_on(engine: DiscEngine, make: MakeScheduler) -> None:
    scheduler = make()
    engine.failure = RuntimeError("no memory")
    assert isinstance(ask(scheduler).get(), InternalError)
    engine.failure = None
    expect_found(ask(scheduler))


def test_too_many_are_refused_at_once(engine: DiscEngine, make: MakeScheduler) -> None:
    engine.decode_gate.clear()
    scheduler = make()
    taken = [ask(scheduler, EverythingOptions(points_per_side=1)) for _ in range(MOST_RUNS)]
    assert isinstance(ask(scheduler).get(), QueueFull)
    engine.decode_gate.set()
    for inbox in taken:
        assert isinstance(inbox.get(), Progress)


class Ordered(Inbox):
    """Notes its name in a list when it is answered."""

    def __init__(self, name: str, answered: list[str]) -> None:
        super().__init__()
        self._name, self._answered = name, answered

    def succeed(self, job: SegmentJob, decoded: list[Decoded]) -> None:
        self._answered.append(self._name)
        super().succeed(job, decoded)

    def found(self, job: SegmentJob, progress: Progress) -> None:
        self._answered.append(self._name)
        super().found(job, progress)


def test_a_search_in_the_background_comes_after_those_of_people(engine: DiscEngine, make: MakeScheduler) -> None:
    scheduler = make()
    order: list[str] = []
    engine.decode_gate.clear()
    job = ask(scheduler, EverythingOptions(points_per_side=12), background=True, reply=Ordered("job", order))
    assert engine.decode_arrived.wait(PATIENCE)
    person = ask(scheduler, EverythingOptions(points_per_side=12), reply=Ordered("person", order))
    engine.decode_gate.set()
    assert isinstance(person.get(), Progress)
    assert isinstance(job.get(), Progress)
    assert order == ["person", "job"], "it has as many points and began first"


def test_searches_in_the_background_take_no_place_from_people(engine: DiscEngine, make: MakeScheduler) -> None:
    engine.decode_gate.clear()
    scheduler = make()
    one_point = EverythingOptions(points_per_side=1)
    taken = [ask(scheduler, one_point, background=True) for _ in range(MOST_RUNS // 2)]
    assert isinstance(ask(scheduler, one_point, background=True).get(), QueueFull)
    taken += [ask(scheduler, one_point) for _ in range(MOST_RUNS)]
    assert isinstance(ask(scheduler, one_point).get(), QueueFull)
    engine.decode_gate.set()
    for inbox in taken:
        assert isinstance(inbox.get(), Progress)


def test_background_objects_wait_for_a_search_but_not_for_ever(
    engine: DiscEngine, make: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make()
    for longest, goes_first in ((60.0, False), (0.0, True)):
        monkeypatch.setattr(decodes, "LONGEST_WAIT", longest)
        engine.decode_gate.clear()
        engine.decode_arrived.clear()
        order: list[str] = []
        search = ask(scheduler, EverythingOptions(points_per_side=12), reply=Ordered("search", order))
        assert engine.decode_arrived.wait(PATIENCE)
        job = Ordered("job", order)
        scheduler.submit_click(SegmentJob(job, prompt(), "key", embedding=scene_embedding(picture()), background=True))
        engine.decode_gate.set()
        assert isinstance(job.get(), list)
        assert isinstance(search.get(), Progress)
        assert (order == ["job", "search"]) is goes_first
        assert (engine.kinds[-1] == "chunk") is goes_first


def test_who_follows_sees_masks_come_and_go(engine: DiscEngine, make: MakeScheduler) -> None:
    """Adding what is new and taking away what is gone gives the masks of the answer."""
    engine.decode_gate.clear()
    scheduler = make()
    news: queue.Queue[dict[str, Any]] = queue.Queue()
    scheduler.follow("run 1", 0, news.put)
    assert news.get(timeout=PATIENCE) == {"unknown": True}
    everything = ask(scheduler, run="run 1")
    assert engine.decode_arrived.wait(PATIENCE)
    engine.decode_gate.set()
    shown: dict[int, dict[str, Any]] = {}
    version, went, told = 0, 0, {"of": 0, "done": 0}
    while True:
        scheduler.follow("run 1", version, news.put)
        latest = news.get(timeout=PATIENCE)
        if latest.get("unknown") or latest["ended"]:
            break
        assert latest["version"] > version
        assert latest["done"] >= told["done"]
        version, told = latest["version"], latest
        for record in latest["masks"]:
            assert record["id"] not in shown
            shown[record["id"]] = record
        for number in latest["gone"]:
            del shown[number]
            went += 1
        assert len(shown) == latest["count"]
    answer = everything.get()
    assert isinstance(answer, Progress)
    eventually(lambda: scheduler.unanswered == 0, "the end")
    assert told["of"] == 64
    final = answer_of(answer.found, "rle", WIDTH, HEIGHT)["masks"]
    assert {(record["area"], *record["bbox"]) for record in shown.values()} >= {
        (record["area"], *record["bbox"]) for record in final
    }
    assert went > 0, "no mask was replaced by a better one: this picture shows nothing"

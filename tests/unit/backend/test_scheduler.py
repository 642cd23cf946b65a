"""The scheduler with an engine that waits when told to: order, batching, cancelling, refusal, and no lost answers."""

from __future__ import annotations

import dataclasses
import gc
import io
import queue
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import Job, QueueLimits
from triton_sam.backend.scheduler import Scheduler
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt, Prompt
from triton_sam.engines.base import Capacity, Decoded, Embedding, HostEmbedding, Row
from triton_sam.errors import Cancelled, InternalError, InvalidInput, TritonSamError, Unavailable
from triton_sam.models.specs import ModelSpec

PATIENCE = 10.0
FRAME = Frame(8, 8, 8, ResizePolicy.SQUASH)


class GatedEngine:
    """Counts its calls; a gate that is shut holds them, and tells when one has arrived."""

    spec: ModelSpec

    def __init__(self) -> None:
        self.capacity = Capacity()
        self.encode_gate, self.decode_gate = threading.Event(), threading.Event()
        self.encode_gate.set()
        self.decode_gate.set()
        self.encode_arrived, self.decode_arrived = threading.Event(), threading.Event()
        self.encodes = 0
        self.batches: list[int] = []
        self.encode_batches: list[int] = []
        self.failure: Exception | None = None

    def prepare(self, image: EncodedImage) -> Image.Image:
        return image.pixels()

    def encode(self, prepared: Sequence[Image.Image]) -> list[Embedding]:
        self.encodes += len(prepared)
        self.encode_batches.append(len(prepared))
        self.encode_arrived.set()
        assert self.encode_gate.wait(PATIENCE)
        if self.failure:
            raise self.failure
        return [embedding() for _ in prepared]

    def adopt(self, frame: Frame, tensors: Mapping[str, npt.NDArray[np.float32]]) -> Embedding:
        return HostEmbedding(frame, tensors)

    def decode(self, rows: Sequence[Row]) -> list[Decoded]:
        self.decode_arrived.set()
        assert self.decode_gate.wait(PATIENCE)
        self.batches.append(len(rows))
        if self.failure:
            raise self.failure
        # The answer carries the prompt, so that a test sees whether answers were mixed up.
        return [Decoded(np.ones(1, np.float32), np.full((1, 2, 2), row.prompt.points[0, 0])) for row in rows]


class Inbox:
    """A reply that keeps the answer for the test."""

    def __init__(self, *, gone: bool = False, broken: bool = False) -> None:
        self._answers: queue.Queue[list[Decoded] | TritonSamError] = queue.Queue()
        self._gone = gone
        self._broken = broken

    def succeed(self, job: Job, decoded: list[Decoded]) -> None:
        if self._broken:
            raise RuntimeError("cannot build the answer")
        self._answers.put(decoded)

    def fail(self, error: TritonSamError) -> None:
        self._answers.put(error)

    def is_cancelled(self) -> bool:
        return self._gone

    def get(self) -> list[Decoded] | TritonSamError:
        return self._answers.get(timeout=PATIENCE)

    @property
    def empty(self) -> bool:
        return self._answers.empty()


class Counts(Counter[str]):
    def count(self, name: str, amount: int = 1) -> None:
        self[name] += amount

    def set(self, name: str, value: float) -> None:
        self[name] = int(value)


def embedding() -> Embedding:
    return HostEmbedding(FRAME, {"features": np.zeros(4, np.float32)})


def prompt(x: float = 1.0, objects: int = 1) -> Prompt:
    point = ObjectPrompt(np.array([[x, 2.0]], np.float32), np.ones(1, np.int32))
    return Prompt((point,) * objects)


def image(shade: int = 0) -> EncodedImage:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (shade, 0, 0)).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=10**6, max_pixels=10**6)


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def counts() -> Counts:
    return Counts()


MakeScheduler = Callable[..., Scheduler]


@pytest.fixture
def make(engine: GatedEngine, counts: Counts) -> Iterator[MakeScheduler]:
    made: list[Scheduler] = []

    def build(cache: EmbeddingCache | None = None, *, rows: int = 8, **limits: float) -> Scheduler:
        engine.capacity = dataclasses.replace(engine.capacity, rows=rows)
        scheduler = Scheduler(engine, cache or EmbeddingCache(10**6), counts, QueueLimits(**limits))  # type: ignore[arg-type]
        made.append(scheduler)
        return scheduler

    yield build
    engine.encode_gate.set()
    engine.decode_gate.set()
    for scheduler in made:
        scheduler.close()


def click(scheduler: Scheduler, inbox: Inbox, shared: Embedding, x: float = 1.0, **fields: object) -> Inbox:
    scheduler.submit_click(Job(inbox, prompt(x), "key", embedding=shared, **fields))  # type: ignore[arg-type]
    return inbox


def expect_answer(inbox: Inbox) -> list[Decoded]:
    answer = inbox.get()
    assert isinstance(answer, list), answer
    return answer


def hold_decoder(engine: GatedEngine, scheduler: Scheduler) -> Inbox:
    """Shuts the decoder with one click inside, so that what comes next has to queue."""
    engine.decode_gate.clear()
    first = click(scheduler, Inbox(), embedding())
    assert engine.decode_arrived.wait(PATIENCE)
    return first


def test_a_click_is_answered_with_its_own_result(make: MakeScheduler) -> None:
    assert expect_answer(click(make(), Inbox(), embedding(), 7.0))[0].logits[0, 0, 0] == 7.0


def test_equal_images_are_encoded_once(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    inboxes = [Inbox() for _ in range(5)]
    for inbox in inboxes:
        scheduler.submit_image(Job(inbox, None, "same"), image())
    engine.encode_gate.set()
    for inbox in inboxes:
        assert expect_answer(inbox) == []
    late = Inbox()
    scheduler.submit_image(Job(late, prompt(3.0), "same"), image())
    assert len(expect_answer(late)) == 1
    assert engine.encodes == 1


def test_clicks_of_one_image_are_decoded_in_one_batch_and_not_mixed_up(
    make: MakeScheduler, engine: GatedEngine
) -> None:
    scheduler = make(rows=8)
    hold_decoder(engine, scheduler)
    shared = embedding()
    inboxes = [click(scheduler, Inbox(), shared, float(x)) for x in range(6)]
    engine.decode_gate.set()
    for x, inbox in enumerate(inboxes):
        assert expect_answer(inbox)[0].logits[0, 0, 0] == x
    assert engine.batches == [1, 6]


def test_clicks_of_different_images_are_never_in_one_batch(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    inboxes = [click(scheduler, Inbox(), embedding(), float(x)) for x in range(3)]
    engine.decode_gate.set()
    for inbox in inboxes:
        expect_answer(inbox)
    assert engine.batches == [1, 1, 1, 1]


def test_a_click_does_not_wait_for_an_encode(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    encoding = Inbox()
    scheduler.submit_image(Job(encoding, None, "slow"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    expect_answer(click(scheduler, Inbox(), embedding()))
    assert encoding.empty
    assert scheduler.encode_seconds > 0


def test_latest_wins_cancels_what_its_session_has_waiting(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    shared = embedding()
    hovers = [click(scheduler, Inbox(), shared, float(x), session="a", latest_wins=True) for x in range(20)]
    other = click(scheduler, Inbox(), shared, session="b", latest_wins=True)
    for superseded in hovers[:-1]:
        assert isinstance(superseded.get(), Cancelled)
    engine.decode_gate.set()
    assert expect_answer(hovers[-1])[0].logits[0, 0, 0] == 19
    expect_answer(other)
    assert counts["cancelled"] == 19
    assert sum(engine.batches) == 3, "superseded clicks must cost nothing"


def test_cancelling_a_session_drops_its_clicks_and_its_encode(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    engine.encode_gate.clear()
    scheduler.submit_image(Job(Inbox(), None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    waiting = Inbox()
    scheduler.submit_image(Job(waiting, None, "unwanted", session="a"), image(1))
    clicked = click(scheduler, Inbox(), embedding(), session="a")
    stranger = click(scheduler, Inbox(), embedding(), session="b")
    assert scheduler.cancel_session("a") == 2
    assert isinstance(waiting.get(), Cancelled)
    assert isinstance(clicked.get(), Cancelled)
    engine.encode_gate.set()
    engine.decode_gate.set()
    expect_answer(stranger)
    scheduler.close()
    assert engine.encodes == 1, "nobody waited for the second image any more"
    assert counts["cancelled"] == 2


def test_an_image_that_another_session_waits_for_is_still_encoded(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    scheduler.submit_image(Job(Inbox(), None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    mine, yours = Inbox(), Inbox()
    scheduler.submit_image(Job(mine, None, "shared", session="a"), image(1))
    scheduler.submit_image(Job(yours, None, "shared", session="b"), image(1))
    assert scheduler.cancel_session("a") == 1
    engine.encode_gate.set()
    assert expect_answer(yours) == []
    assert isinstance(mine.get(), Cancelled)


def test_a_client_that_went_away_costs_no_decode(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(patience=0)
    assert isinstance(click(scheduler, Inbox(gone=True), embedding()).get(), Cancelled)
    gone = Inbox(gone=True)
    scheduler.submit_image(Job(gone, None, "key"), image())
    assert isinstance(gone.get(), Cancelled)
    scheduler.close()
    assert engine.encodes == 0
    assert engine.batches == []
    assert counts["cancelled"] == 2


def test_too_many_clicks_are_refused_at_once(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(clicks=2, rows=1)
    held = hold_decoder(engine, scheduler)
    accepted = [click(scheduler, Inbox(), embedding()) for _ in range(2)]
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), Unavailable)
    assert counts["rejected"] == 1
    engine.decode_gate.set()
    for inbox in (held, *accepted):
        expect_answer(inbox)
    expect_answer(click(scheduler, Inbox(), embedding()))


def test_too_many_images_are_refused_at_once(make: MakeScheduler, engine: GatedEngine, counts: Counts) -> None:
    scheduler = make(encodes=1, clicks=3, rows=1)
    engine.encode_gate.clear()
    running, waiting, refused, joined, beyond = (Inbox() for _ in range(5))
    scheduler.submit_image(Job(running, None, "running"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    scheduler.submit_image(Job(waiting, None, "waiting"), image(1))
    scheduler.submit_image(Job(refused, None, "too many"), image(2))
    assert isinstance(refused.get(), Unavailable)
    scheduler.submit_image(Job(joined, prompt(), "waiting"), image(1))
    assert joined.empty, "joining an encode that waits already takes no place in its queue"
    scheduler.submit_image(Job(Inbox(), prompt(), "waiting"), image(1))
    scheduler.submit_image(Job(beyond, prompt(), "waiting"), image(1))
    assert isinstance(beyond.get(), Unavailable), "but those who wait for one image are bounded too"
    assert counts["rejected"] == 2
    engine.encode_gate.set()
    for inbox in (running, waiting, joined):
        expect_answer(inbox)


def test_who_waited_too_long_is_refused_and_not_computed(
    make: MakeScheduler, engine: GatedEngine, counts: Counts
) -> None:
    scheduler = make(seconds=30)
    late_click, late_image = Inbox(), Inbox()
    long_ago = time.perf_counter() - 60
    scheduler.submit_click(Job(late_click, prompt(), "key", embedding=embedding(), received=long_ago))
    scheduler.submit_image(Job(late_image, None, "key", received=long_ago), image())
    assert isinstance(late_click.get(), Unavailable)
    assert isinstance(late_image.get(), Unavailable)
    expect_answer(click(scheduler, Inbox(), embedding()))
    assert (engine.encodes, engine.batches) == (0, [1])
    assert counts["rejected"] == 2


def test_workers_survive_a_reply_that_raises(make: MakeScheduler) -> None:
    class Hostile(Inbox):
        def is_cancelled(self) -> bool:
            raise RuntimeError("the pipe is gone")

    scheduler = make(patience=0)
    clicked, encoded = click(scheduler, Hostile(), embedding()), Hostile()
    scheduler.submit_image(Job(encoded, None, "hostile"), image())
    assert isinstance(clicked.get(), InternalError)
    assert isinstance(encoded.get(), InternalError)
    expect_answer(click(scheduler, Inbox(), embedding()))
    fine = Inbox()
    scheduler.submit_image(Job(fine, None, "fine"), image(1))
    assert expect_answer(fine) == []
    assert scheduler.alive


def test_idle_workers_keep_no_image_and_no_embedding_alive(make: MakeScheduler) -> None:
    scheduler = make(cache=EmbeddingCache(1))
    picture, shared = image(), embedding()
    held = [weakref.ref(picture), weakref.ref(shared)]
    done = Inbox()
    scheduler.submit_image(Job(done, prompt(), "key"), picture)
    expect_answer(done)
    expect_answer(click(scheduler, Inbox(), shared))
    del picture, shared
    # A ping goes through after the click's round; the encode's round ended before its answer was decoded.
    answered = threading.Event()
    scheduler.ping(answered.set)
    assert answered.wait(PATIENCE)
    gc.collect()
    assert [reference() for reference in held] == [None, None]


def test_sessions_are_served_in_turn(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make(rows=1)
    hold_decoder(engine, scheduler)
    order: queue.Queue[str] = queue.Queue()

    class Named(Inbox):
        def __init__(self, name: str) -> None:
            super().__init__()
            self._name = name

        def succeed(self, job: Job, decoded: list[Decoded]) -> None:
            order.put(self._name)

    for index in range(3):
        click(scheduler, Named(f"busy {index}"), embedding(), session="busy")
    click(scheduler, Named("quiet"), embedding(), session="quiet")
    engine.decode_gate.set()
    served = [order.get(timeout=PATIENCE) for _ in range(4)]
    # Two finishers may swap neighbours, but the quiet session never waits for the whole of the busy one.
    assert served.index("quiet") <= 2


@pytest.mark.parametrize("failure", [RuntimeError("out of memory"), InvalidInput("damaged")])
def test_an_engine_that_raises_answers_everybody_and_goes_on(
    make: MakeScheduler, engine: GatedEngine, failure: Exception
) -> None:
    scheduler = make()
    engine.failure = failure
    clicked, encoded = Inbox(), Inbox()
    click(scheduler, clicked, embedding())
    scheduler.submit_image(Job(encoded, prompt(), "key"), image())
    assert isinstance(clicked.get(), InternalError)
    assert isinstance(encoded.get(), InternalError if isinstance(failure, RuntimeError) else InvalidInput)
    engine.failure = None
    expect_answer(click(scheduler, Inbox(), embedding()))
    again = Inbox()
    scheduler.submit_image(Job(again, None, "key"), image())
    assert expect_answer(again) == []


def test_an_answer_that_cannot_be_built_becomes_an_error(make: MakeScheduler) -> None:
    assert isinstance(click(make(), Inbox(broken=True), embedding()).get(), InternalError)


def test_a_damaged_image_fails_its_own_request_only(make: MakeScheduler) -> None:
    scheduler = make()
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "PNG")
    cut = EncodedImage(buffer.getvalue()[:1500], max_bytes=10**6, max_pixels=10**6)
    damaged, fine = Inbox(), Inbox()
    scheduler.submit_image(Job(damaged, None, "damaged"), cut)
    scheduler.submit_image(Job(fine, None, "fine"), image())
    assert isinstance(damaged.get(), InvalidInput)
    assert expect_answer(fine) == []


def test_ping_goes_through_the_click_worker(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    hold_decoder(engine, scheduler)
    answered = threading.Event()
    scheduler.ping(answered.set)
    assert not answered.is_set()
    engine.decode_gate.set()
    assert answered.wait(PATIENCE)


def test_closing_finishes_what_was_accepted_and_refuses_what_comes(make: MakeScheduler, engine: GatedEngine) -> None:
    scheduler = make()
    engine.encode_gate.clear()
    accepted = Inbox()
    scheduler.submit_image(Job(accepted, prompt(5.0), "key"), image())
    assert engine.encode_arrived.wait(PATIENCE)
    closing = threading.Thread(target=scheduler.close)
    closing.start()
    engine.encode_gate.set()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    assert len(expect_answer(accepted)) == 1
    assert isinstance(click(scheduler, Inbox(), embedding()).get(), Unavailable)


def test_several_objects_of_one_request_stay_together(make: MakeScheduler) -> None:
    inbox = Inbox()
    make().submit_click(Job(inbox, prompt(4.0, objects=3), "key", embedding=embedding()))
    assert [answer.logits[0, 0, 0] for answer in expect_answer(inbox)] == [4.0, 4.0, 4.0]

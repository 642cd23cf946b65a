from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from triton_sam.service.process_channel import (
    Channel,
    Message,
    PendingCounts,
    ServiceDescription,
    settings_document,
)
from triton_sam.service.service_process import ChannelSiblings, SupervisorMirror
from triton_sam.service.siblings import Siblings, clock_numbers
from triton_sam.settings import Settings


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The parent's and the process's."""
    ours, theirs = Channel.pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_messages_arrive_whole_and_in_order(ends: tuple[Channel, Channel]) -> None:
    parent, process = ends
    with pytest.raises(BlockingIOError):
        parent.receive()
    assert process.send({"a": 1})
    assert process.send({"b": ["x" * 50_000]})
    assert parent.receive() == {"a": 1}
    assert parent.receive() == {"b": ["x" * 50_000]}


def test_the_end_of_the_other_process(ends: tuple[Channel, Channel]) -> None:
    parent, process = ends
    process.close()
    assert parent.receive() is None
    assert not parent.send({"a": 1})


def test_the_parent_never_waits_for_a_process_that_does_not_read(ends: tuple[Channel, Channel]) -> None:
    parent, _ = ends
    sent = 0
    while parent.send({"text": "x" * 10_000}):
        sent += 1
    assert sent > 0, "it takes some, and refuses instead of waiting when no more fit"


def test_settings_reach_a_process_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(
        home=tmp_path,
        url="http://elsewhere:1",
        token=SecretStr("a-long-word-for-all"),
        tokens_file=tmp_path / "tokens",
        cors_origins=("https://a", "https://b"),
        rate=3.5,
        fast_encoder=False,
    )
    monkeypatch.setenv("TRITON_SAM_RATE", "99")
    assert Settings(**settings_document(settings)) == settings
    assert Settings(**settings_document(Settings())) == Settings()


def test_a_description_reaches_a_process_unchanged(ends: tuple[Channel, Channel]) -> None:
    parent, process = ends
    described = ServiceDescription(
        settings_document(Settings()), "127.0.0.1", 80, "/models", ["sam2"], {"llava": "vlm:llava"}, "http://t", None
    )
    parent.send(described.message(2, {"state": "ready", "missing": ("a",)}))
    message = process.receive()
    assert message is not None
    assert ServiceDescription(**message["service"]) == described
    assert (message["process"], message["status"]) == (2, {"state": "ready", "missing": ["a"]})


def test_answers_of_several_processes_are_added() -> None:
    pending = PendingCounts()
    pending.ask((0, 1), {1, 2})
    pending.ask((2, 1), {0, 1})
    pending.ask((0, 2), set())
    assert pending.complete() == {(0, 2): 0}
    pending.answer((0, 1), 1, 3)
    pending.answer((0, 1), 1, 3)
    assert pending.complete() == {}
    pending.answer((0, 1), 2, 4)
    assert pending.complete() == {(0, 1): 7}
    pending.answer((0, 1), 2, 4)
    assert pending.complete() == {}


def test_nobody_waits_for_a_process_that_has_ended() -> None:
    pending = PendingCounts()
    pending.ask((0, 1), {1, 2})
    pending.ask((2, 1), {0, 1})
    pending.answer((0, 1), 1, 3)
    pending.forget(2)
    assert pending.complete() == {(0, 1): 3}
    pending.forget(0)
    pending.forget(1)
    assert pending.complete() == {}


def test_a_loss_is_reported_after_the_status_has_changed() -> None:
    mirror = SupervisorMirror({"state": "ready"})
    seen: list[object] = []
    stop = mirror.on_loss(lambda reason, models: seen.append((mirror.status()["state"], reason, models)))
    lost: Message = {"status": {"state": "recovering"}, "loss": ["it died", ["sam2"]]}
    mirror.update(lost)
    assert seen == [("recovering", "it died", ("sam2",))]
    mirror.update({"status": {"state": "ready"}})
    stop()
    mirror.update(lost)
    assert len(seen) == 1


def test_a_cancel_reaches_the_others_and_their_answer_comes_back(ends: tuple[Channel, Channel]) -> None:
    parent, process = ends
    service = ServiceDescription(
        settings={},
        host="",
        port=0,
        repository="",
        segmenters=[],
        vlms={},
        triton_url="",
        metrics_url=None,
        processes=2,
        folder="/shared",
        namespace="names",
    )
    siblings = ChannelSiblings(process, service, 1)
    assert (siblings.namespace, siblings.number, siblings.count) == ("names", 1, 2)
    assert siblings.folder == Path("/shared")
    seen: list[str] = []

    def act_as_parent() -> None:
        question = process.receive()
        assert question is not None
        siblings.take_answer(question)

    async def cancel() -> int:
        asked = asyncio.create_task(siblings.cancel("user/mine"))
        await asyncio.sleep(0)
        message = parent.receive()
        assert message is not None
        assert message["cancel"] == "user/mine"
        parent.send({"cancelled": 5, "number": message["number"]})
        thread = threading.Thread(target=act_as_parent)
        thread.start()
        try:
            return await asked
        finally:
            thread.join()

    assert asyncio.run(cancel()) == 5
    siblings.serve_cancels(lambda session: seen.append(session) or 2)  # type: ignore[func-returns-value]
    siblings.answer({"cancel": "user/theirs", "asker": 1, "number": 9})
    assert parent.receive() == {"cancelled": 2, "asker": 1, "number": 9}
    assert seen == ["user/theirs"]
    siblings.serve_cancels(None)
    siblings.answer({"cancel": "user/theirs", "asker": 1, "number": 10})
    assert parent.receive() == {"cancelled": 0, "asker": 1, "number": 10}
    siblings.take_answer({"cancelled": 1, "number": 77})  # too late: nobody waits


def test_a_service_of_one_process_has_no_siblings() -> None:
    alone = Siblings()
    assert alone.namespace is None
    assert asyncio.run(alone.cancel("user/mine")) == 0
    numbers = alone.sequence_numbers()
    assert [next(numbers), next(numbers)] == [1, 2]


def test_numbers_grow_even_if_the_clock_stands_still() -> None:
    times = iter([5, 5, 5, 100, 7])
    numbers = clock_numbers(lambda: next(times))
    assert [next(numbers) for _ in range(5)] == [5, 6, 7, 100, 101]

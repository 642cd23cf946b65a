"""A job without images and servers: sources by name, and an executor whose results can be computed."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from triton_sam.batch.records import (
    Item,
    ItemPrompt,
    ItemResult,
    MaskRecord,
    Outcome,
    PromptImage,
    SegmentOptions,
    Source,
    Work,
)
from triton_sam.batch.runner import JobProgress, Summary, run_job
from triton_sam.batch.state.definition import JobDefinition
from triton_sam.batch.state.filling import JobInput
from triton_sam.batch.state.opening import open_job
from triton_sam.batch.state.results import ResultFiles
from triton_sam.batch.state.store import JobStore
from triton_sam.batch.stopping import StopRequest

DEFINITION = JobDefinition(("photos",), SegmentOptions(everything={"points_per_side": 32}))


class Prompts:
    """A file of prompts in memory."""

    def __init__(self, images: Mapping[str, int | None], prompts: Sequence[tuple[str, ItemPrompt]]) -> None:
        """``images`` by name; a key is ``key of NAME``."""
        self._images, self._prompts = images, prompts
        self.categories: Sequence[Mapping[str, Any]] = ()

    def images(self) -> Iterator[PromptImage]:
        self.categories = [{"id": 3, "name": "cell"}]
        return (PromptImage(f"key of {name}", name, image_id) for name, image_id in self._images.items())

    def prompts(self) -> Iterator[tuple[str, ItemPrompt]]:
        return ((f"key of {name}", prompt) for name, prompt in self._prompts)


BOXES = Prompts(
    {f"elsewhere/{number}.png": number for number in range(0, 60, 2)},
    [
        (f"elsewhere/{number}.png", ItemPrompt((1, 2, 3, 4 + place), annotation_id=100 * number + place))
        for place in range(3)
        for number in range(0, 60, 2)
    ],
)


def sources_of(names: Sequence[str], root: str = "/photos") -> list[Source]:
    return [Source(name, Path(root) / name, 100 + number, 10**18 + number) for number, name in enumerate(names)]


def given(
    names: Sequence[str], pages: Mapping[str, int] | None = None, prompts: Prompts | None = None, root: str = "/photos"
) -> JobInput:
    """A job's input; ``pages`` has the number of pages of stacks."""
    counts = pages or {}
    return JobInput(
        lambda: sources_of(names, root),
        lambda source: range(counts[source.name]) if source.name in counts else (None,),
        None if prompts is None else lambda: prompts,
    )


@contextlib.contextmanager
def opened(folder: Path, what: JobInput, definition: JobDefinition = DEFINITION) -> Iterator[JobStore]:
    store = open_job(folder, definition, what)
    try:
        yield store
    finally:
        store.close()


def result_of(item: Item) -> ItemResult:
    """A result that tells whose it is."""
    masks = [
        MaskRecord({"size": [4, 5], "counts": f"{item.index}:{number}"}, number, (0.5, 1, 2, 3), 0.1 * number, number)
        for number in range(item.index % 4)
    ]
    return ItemResult(item, 5, 4, masks, "fake", 0.25)


def fails(item: Item) -> bool:
    return item.index % 7 == 3


def outcome_of(work: Work) -> Outcome:
    if fails(work.item):
        return Outcome(work, failure=f"{work.item.name} is no image")
    return Outcome(work, result_of(work.item))


class FakeExecutor:
    """Gives outcomes in another order than it takes works; remembers how much it has held.

    Attributes:
        on_finished: called before each collection; what it raises ends the job.
    """

    def __init__(
        self,
        room: int = 8,
        outcome: Callable[[Work], Outcome] = outcome_of,
        on_finished: Callable[[FakeExecutor], object] | None = None,
    ) -> None:
        self._room, self._outcome, self._on_finished = room, outcome, on_finished
        self.held: deque[Work] = deque()
        self.submitted: list[int] = []
        self.most = 0
        self.closed: list[bool] = []
        self.is_ready = True

    def room(self) -> int:
        return self._room - len(self.held)

    def submit(self, work: Work) -> None:
        assert self.room() > 0
        assert not self.closed
        self.held.append(work)
        self.submitted.append(work.item.index)
        self.most = max(self.most, len(self.held))

    def finished(self, timeout: float) -> Sequence[Outcome]:
        if self._on_finished is not None:
            self._on_finished(self)
        taken = [self.held.pop() for _ in range(min(len(self.held), 3))] if self.is_ready else []
        return [self._outcome(work) for work in taken]

    def describe(self) -> str:
        return f"{len(self.held)} in flight"

    def close(self, *, at_once: bool) -> None:
        self.closed.append(at_once)
        self.held.clear()


def run(
    store: JobStore,
    executor: FakeExecutor | None = None,
    writers: Sequence[Any] = (),
    on_progress: Callable[[JobProgress], object] | None = None,
    stop: StopRequest | None = None,
) -> Summary:
    return run_job(
        store,
        ResultFiles(store.folder),
        executor or FakeExecutor(),
        writers,
        on_progress,
        stop,
        read_image=lambda item: item.name.encode(),
    )


def check_complete(store: JobStore) -> None:
    """Each image has exactly the result or the failure that it must have."""
    files = ResultFiles(store.folder)
    items = list(store.done())
    assert [files.read(item) for item in items] == [result_of(item) for item in items]
    failures = list(store.failures())
    assert all(fails(failure.item) and failure.reason == f"{failure.item.name} is no image" for failure in failures)
    counts = store.counts()
    assert (len(items), len(failures), counts.waiting) == (counts.done, counts.failed, 0)
    indexes = sorted([item.index for item in items] + [failure.item.index for failure in failures])
    assert indexes == list(range(counts.of))
    assert not any(fails(item) for item in items)
    there = set[int]().union(*(present for _, present in files.present()))
    assert there == {item.index for item in items}

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from tests.unit.backend.scheduler_helpers import Counts, GatedEngine, MakeScheduler
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import QueueLimits
from triton_sam.backend.scheduler import Scheduler


@pytest.fixture
def engine() -> GatedEngine:
    return GatedEngine()


@pytest.fixture
def counts() -> Counts:
    return Counts()


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
    engine.begin_gate.set()
    engine.decode_gate.set()
    for scheduler in made:
        scheduler.close()

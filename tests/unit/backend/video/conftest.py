from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.backend.scheduler_helpers import Counts
from tests.unit.backend.video.video_helpers import Film, MakeFilm, TrackingFake
from triton_sam.backend.cache import EmbeddingCache
from triton_sam.backend.jobs import QueueLimits
from triton_sam.backend.scheduler import Scheduler
from triton_sam.backend.video.limits import VideoLimits


@pytest.fixture
def engine() -> TrackingFake:
    return TrackingFake()


@pytest.fixture
def film(engine: TrackingFake, counts: Counts) -> Iterator[MakeFilm]:
    """A function that opens a session; limits are those of the first call's scheduler, which all share."""
    made: list[Scheduler] = []

    def build(name: str = "film", **limits: Any) -> Film:
        if not made:
            queues = QueueLimits(patience=0.0, video=VideoLimits(**limits))
            made.append(Scheduler(engine, EmbeddingCache(10**6), counts, queues))  # type: ignore[arg-type]
        opened = Film(made[0], name)
        opened.open(width=8, height=8)
        return opened

    yield build
    for gate in (engine.encode_gate, engine.track_gate, engine.decode_gate):
        gate.set()
    for scheduler in made:
        scheduler.close()

"""Tracking on ONNX Runtime: how rows are batched, what is kept of them, and which engine a folder gives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.oracles.video import VideoOracle
from tests.video_models import VideoModel
from tests.video_script import HEIGHT, WIDTH, SessionRun
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.bank import Attended
from triton_sam.engines.base import Embedding
from triton_sam.engines.loading import load_engine
from triton_sam.engines.onnx import OnnxEngine
from triton_sam.engines.onnx_tracking import OnnxTrackingEngine
from triton_sam.engines.tracking import HostMemory, Remember, Tracked, TrackRow
from triton_sam.settings import Settings

Models = Callable[[str], VideoModel]
MODEL = "sam2.1:tiny"
EACH_MODEL = pytest.mark.parametrize("model_id", [MODEL, pytest.param("sam3:full", marks=pytest.mark.part("video"))])


@pytest.fixture
def scene(tracker: Callable[[str, str], Any], new_oracle: Callable[[str], VideoOracle]) -> Callable[[str], Scene]:
    def make(model_id: str) -> Scene:
        engine = tracker("onnx", model_id)
        run = SessionRun(engine, new_oracle(model_id), engine.spec.memory)
        return Scene(engine, [run.embedding(frame) for frame in (0, 1)])

    return make


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """An engine and the embeddings of two frames."""

    engine: OnnxTrackingEngine
    embeddings: list[Embedding]

    def first(self, x: float, y: float, frame: int = 0) -> TrackRow:
        return TrackRow(self.embeddings[frame], prompt=point(x, y), remember=Remember.HARD)

    def seen(self, count: int = 3) -> list[Tracked]:
        """Different objects in the first frame."""
        return self.engine.track([self.first(60 + 70 * number, 70 + 40 * number) for number in range(count)])


def point(*coordinates: float) -> ObjectPrompt:
    points = np.array(coordinates, np.float32).reshape(-1, 2)
    return ObjectPrompt(points, np.ones(len(points), np.int32))


def rectangle(x0: int, y0: int, x1: int, y1: int) -> Any:
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y0:y1, x0:x1] = True
    return mask


def attended(seen: list[Tracked], ages: list[int], distances: list[int]) -> Attended:
    memories = tuple((seen[number % len(seen)].features, age) for number, age in enumerate(ages))
    pointers = tuple((seen[number % len(seen)].pointer, distance) for number, distance in enumerate(distances))
    return Attended(memories, pointers, 15)


def assert_alike(given: Tracked, alone: Tracked, what: str) -> None:
    assert given.decoded.logits is not None
    assert alone.decoded.logits is not None
    scale = max(float(alone.decoded.logits.std()), 1e-3)
    assert np.abs(given.decoded.logits - alone.decoded.logits).max() <= 1e-4 * scale, what
    assert np.allclose(given.decoded.scores, alone.decoded.scores, atol=1e-5), what
    assert given.appearance == pytest.approx(alone.appearance, abs=1e-4), what
    assert np.allclose(given.pointer, alone.pointer, atol=1e-4), what
    memories = [(one.features.astype(np.uint32) << 16).view(np.float32) for one in (given, alone)]
    assert np.abs(memories[0] - memories[1]).max() <= 2**-7 * np.abs(memories[1]).max(), what


@EACH_MODEL
def test_rows_of_every_kind_in_one_call_equal_each_alone(scene: Callable[[str], Scene], model_id: str) -> None:
    here = scene(model_id)
    seen = here.seen()
    one, two = here.embeddings
    known = seen[0].decoded.logits
    assert known is not None
    far, near = attended(seen, [0, 2, 1], [4, 2, 1]), attended(seen[1:], [0], [])
    box = ObjectPrompt(np.zeros((0, 2), np.float32), np.zeros(0, np.int32), np.array([30, 40, 200, 180], np.float32))
    rows = [
        here.first(60, 70),
        TrackRow(two, far),
        TrackRow(two, near),
        TrackRow(one, prompt=box, remember=Remember.HARD),
        TrackRow(two, far, point(90, 90), known[0], remember=Remember.HARD),
        TrackRow(one, mask=rectangle(40, 30, 150, 160), remember=Remember.HARD),
        TrackRow(two, attended(seen, [0, 1, 3], [1])),
        TrackRow(one, prompt=point(60, 70, 90, 60), previous=known[0], remember=Remember.HARD),
        TrackRow(two, mask=rectangle(0, 0, 10, 10), remember=Remember.HARD),
    ]
    rows += [TrackRow(two, attended(seen, [0, number % 6 + 1], [number + 1])) for number in range(10)]
    assert sum(row.embedding is two for row in rows) > here.engine.track_rows
    for number, (row, given) in enumerate(zip(rows, here.engine.track(rows), strict=True)):
        assert_alike(given, here.engine.track([row])[0], f"row {number}")


def test_no_rows(scene: Callable[[str], Scene]) -> None:
    assert scene(MODEL).engine.track([]) == []


@EACH_MODEL
def test_ages_and_distances_count(scene: Callable[[str], Scene], model_id: str) -> None:
    here = scene(model_id)
    seen = here.seen()

    def tracked(ages: list[int], distances: list[int]) -> Any:
        return here.engine.track([TrackRow(here.embeddings[1], attended(seen, ages, distances))])[0].decoded.logits

    plain = tracked([0, 1], [2, 1])
    for other in (tracked([0, 2], [2, 1]), tracked([0, 1], [9, 1]), tracked([0, 1], [2]), tracked([0], [2, 1])):
        assert np.abs(other - plain).max() > 2e-3 * plain.std()  # twice what tests of whole videos allow


def test_a_memory_goes_to_the_host_and_back_exactly(scene: Callable[[str], Scene]) -> None:
    engine = scene(MODEL).engine
    (seen, *_) = scene(MODEL).seen()
    ((features, pointer),) = engine.memories_to_host([(seen.features, seen.pointer)])
    assert features is not None
    assert (features.dtype, features.shape) == (np.uint16, engine.memory_shape())
    assert (pointer.dtype, pointer.shape) == (np.float32, (256,))
    assert features.nbytes == engine.memory_bytes
    # What a client sends is one buffer, and must not be kept alive as a whole.
    sent = np.frombuffer(features.tobytes(), np.uint16).reshape(features.shape)
    restored = engine.memory_from_host(HostMemory(sent, pointer))
    assert restored[0] is not None
    assert restored[0].base is None
    again, bare = engine.memories_to_host([restored, (None, pointer)])
    assert np.array_equal(again.features, features)
    assert np.array_equal(again.pointer, pointer)
    assert engine.memory_from_host(bare)[0] is None


def test_full_size_masks_are_left_to_the_caller(scene: Callable[[str], Scene]) -> None:
    here = scene(MODEL)
    row = dataclasses.replace(here.first(60, 70), pixels=True, columns=True)
    (found,) = here.engine.track([row])
    side = here.engine.spec.decoder.mask_side
    assert found.decoded.logits is not None
    assert found.decoded.logits.shape == (1, side, side)
    assert found.decoded.packed is None
    assert found.decoded.columns is None


@EACH_MODEL
def test_an_empty_mask_is_an_object_that_is_not_there(
    scene: Callable[[str], Scene], model_id: str, video_model: Models
) -> None:
    here = scene(model_id)
    (found,) = here.engine.track([TrackRow(here.embeddings[0], mask=rectangle(0, 0, 0, 0), remember=Remember.HARD)])
    assert found.decoded.logits is not None
    assert (found.decoded.logits < 0).all()
    assert found.appearance < 0
    nothing = video_model(model_id).network.no_object_pointer
    assert np.array_equal(found.pointer, nothing.detach().numpy()[0])
    (there,) = here.engine.track([TrackRow(here.embeddings[0], mask=rectangle(9, 9, 99, 99), remember=Remember.HARD)])
    assert there.appearance > 0
    assert not np.array_equal(there.pointer, found.pointer)


def test_a_folder_with_a_memory_tracks_and_one_without_does_not(
    tracker: Callable[[str, str], Any], tracker_folder: Callable[[str, str], Path]
) -> None:
    spec, folder = tracker("onnx", MODEL).spec, tracker_folder("onnx", MODEL)
    settings = Settings(engine="onnx", device="cpu", threads=1)
    tracking = load_engine(spec, folder, settings)
    assert isinstance(tracking, OnnxTrackingEngine)
    assert tracking.capacity.tracks
    plain = load_engine(dataclasses.replace(spec, memory=None), folder, settings)
    assert type(plain) is OnnxEngine
    assert not plain.capacity.tracks

"""Engines and sessions against the definition: the same video, objects, prompts and corrections."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.oracles.video import VideoOracle
from tests.unit.video.trackers import ENGINES
from tests.video_models import DEFINITIONS
from tests.video_script import MAIN, MANY_PROMPTS, Results, SessionRun, assert_same
from triton_sam.backend.video.track_session import Limits

Oracles = Callable[[str], VideoOracle]
Trackers = Callable[[str, str], Any]
Runs = Callable[[str, str], tuple[SessionRun, Results]]
EACH_ENGINE = pytest.mark.parametrize("engine", list(ENGINES))
#: For long videos. Torch's short ones are always tested.
ONNX_ALWAYS = pytest.mark.parametrize("engine", ["onnx", pytest.param("torch", marks=pytest.mark.part("video"))])


def each_model(always: str) -> pytest.MarkDecorator:
    """One model for every commit, and the others."""
    others = [name for name in DEFINITIONS if name != always]
    marked = [pytest.param(name, marks=pytest.mark.part("video")) for name in others]
    return pytest.mark.parametrize("model_id", [always, *marked])


@pytest.fixture(scope="module")
def main_run(tracker: Trackers, new_oracle: Oracles) -> Runs:
    """The main script with an engine and a model: the session and its results."""

    @cache
    def make(engine: str, model_id: str) -> tuple[SessionRun, Results]:
        found = tracker(engine, model_id)
        run = SessionRun(found, new_oracle(model_id), found.spec.memory)
        return run, run.run(MAIN)

    return make


@ONNX_ALWAYS
@each_model("sam2.1:tiny")
def test_sixty_frames_equal_the_definition(
    engine: str, model_id: str, main_run: Runs, wanted: Callable[[str, str, str], Results]
) -> None:
    expected = wanted(model_id, "main", engine)
    appearances = [one.appearance for _, objects in expected for one in objects.values()]
    assert min(appearances) < -0.2  # the occlusion
    assert 0 < sum(one > 0 for one in appearances) < len(appearances)
    run, results = main_run(engine, model_id)
    assert_same(results, expected, 1e-3)
    assert not run.forgotten


@EACH_ENGINE
@each_model("sam3:full")
def test_prompts_in_many_frames_equal_the_definition(
    engine: str, model_id: str, tracker: Trackers, new_oracle: Oracles, wanted: Callable[[str, str, str], Results]
) -> None:
    found = tracker(engine, model_id)
    run = SessionRun(found, new_oracle(model_id), found.spec.memory)
    assert_same(run.run(MANY_PROMPTS), wanted(model_id, "many prompts", engine), 1e-3)


@ONNX_ALWAYS
def test_dropping_what_no_frame_reaches_changes_nothing(
    engine: str, main_run: Runs, tracker: Trackers, new_oracle: Oracles
) -> None:
    found, (pruned, results) = tracker(engine, "sam2.1:tiny"), main_run(engine, "sam2.1:tiny")
    limits = Limits(history=1000, conditioning=1000)
    everything = SessionRun(found, new_oracle("sam2.1:tiny"), found.spec.memory, limits)
    for (what, given), (_, kept) in zip(results, everything.run(MAIN), strict=True):
        assert given.keys() == kept.keys()
        for name, one in kept.items():
            assert np.array_equal(given[name].logits, one.logits), f"{what}, object {name}"
    assert pruned.session.bytes(found.memory_bytes) < 0.9 * everything.session.bytes(found.memory_bytes)

"""Small networks and their engines, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from tests.oracles.video import VideoOracle
from tests.unit.one_thread import one_thread
from tests.unit.video.trackers import ENGINES
from tests.video_models import VideoModel, allow_small_sides, clip, make_video_model
from tests.video_script import EMPTY, HEIGHT, LENGTH, MAIN, MANY_PROMPTS, WIDTH, Results, run_oracle

SCRIPTS = {"main": MAIN, "many prompts": MANY_PROMPTS}


@pytest.fixture(scope="package", autouse=True)
def _small_and_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch, one_thread():
        allow_small_sides(monkeypatch)
        yield


@pytest.fixture(scope="package")
def video_model(_small_and_alone: None) -> Callable[[str], VideoModel]:
    return cache(make_video_model)


@pytest.fixture(scope="package")
def new_oracle(video_model: Callable[[str], VideoModel]) -> Callable[[str], VideoOracle]:
    """An oracle without objects, whose frames are encoded once."""

    @cache
    def first(model_id: str) -> VideoOracle:
        model = video_model(model_id)
        frames = clip(model_id, model.spec.side, LENGTH, EMPTY)
        return VideoOracle(model.reference, model.definition, frames, WIDTH, HEIGHT)

    return lambda model_id: first(model_id).again()


@pytest.fixture(scope="package")
def wanted(new_oracle: Callable[[str], VideoOracle]) -> Callable[[str, str], Results]:
    """What the oracle finds in a script, by the model and the script's name."""
    return cache(lambda model_id, script: run_oracle(new_oracle(model_id), SCRIPTS[script]))


@pytest.fixture(scope="package")
def tracker(
    video_model: Callable[[str], VideoModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str, str], Any]]:
    """An engine that tracks, by its name and the model's."""
    made = []

    @cache
    def make(engine: str, model_id: str) -> Any:
        made.append(ENGINES[engine](video_model(model_id), tmp_path_factory.mktemp("tracker")))
        return made[-1]

    yield make
    for engine in made:
        engine.close()

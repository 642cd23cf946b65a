"""Small networks and their engines, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.oracles.video import VideoOracle
from tests.unit.one_thread import one_thread
from tests.unit.video.trackers import ENGINES, KEPT_IN
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
def wanted(new_oracle: Callable[[str], VideoOracle]) -> Callable[..., Results]:
    """What the oracle finds in a script, by the model, the script's name, and the engine that it is compared with."""

    @cache
    def run(model_id: str, script: str, kept_in: torch.dtype) -> Results:
        oracle = new_oracle(model_id)
        oracle.kept_in = kept_in
        return run_oracle(oracle, SCRIPTS[script])

    return lambda model_id, script, engine="": run(model_id, script, KEPT_IN.get(engine, VideoOracle.kept_in))


@pytest.fixture(scope="package")
def tracker_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder with an engine's files, by its name and the model's."""
    return cache(lambda _engine, _model_id: tmp_path_factory.mktemp("tracker"))


@pytest.fixture(scope="package")
def tracker(
    video_model: Callable[[str], VideoModel], tracker_folder: Callable[[str, str], Path]
) -> Iterator[Callable[[str, str], Any]]:
    """An engine that tracks, by its name and the model's."""
    made = []

    @cache
    def make(engine: str, model_id: str) -> Any:
        made.append(ENGINES[engine](video_model(model_id), tracker_folder(engine, model_id)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()

"""The comparison with Meta's predictor, as far as it runs without Meta's code."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from benchmarks import video_meta
from benchmarks.video_meta import EMPTY, FRAMES, SCRIPT, Click, Follow, Found, by_engine, compare, pictures, png
from benchmarks.video_meta_model import CONFIGS, instantiate
from tests.unit.one_thread import one_thread
from tests.unit.video.trackers import ENGINES
from tests.video_models import allow_small_sides, make_video_model
from triton_sam.models.catalog import CATALOG


def test_a_configuration_is_instantiated_as_hydra_does() -> None:
    config = {
        "_target_": "datetime.timedelta",
        "hours": 1,
        "seconds": "1e1",
    }
    made = instantiate({"each": [config, {"plain": None}], "name": "relu"})
    assert made == {"each": [__import__("datetime").timedelta(hours=1, seconds=10), {"plain": None}], "name": "relu"}


def test_models_are_those_of_the_catalogue() -> None:
    assert set(CONFIGS) <= set(CATALOG)


def test_pictures_are_empty_where_objects_are_to_leave() -> None:
    found = pictures(EMPTY[-1] + 2, 64)
    assert [not one.any() for one in found] == [number in EMPTY for number in range(len(found))]


def test_the_script_corrects_and_goes_back() -> None:
    tracked: set[int] = set()
    corrected = False
    for action in SCRIPT:
        if isinstance(action, Follow):
            tracked |= set(range(min(action.first, action.last), max(action.first, action.last) + 1))
        else:
            corrected |= isinstance(action, Click) and action.frame in tracked
    assert corrected
    assert tracked == set(range(FRAMES))
    assert any(isinstance(action, Follow) and action.last < action.first for action in SCRIPT)


def test_differences_are_shares_of_the_deviation() -> None:
    rng = np.random.default_rng(0)
    wanted = [Found(str(number), rng.normal(size=(8, 8)).astype(np.float32) * 2, 1.0) for number in range(3)]
    assert compare(wanted, wanted)["largest"] == 0
    moved = [dataclasses.replace(one, logits=one.logits.copy()) for one in wanted]
    moved[1].logits[2, 3] += 0.5
    figures = compare(moved, wanted)
    assert figures["worst"] == "1"
    assert figures["largest"] == pytest.approx(0.25, rel=0.2)
    gone = [dataclasses.replace(one, appearance=-1.0) for one in wanted]
    assert compare(gone, wanted)["there_differs"] == 3


def test_an_engine_follows_the_script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    allow_small_sides(monkeypatch)
    with one_thread():
        engine = ENGINES["torch"](make_video_model("sam2.1:tiny"), tmp_path)
        found = list(by_engine(engine, [png(one) for one in pictures(4, 1024)], [*SCRIPT[:2], Follow(0, 3)]))
        engine.close()
    assert [one.what.rpartition(": ")[2] for one in found[:2]] == ["frame 0, object 1", "frame 0, object 2"]
    assert len(found) == 2 + 4 * 2
    assert all(np.isfinite(one.logits).all() for one in found)


def test_a_network_gets_objects_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    head = torch.nn.Linear(2, 1).requires_grad_(False)
    head.bias.zero_()
    network = ModuleType("predictor")
    network.sam_mask_decoder = ModuleType("decoder")  # type: ignore[attr-defined]
    network.sam_mask_decoder.pred_obj_score_head = ModuleType("head")  # type: ignore[attr-defined]
    network.sam_mask_decoder.pred_obj_score_head.layers = [head]  # type: ignore[attr-defined]

    def found(scores: list[float]) -> list[Found]:
        return [Found(str(number), np.zeros((2, 2), np.float32), score) for number, score in enumerate(scores)]

    frames = EMPTY[-1] + 2  # the click's own result comes first
    for scores, wanted in (([24.0] * (frames - 1) + [22.0], True), ([22.0] * (frames - 1) + [24.0], False)):
        head.bias.zero_()
        monkeypatch.setattr(video_meta, "by_meta", lambda *_, scores=scores: found(scores))
        monkeypatch.setattr(video_meta, "MetaVideo", lambda *_: None)
        assert video_meta.set_appearance(network, torch.zeros(1)) is wanted
        assert float(head.bias) == pytest.approx(20 - 23)

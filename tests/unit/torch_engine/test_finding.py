"""Everything by an engine that finds by itself, against rows of the same engine and the filters of the core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.unit.engines.test_onnx import prompt
from tests.unit.export.small import small_network, small_spec
from tests.unit.torch_engine.test_engine import CPU, photograph
from triton_sam.core.everything.ahead import find_ahead
from triton_sam.core.everything.candidates import Candidates, Place
from triton_sam.core.everything.driver import Decode, Find, find_with, run
from triton_sam.core.everything.grids import CropBox, plan
from triton_sam.core.everything.held import HeldMask
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.everything.records import answer_of
from triton_sam.engines.base import Embedding, FindingEngine, Row
from triton_sam.engines.torch import finding, grid_decoder
from triton_sam.engines.torch.decoder import Masks, RowDecoder
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.errors import InternalError, SetupError

pytestmark = pytest.mark.torch
SIZE = (260, 190)
WHOLE = Place((0, 0, *SIZE), *SIZE)
CROP = Place((30, 20, 240, 170), *SIZE)
OPTIONS = EverythingOptions(
    points_per_side=4,
    points_per_batch=6,
    pred_iou_thresh=0.3,
    stability_score_thresh=0.35,
    stability_score_offset=0.5,
    mask_threshold=0.1,
    box_nms_thresh=1.0,
    crop_nms_thresh=1.0,
)


def blobs(decoder: RowDecoder, cells: Tensor, scores: Tensor) -> Masks:
    """Masks of a random network are noise all over the image: here each is a disc with a little of it.

    Where it lies and how large it is depends on the scores.
    """
    plain = CHOOSE(decoder, cells, scores)
    side = plain.logits.shape[-1]
    places = (torch.arange(side) + 0.5) / side
    y, x = (0.42 + 0.1 * scores[:, index, None].tanh() for index in (0, 1))
    away = torch.hypot((places - y)[:, :, None], (places - x)[:, None])[:, None]
    logits = (0.14 + 0.04 * scores.tanh()[..., None, None] - away) * 20 + plain.logits.tanh() * 0.5
    best = logits.gather(1, plain.choice[:, None, None, None].expand(-1, 1, side, side))[:, 0]
    return plain._replace(logits=logits, best=best)


CHOOSE = RowDecoder.choose


class Scene:
    """An engine and embeddings of crops of one image."""

    def __init__(self, model_id: str) -> None:
        spec = small_spec(model_id)
        self.engine = TorchEngine(spec, small_network(spec), CPU)
        self.engine.warm_up()
        self._known: dict[CropBox, Embedding] = {}

    def embedding(self, crop: CropBox) -> Embedding:
        if crop not in self._known:
            size = crop[2] - crop[0], crop[3] - crop[1]
            file = photograph(size, seed=len(self._known))
            self._known[crop] = self.engine.encode([self.engine.prepare(file)])[0]
        return self._known[crop]

    def decoder(self, crop: CropBox) -> Decode:
        def decode(points: Any, *, multimask: bool, mask_input: Any = None) -> tuple[Any, Any]:
            rows = [Row(self.embedding(crop), prompt([point.tolist()]), multimask) for point in points]
            answers = self.engine.decode(rows)
            return np.stack([each.logits for each in answers]), np.stack([each.scores for each in answers])  # type: ignore[misc]

        return decode

    def by_rows(self, options: EverythingOptions) -> Callable[[CropBox], Find]:
        def open_crop(crop: CropBox) -> Find:
            return find_with(self.decoder(crop), self.embedding(crop).frame, Place(crop, *SIZE), options, 8)

        return open_crop

    def by_itself(self, options: EverythingOptions) -> Callable[[CropBox], Find]:
        def open_crop(crop: CropBox) -> Find:
            chunks = [each.points for each in plan(options, *SIZE) if each.crop == crop]
            embedding, place = self.embedding(crop), Place(crop, *SIZE)
            return find_ahead(lambda points: self.engine.begin_find(embedding, points, place, options), chunks)

        return open_crop


@pytest.fixture(scope="module", autouse=True)
def _blobs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowDecoder, "choose", blobs)
        yield


@pytest.fixture(scope="module", params=["sam2.1:tiny", pytest.param("sam1:vit_b", id="padded")])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(request.param)


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_decoder.GridStep, "SLICE", 5)


def some_points(place: Place, count: int) -> Any:
    x0, y0, x1, y1 = place.crop
    return np.random.default_rng(2).random((count, 2)) * (x1 - x0, y1 - y0) + (x0, y0)


def same(mine: Candidates, others: Candidates) -> None:
    """Rounding may decide about a few pixels."""
    assert len(mine) == len(others)
    assert np.abs(mine.areas - others.areas).max(initial=0) <= 2
    assert np.abs(mine.boxes - others.boxes).max(initial=0) <= 1
    assert np.allclose(mine.predicted_ious, others.predicted_ious, atol=1e-5)
    assert np.allclose(mine.stability_scores, others.stability_scores, atol=1e-3)
    assert np.array_equal(mine.points, others.points)
    assert np.array_equal(mine.crops, others.crops)
    for one, other, area in zip(mine.masks, others.masks, mine.areas, strict=True):
        assert np.count_nonzero(one.pixels() != other.pixels()) <= 4
        assert np.count_nonzero(one.pixels()) == area


@pytest.mark.parametrize("place", [WHOLE, CROP], ids=["whole", "crop"])
@pytest.mark.parametrize("multimask", [True, False])
def test_the_same_candidates_as_by_rows(scene: Scene, place: Place, multimask: bool) -> None:
    options = OPTIONS if multimask else replace(OPTIONS, multimask_output=False, pred_iou_thresh=0.0)
    embedding, points = scene.embedding(place.crop), some_points(place, 7)
    (expected,) = find_with(scene.decoder(place.crop), embedding.frame, place, options, 8)(points)
    begun = scene.engine.begin_find(embedding, points, place, options)
    other = scene.engine.begin_find(embedding, points[::-1], place, options)
    found = begun()
    assert 0 < len(expected) <= 7 * (3 if multimask else 1)
    same(found, expected)
    assert {type(mask) for mask in found.masks} == {HeldMask}
    assert np.array_equal(np.sort(other().areas), np.sort(found.areas))


def in_order(found: Candidates) -> Candidates:
    """By crop, point and size: predicted IoUs may be equal except for rounding."""
    return found.take(np.lexsort((found.areas, *found.points.T, *found.crops.T)))


@pytest.mark.parametrize("layers", [0, 1])
def test_the_same_answer_as_by_rows(scene: Scene, layers: int) -> None:
    options = replace(OPTIONS, crop_n_layers=layers, crop_n_points_downscale_factor=2)
    *_, mine = run(options, *SIZE, scene.by_itself(options))
    *_, others = run(options, *SIZE, scene.by_rows(options))
    assert mine.done == mine.of == others.done
    assert len(others.found) > 3
    same(in_order(mine.found), in_order(others.found))
    told = answer_of(mine.found, "rle", *SIZE)["masks"]
    assert [record["segmentation"] for record in told] == [mask.rle() for mask in mine.found.masks]


def test_nothing_is_good_enough(scene: Scene) -> None:
    for options in (replace(OPTIONS, pred_iou_thresh=1.0), replace(OPTIONS, stability_score_thresh=1.0)):
        options = replace(options, mask_threshold=3.0, stability_score_offset=2.9)
        assert len(scene.engine.begin_find(scene.embedding(WHOLE.crop), some_points(WHOLE, 3), WHOLE, options)()) == 0


def test_what_it_does_not_take(scene: Scene) -> None:
    engine: FindingEngine = scene.engine
    assert engine.capacity.find_points == 64
    assert not engine.capacity.finds  # on a CPU rows are as fast
    embedding = scene.embedding(WHOLE.crop)
    assert engine.can_find(OPTIONS)
    refined = replace(OPTIONS, use_m2m=True)
    assert not engine.can_find(refined)
    with pytest.raises(ValueError, match="rows"):
        engine.begin_find(embedding, some_points(WHOLE, 3), WHOLE, refined)
    with pytest.raises(ValueError, match="pred_iou_thresh"):
        engine.begin_find(embedding, some_points(WHOLE, 3), WHOLE, replace(OPTIONS, pred_iou_thresh=None))
    for count in (0, 65):
        with pytest.raises(ValueError, match="1 to 64 points"):
            engine.begin_find(embedding, some_points(WHOLE, count), WHOLE, OPTIONS)


def test_numbers_that_overflow_are_an_error(scene: Scene) -> None:
    embedding: Any = scene.embedding(WHOLE.crop)
    broken = replace(embedding, row=torch.full_like(embedding.row, float("nan")))
    with pytest.raises(InternalError, match="precision"):
        scene.engine.begin_find(broken, some_points(WHOLE, 3), WHOLE, OPTIONS)()


def test_everything_runs_once_at_the_start(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    grids = scene.engine.grids
    assert grids.warm_up()
    monkeypatch.setattr(grids, "_steps", None)

    def full(*_: object) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(grids, "_made", full)
    assert not grids.warm_up()
    assert "no memory left" in caplog.text


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_compiled_code_takes_its_place_if_it_is_right(
    scene: Scene, factor: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = []

    def load(_: Path, step: nn.Module, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
        def compiled(*inputs: Tensor) -> tuple[Tensor, ...]:
            calls.append(tuple(inputs[1].shape))
            logits, *others = step(*inputs)
            return (logits * factor, *others)

        return compiled

    monkeypatch.setattr(finding, "load_compiled", load)
    grids = scene.engine.grids
    monkeypatch.setattr(grids, "_steps", grids._steps)  # as it was, afterwards
    if factor == 1:
        grids.use_compiled(tmp_path)
    else:
        with pytest.raises(SetupError, match="other masks"):
            grids.use_compiled(tmp_path)
    scene.engine.begin_find(scene.embedding(WHOLE.crop), some_points(WHOLE, 3), WHOLE, OPTIONS)()
    assert calls == [(64, 2, 3)] * (2 if factor == 1 else 1)

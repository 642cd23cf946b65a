"""Everything mode on real weights, in process, against the published loop (``tests/oracles/everything.py``)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.integration.exported import Exports
from tests.oracles.everything_runs import Runner, compare, looks_like_a_coin
from triton_sam.engines.onnx import OnnxEngine
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec, Precision, Role

pytestmark = pytest.mark.triton
PICTURES = {"coffee": "coffee.png", "coins": "coins.png", "cat": "chelsea.png"}
LEAST_IOU, MOST_UNMATCHED = 0.99, 0.02
#: (engine of the package, engine of the oracle)
Engines = Callable[[str], tuple[OnnxEngine, OnnxEngine]]


@pytest.fixture(scope="module")
def plain(graphs: dict[Role, Path], real_spec: ModelSpec) -> OnnxEngine:
    """The published graphs, unchanged."""
    return OnnxEngine(real_spec, graphs[Role.ENCODER], graphs[Role.DECODER])


@pytest.fixture(scope="module")
def engines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engines:
    """A model's fast decoder for the package and its plain one for the oracle, which share embeddings."""
    pytest.importorskip("onnx")
    from triton_sam.export.cpu_decoder import make_cpu_decoder

    made: dict[str, tuple[OnnxEngine, OnnxEngine]] = {}

    def make(model_id: str) -> tuple[OnnxEngine, OnnxEngine]:
        if model_id not in made:
            if model_id == "sam2:tiny":
                spec: ModelSpec = request.getfixturevalue("real_spec")
                files = request.getfixturevalue("graphs")
                encoder, decoder = files[Role.ENCODER], files[Role.DECODER]
            else:
                exports: Exports = request.getfixturevalue("exports")
                spec, folder = get_spec(model_id), exports.export(model_id, Precision.FP32)
                encoder, decoder = folder / "encoder.onnx", folder / "decoder.onnx"
            fast = make_cpu_decoder(decoder, tmp_path_factory.mktemp("fast") / "decoder.onnx", spec.graphs)
            assert fast is not None
            made[model_id] = OnnxEngine(spec, encoder, fast), OnnxEngine(spec, encoder, decoder)
        return made[model_id]

    return make


def picture(photographs: Path, name: str) -> Image.Image:
    with Image.open(photographs / PICTURES[name]) as opened:
        return opened.convert("RGB")


def test_a_small_grid(plain: OnnxEngine, photographs: Path) -> None:
    """Each point is decoded once, for both."""
    runner = Runner(picture(photographs, "coffee"), plain, plain)
    options = {"points_per_side": 8, "points_per_batch": 8}
    found, expected = runner.fast(**options), runner.oracle(**options)
    agreed = compare(found, expected)
    assert len(expected) >= 2
    assert agreed.mean_iou >= LEAST_IOU
    assert agreed.unmatched == 0
    assert found.boxes.tolist() == [one.box for one in expected]


@pytest.mark.part("everything")
@pytest.mark.parametrize("name", PICTURES)
@pytest.mark.parametrize("model_id", ["sam2:tiny", pytest.param("sam1:mobile", marks=pytest.mark.torch)])
@pytest.mark.parametrize("side", [32, 16])
def test_masks_are_those_of_the_published_loop(
    engines: Engines,
    photographs: Path,
    record_property: Callable[[str, object], None],
    model_id: str,
    name: str,
    side: int,
) -> None:
    found, coins = check(engines(model_id), picture(photographs, name), points_per_side=side)
    record_property("masks", found)
    if name == "coins":
        record_property("coins of 24", coins)
        assert coins >= 20


@pytest.mark.part("everything")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("coins", {"points_per_side": 16, "crop_n_layers": 1, "crop_n_points_downscale_factor": 2}),
        ("coffee", {"points_per_side": 8, "use_m2m": True}),
        ("cat", {"points_per_side": 16, "min_mask_region_area": 200}),
    ],
    ids=["crops", "m2m", "small regions"],
)
def test_options(engines: Engines, photographs: Path, name: str, options: dict[str, Any]) -> None:
    check(engines("sam2:tiny"), picture(photographs, name), **options)


def check(pair: tuple[OnnxEngine, OnnxEngine], image: Image.Image, **options: Any) -> tuple[int, int]:
    """Compares both; the number of masks, and of those that look like coins."""
    runner = Runner(image, *pair)
    found, expected = runner.fast(**options), runner.oracle(**options)
    agreed = compare(found, expected)
    assert len(expected) >= 3
    assert agreed.mean_iou >= LEAST_IOU, str(agreed)
    assert agreed.unmatched <= MOST_UNMATCHED, str(agreed)
    coins = [looks_like_a_coin(mask.pixels()) for mask in found.masks]
    assert sum(coins) == sum(looks_like_a_coin(one.mask) for one in expected)
    return len(found), sum(coins)

"""The encoders for CPUs of the default model against the plain one, on the real weights.

For every commit: that all of the graph is rewritten. How far masks agree, and the encoder that is partly in 8 bits,
belong to ``make test-all``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testkit.encoder_agreement import EXACT_IOU, UNSEEN, Agreement, agreement, pictures
from tests.integration.conftest import ExportTrial
from tests.integration.reference import iou
from tests.integration.serve_folder import serve_folder
from triton_sam import SAM2TritonClient
from triton_sam.core.cpu_features import has_dot_products
from triton_sam.export.cpu_encoder import MOST_ERROR, MOST_ROUNDING, compare, make_cpu_encoder
from triton_sam.export.encoder_rewrites import (
    count_attentions,
    fuse_attention,
    join_convolutions,
    split_projections,
)
from triton_sam.export.onnx_graph import Graph
from triton_sam.export.ort_to_onnx import as_onnx
from triton_sam.export.rewrite_check import IncompleteRewrite
from triton_sam.export.window_tiles import count_windowed_blocks, tile_windows
from triton_sam.models.specs import EIGHT_BIT_ENCODER_FILE, GRAPHS_FILE, ModelSpec, Role, graphs_from_json
from triton_sam.models.weights import WeightStore
from triton_sam.repository.setup import SetupRequest, set_up

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.triton
only_in_test_all = pytest.mark.part("masks")


@pytest.fixture(scope="module")
def plain(graphs: dict[Role, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_onnx(graphs[Role.ENCODER], tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def exact(plain: Path, real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_cpu_encoder(plain, tmp_path_factory.mktemp("exact") / "encoder.onnx", real_spec.graphs)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def fast(plain: Path, real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_cpu_encoder(plain, tmp_path_factory.mktemp("fast") / "encoder.onnx", real_spec.graphs, eight_bits=True)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def found(plain: Path, fast: Path, graphs: dict[Role, Path], real_spec: ModelSpec) -> Agreement:
    """32 prompts on each of the page's photographs."""
    parts = [agreement(plain, fast, graphs[Role.DECODER], real_spec, picture) for picture in list(pictures())[:5]]
    return Agreement.joined(parts)


@pytest.fixture(scope="module")
def baseline(plain: Path, exact: Path, graphs: dict[Role, Path], real_spec: ModelSpec) -> Agreement:
    """The same with the encoder that differs by rounding only: what this processor does by itself."""
    parts = [agreement(plain, exact, graphs[Role.DECODER], real_spec, picture) for picture in list(pictures())[:5]]
    return Agreement.joined(parts)


def test_all_of_it_is_rewritten(plain: Path, real_spec: ModelSpec) -> None:
    """Counted in the graph and by the architecture alike; nothing is run."""
    model = onnx.load(str(plain))
    graph = Graph(model)
    attentions, blocks = count_attentions(graph), count_windowed_blocks(graph)
    assert attentions == sum(real_spec.architecture.depths)
    assert join_convolutions(graph) == len(real_spec.encoder.outputs) - 1
    assert split_projections(graph) == attentions
    assert fuse_attention(graph) == attentions
    assert blocks > 1
    assert tile_windows(graph) == blocks


@only_in_test_all
def test_what_8_bits_change(
    found: Agreement, baseline: Agreement, record_property: Callable[[str, object], None]
) -> None:
    """Recorded with the float32 encoder's figures of the same run beside. Bounds are on means: clicks between two
    objects choose another mask, and low scores have no mask to agree about."""
    for name, one in (("float32", baseline), ("8-bit", found)):
        record_property(f"{name}: clicks that choose another mask, %", round(100 * float(one.flipped.mean()), 2))
        record_property(f"{name}: mask IoU, mean", round(float(one.best.mean()), 4))
        record_property(f"{name}: mask IoU, worst", round(float(one.best.min()), 4))
    assert baseline.best[~baseline.flipped].min() >= EXACT_IOU
    assert baseline.margins.max() <= 1e-3, "rounding chose another mask where the scores are apart"
    assert found.flipped.mean() <= 0.05
    assert found.best.mean() >= 0.98
    assert found.best[~found.flipped].mean() >= 0.98


@only_in_test_all
def test_masks_agree_on_other_photographs(
    plain: Path, fast: Path, graphs: dict[Role, Path], real_spec: ModelSpec
) -> None:
    """Which products are in 8 bits was settled with the photographs above."""
    parts = [agreement(plain, fast, graphs[Role.DECODER], real_spec, picture) for picture in pictures(UNSEEN)]
    assert Agreement.joined(parts).best.mean() >= 0.98


@only_in_test_all
def test_a_smaller_file(plain: Path, fast: Path) -> None:
    assert fast.stat().st_size < 0.65 * plain.stat().st_size


@only_in_test_all
def test_fine_features_are_nearly_untouched(plain: Path, fast: Path, real_spec: ModelSpec) -> None:
    """The finest leave the network before its first product in 8 bits, the others soon after."""
    errors = compare(plain, fast, real_spec.graphs)
    embedding = errors.pop(real_spec.encoder.embedding)
    assert min(errors.values()) <= 1e-4
    assert max(errors.values()) <= 0.01
    assert embedding <= MOST_ERROR


@pytest.mark.part("exports")
@pytest.mark.parametrize("model_id", ["sam1:mobile", "sam2.1:tiny"])
def test_exports_are_made_faster_or_left_alone(model_id: str, export_trial: ExportTrial, tmp_path: Path) -> None:
    """Whole or not at all; set-up makes encoders for CPUs of ready-made graphs alone."""
    folder = export_trial(model_id)
    graphs = graphs_from_json((folder / GRAPHS_FILE).read_bytes())
    target = tmp_path / "fast.onnx"
    with contextlib.suppress(IncompleteRewrite):
        assert make_cpu_encoder(folder / "encoder.onnx", target, graphs) in (target, None)
    assert not target.exists() or max(compare(folder / "encoder.onnx", target, graphs).values()) <= MOST_ROUNDING


@only_in_test_all
@pytest.mark.skipif(not has_dot_products(), reason="no 8-bit dot products here: float32 is served")
def test_8_bits_are_served_where_they_were_set_up(
    embedded_server: None,
    real_spec: ModelSpec,
    store: WeightStore,
    photographs: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Masks are nearly those of float32, and not the very same; answers tell which it was, and keys are not shared."""
    monkeypatch.delenv("TRITON_SAM_FAST_ENCODER", raising=False)
    set_up(SetupRequest(real_spec, store, tmp_path / "models", fast_encoder=True))
    assert (tmp_path / "models" / real_spec.family / "1" / EIGHT_BIT_ENCODER_FILE).is_file()
    assert not (tmp_path / "models" / f"{real_spec.family}_encoder" / "1" / EIGHT_BIT_ENCODER_FILE).exists()
    logits, keys = {}, {}
    for numbers, settings in (("float32", {"fast_encoder": "0"}), ("8-bit", {})):
        with (
            serve_folder(tmp_path / "models", tmp_path / "home", **settings) as running,
            SAM2TritonClient(running.urls["HTTP"], real_spec.family) as client,
        ):
            client.set_image(photographs / "coffee.png")
            logits[numbers] = client.predict([[360.0, 290.0]], [1])[0][0, 0]
            told = client.segment(points=[[360.0, 290.0]], labels=[1]).result
            assert told["encoder"] == numbers
            keys[numbers] = told["image_key"]
    assert iou(logits["8-bit"] > 0, logits["float32"] > 0) >= 0.98
    assert not np.array_equal(logits["8-bit"], logits["float32"]), "the flag changed nothing"
    assert keys["8-bit"] != keys["float32"]

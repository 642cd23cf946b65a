"""The encoders for CPUs of the default model against the plain one, on the real weights.

For every commit: that all of the graph is rewritten. Masks, and the encoder that is partly in 8 bits, belong to
``make test-all``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.integration.conftest import ExportTrial
from tests.integration.reference import iou
from tests.integration.serve_folder import serve_folder
from triton_sam import SAM2TritonClient
from triton_sam.bench.cpu_encoder import LEAST_IOU, UNSEEN, Agreement, agreement, pictures
from triton_sam.export.completeness import IncompleteRewrite
from triton_sam.export.convert import as_onnx
from triton_sam.export.cpu_encoder import MOST_ERROR, MOST_ROUNDING, compare, make_cpu_encoder
from triton_sam.export.eight_bits import has_dot_products
from triton_sam.export.graph_rewrites import (
    Graph,
    count_attentions,
    fuse_attention,
    join_convolutions,
    split_projections,
)
from triton_sam.export.window_tiles import count_windowed_blocks, tile_windows
from triton_sam.setup_models import set_up
from triton_sam.specs import GRAPHS_FILE, ModelSpec, Role, graphs_from_json
from triton_sam.weights import WeightStore

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.triton


def only_in_test_all(test: Callable[..., None]) -> Callable[..., None]:
    """Encodes photographs: the figures of the encoder in 8 bits, which is made only where it is asked for."""
    return pytest.mark.part("masks")(pytest.mark.patient(test))


@pytest.fixture(scope="module")
def plain(graphs: dict[Role, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return as_onnx(graphs[Role.ENCODER], tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def fast(plain: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("fast") / "encoder.onnx"
    made = make_cpu_encoder(plain, target, spec.graphs, eight_bits=True)
    assert made is not None
    return made


@pytest.fixture(scope="module")
def found(plain: Path, fast: Path, graphs: dict[Role, Path], spec: ModelSpec) -> Agreement:
    """32 prompts on each of the page's photographs."""
    parts = [agreement(plain, fast, graphs[Role.DECODER], spec, picture) for picture in list(pictures())[:5]]
    return Agreement.joined(parts)


def test_all_of_it_is_rewritten(plain: Path, spec: ModelSpec) -> None:
    """Counted in the graph and by the architecture alike; nothing is run."""
    model = onnx.load(str(plain))
    graph = Graph(model)
    attentions, blocks = count_attentions(graph), count_windowed_blocks(graph)
    assert attentions == sum(spec.architecture.depths)
    assert join_convolutions(graph) == len(spec.encoder.outputs) - 1
    assert split_projections(graph) == attentions
    assert fuse_attention(graph) == attentions
    assert blocks > 1
    assert tile_windows(graph) == blocks


@only_in_test_all
def test_without_8_bits_nothing_but_rounding_changes(plain: Path, spec: ModelSpec, tmp_path: Path) -> None:
    made = make_cpu_encoder(plain, tmp_path / "exact.onnx", spec.graphs)
    assert made is not None
    assert max(compare(plain, made, spec.graphs).values()) <= MOST_ROUNDING


@only_in_test_all
def test_masks_agree(found: Agreement) -> None:
    """Means: single clicks between two objects flip, and low scores have no mask to agree about."""
    assert found.best.mean() >= LEAST_IOU
    assert found.best[~found.flipped].mean() >= LEAST_IOU


@only_in_test_all
def test_masks_agree_on_other_photographs(plain: Path, fast: Path, graphs: dict[Role, Path], spec: ModelSpec) -> None:
    """Which products are in 8 bits was settled with the photographs above."""
    parts = [agreement(plain, fast, graphs[Role.DECODER], spec, picture) for picture in pictures(UNSEEN)]
    assert Agreement.joined(parts).best.mean() >= LEAST_IOU


@only_in_test_all
def test_few_clicks_choose_another_mask(found: Agreement) -> None:
    assert found.flipped.mean() <= 0.05


@only_in_test_all
def test_a_smaller_file(plain: Path, fast: Path) -> None:
    assert fast.stat().st_size < 0.65 * plain.stat().st_size


@only_in_test_all
def test_fine_features_are_nearly_untouched(plain: Path, fast: Path, spec: ModelSpec) -> None:
    """The finest leave the network before its first product in 8 bits, the others soon after."""
    errors = compare(plain, fast, spec.graphs)
    embedding = errors.pop(spec.encoder.embedding)
    assert min(errors.values()) <= 1e-4
    assert max(errors.values()) <= 0.01
    assert embedding <= MOST_ERROR


@pytest.mark.part("exports")
@pytest.mark.patient
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
@pytest.mark.skipif(not has_dot_products(), reason="no 8-bit dot products here: the exact encoder is served")
def test_the_server_takes_8_bits_where_it_is_told_to(
    embedded_server: None, spec: ModelSpec, store: WeightStore, photographs: Path, tmp_path: Path
) -> None:
    """Masks are nearly those of the plain encoder, and not the very same."""
    set_up(spec, store, tmp_path / "models", fast_encoder=True)
    assert list((tmp_path / "models" / spec.family / "1").glob("encoder_cpu*.onnx"))
    assert not list((tmp_path / "models" / f"{spec.family}_encoder" / "1").glob("encoder_cpu*.onnx"))
    logits = {}
    for name, settings in (("plain", {"fast_encoder": "0"}), ("fast", {"fast_encoder": "1"})):
        with (
            serve_folder(tmp_path / "models", tmp_path / "home", **settings) as running,
            SAM2TritonClient(running.urls["HTTP"], spec.family) as client,
        ):
            client.set_image(photographs / "coffee.png")
            logits[name] = client.predict([[360.0, 290.0]], [1])[0][0, 0]
    assert iou(logits["fast"] > 0, logits["plain"] > 0) >= LEAST_IOU
    assert not np.array_equal(logits["fast"], logits["plain"]), "the flag changed nothing"

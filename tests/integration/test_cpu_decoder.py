"""The fast decoder of the default model, and of exports, against the plain one: the same masks.

Exports at full size belong to ``make test-all``; small ones are in ``tests/unit/export/test_decoders_for_cpus.py``.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.integration.conftest import ExportTrial
from tests.integration.reference import iou
from tests.integration.serve_folder import serve_folder
from triton_sam import SAM2TritonClient
from triton_sam.export.cpu_decoder import MOST_DIFFERENCE, make_cpu_decoder
from triton_sam.export.decoder_comparison import Trial, largest_difference
from triton_sam.models.specs import GRAPHS_FILE, ModelSpec, Role, graphs_from_json
from triton_sam.models.weights import WeightStore
from triton_sam.repository.setup import SetupRequest, set_up

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.triton
#: Not among those by which a decoder is judged at set-up.
OTHERS = [Trial(2, 17), Trial(1, 0, box=True), Trial(4, 3, box=True, mask=True, multimask=True)]


@pytest.fixture(scope="module")
def fast(graphs: dict[Role, Path], real_spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_cpu_decoder(graphs[Role.DECODER], tmp_path_factory.mktemp("fast") / "decoder.onnx", real_spec.graphs)
    assert made is not None
    return made


def test_answers_are_the_same(fast: Path, graphs: dict[Role, Path], real_spec: ModelSpec) -> None:
    assert largest_difference(graphs[Role.DECODER], fast, real_spec.graphs, OTHERS) <= MOST_DIFFERENCE


def test_all_of_it_is_rewritten(fast: Path) -> None:
    kinds = {node.op_type for node in onnx.load(str(fast)).graph.node}
    assert "If" in kinds
    assert not {"Conv", "ConvTranspose", "Tile"} & kinds


@pytest.mark.part("exports")
@pytest.mark.parametrize("model_id", ["sam1:mobile", "sam1:vit_b", "sam2.1:tiny", "sam3:full"])
def test_exports(model_id: str, export_trial: ExportTrial, tmp_path: Path) -> None:
    folder = export_trial(model_id)
    graphs = graphs_from_json((folder / GRAPHS_FILE).read_bytes())
    lines: list[str] = []
    made = make_cpu_decoder(folder / "decoder.onnx", tmp_path / "fast.onnx", graphs, lines.append)
    assert made is not None
    assert "5 attentions and 2 upscalings" in lines[0]
    assert largest_difference(folder / "decoder.onnx", made, graphs, OTHERS) <= MOST_DIFFERENCE


@pytest.mark.part("masks")
def test_the_server_takes_it_unless_told_otherwise(
    embedded_server: None, real_spec: ModelSpec, store: WeightStore, photographs: Path, tmp_path: Path
) -> None:
    """Masks are those of the plain decoder, and not to the last bit."""
    set_up(SetupRequest(real_spec, store, tmp_path / "models", fast_decoder=True))
    assert (tmp_path / "models" / real_spec.family / "1" / "decoder_cpu.onnx").is_file()
    assert not (tmp_path / "models" / f"{real_spec.family}_decoder" / "1" / "decoder_cpu.onnx").exists()
    logits = {}
    for flag in ("0", "1"):
        with (
            serve_folder(tmp_path / "models", tmp_path / "home", fast_decoder=flag) as running,
            SAM2TritonClient(running.urls["HTTP"], real_spec.family) as client,
        ):
            client.set_image(photographs / "coffee.png")
            logits[flag] = client.predict([[360.0, 290.0]], [1])[0][0, 0]
    assert iou(logits["1"] > 0, logits["0"] > 0) >= 0.9999
    assert not np.array_equal(logits["0"], logits["1"]), "the flag changed nothing"

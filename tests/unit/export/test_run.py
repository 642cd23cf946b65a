from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.export import official
from tests.unit.export.small import Small, assert_close, drawn_pixels, session, small_spec
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.export import run
from triton_sam.export.checkpoint import load_weights
from triton_sam.export.parity_reference import embeddings_of
from triton_sam.export.parity_report import Comparison, Report
from triton_sam.export.random_weights import save_as_folder
from triton_sam.export.run import ExportOptions, checkpoint_sha256, export_checkpoint
from triton_sam.models.specs import Precision, exported_graphs, graphs_from_json, graphs_to_json
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch

SPEC = small_spec("sam1:vit_b")
SMALL = ExportOptions(image_size=256, seed=3)
WHOLE = {"encoder.onnx", "decoder.onnx", "graphs.json", "report.json"}


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="session")
def official_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("official") / "sam_vit_b.pth"
    torch.save(official.tensors(official.sam1(SPEC.architecture, SPEC.side)), path)
    return path


# a real one


@pytest.mark.parametrize("kind", ["official", pytest.param("hub", marks=pytest.mark.part("exports"))])
def test_from_a_checkpoint_to_a_folder(kind: str, official_file: Path, vit: Small, tmp_path: Path) -> None:
    path = save_as_folder(vit.network, tmp_path / "hub") if kind == "hub" else official_file
    steps: list[str] = []
    exported = export_checkpoint(SPEC, path, tmp_path / "deep" / "out", SMALL, steps.append)
    assert exported.folder == tmp_path / "deep" / "out"
    assert names_in(exported.folder) == WHOLE
    assert steps == ["writing the encoder", "writing the decoder", "checking against torch"]
    graphs = exported_graphs(SPEC.architecture, 256)
    assert exported.spec.graphs == graphs_from_json((exported.folder / "graphs.json").read_bytes()) == graphs
    assert exported.spec.id == "sam1:vit_b"

    report = json.loads((exported.folder / "report.json").read_text(), parse_constant=pytest.fail)
    assert report == exported.report
    assert report["model"] == "sam1:vit_b"
    assert report["exporter"] == run.EXPORTER
    assert report["checkpoint"] == {"name": path.name, "sha256": checkpoint_sha256(path), "unused_keys": 0}
    assert report["image_size"] == 256
    assert report["opset"]["encoder"] in (17, 18)
    assert set(report["files"]) == {"encoder.onnx", "decoder.onnx"}
    assert all((exported.folder / name).stat().st_size == size for name, size in report["files"].items())
    assert report["versions"]["torch"] == torch.__version__
    assert [row["output"] for row in report["summary"]] == ["image_embeddings", "masks", "iou_predictions"]
    assert all(row["share"] <= 1e-3 for row in report["summary"])
    assert report["parity"]["passed"] is True
    assert {entry["image"] for entry in report["parity"]["comparisons"]} == {"drawn", "photograph"}
    assert report["parity"]["seed"] == SMALL.seed

    network = build(SPEC.architecture, 256)
    load_weights(network, path, SPEC)
    pixels = drawn_pixels(256, seed=3)
    with torch.inference_mode():
        wanted = embeddings_of(network, SPEC.architecture, pixels).numpy()
    (given,) = session(exported.folder / "encoder.onnx").run(["image_embeddings"], {"image": pixels})
    assert_close(given, wanted)


# false ones, for what happens around them


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Graphs that are a few bytes and a check that says what it is told to."""
    told: dict[str, Any] = {"files": {"encoder.onnx": b"encoder", "decoder.onnx": b"decoder"}, "passes": True}

    def write(_network: object, _spec: object, _graphs: object, folder: Path, _say: object) -> Mapping[str, int]:
        for name, content in told["files"].items():
            (folder / name).write_bytes(content)
        if "error" in told:
            raise told["error"]
        return {"encoder": 17, "decoder": 17}

    def check(_network: object, _spec: object, graphs: Any, _folder: object, seed: int) -> dict[str, Report]:
        difference = 1e-5 if told["passes"] else 0.5
        report = Report(
            graphs.precision, [Comparison("drawn", "masks", difference, difference, 1.0, prompt="box")], seed
        )
        report.judge()
        return {"parity": report}

    monkeypatch.setattr(run, "write_graphs", write)
    monkeypatch.setattr(run, "_check", check)
    return told


def test_a_failed_check_leaves_nothing(quick: dict[str, Any], official_file: Path, tmp_path: Path) -> None:
    quick["passes"] = False
    with pytest.raises(SetupError) as caught:
        export_checkpoint(SPEC, official_file, tmp_path / "out", SMALL)
    assert str(caught.value) == (
        "the export of sam1:vit_b does not equal torch, so it was not kept: "
        "masks on the drawn image box differs by 0.5 (deviation 1) (seed 3)"
    )
    assert not (tmp_path / "out").exists()


def older_export(folder: Path) -> dict[str, bytes]:
    """An export with external data, and a file of the user's own."""
    folder.mkdir()
    content = {
        "encoder.onnx": b"old encoder",
        "encoder.onnx_data": b"old numbers",
        "decoder.onnx": b"old decoder",
        "graphs.json": graphs_to_json(SPEC.graphs).encode(),
        "report.json": b"{}",
        "notes.txt": b"mine",
    }
    for name, data in content.items():
        (folder / name).write_bytes(data)
    return content


#: What goes wrong -> (what is raised inside, what comes out).
TROUBLES: dict[str, tuple[BaseException | None, type[BaseException]]] = {
    "check": (None, SetupError),
    "disk": (OSError(28, "No space left on device"), SetupError),
    "torch": (RuntimeError("tracing failed"), RuntimeError),
    "interrupt": (KeyboardInterrupt(), KeyboardInterrupt),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_failed_export_leaves_what_was_there(
    trouble: str, quick: dict[str, Any], official_file: Path, tmp_path: Path
) -> None:
    before = older_export(tmp_path / "out")
    error, expected = TROUBLES[trouble]
    quick |= {"passes": False} if error is None else {"error": error}
    with pytest.raises(expected):
        export_checkpoint(SPEC, official_file, tmp_path / "out", SMALL)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.usefixtures("quick")
def test_an_older_export_is_replaced(official_file: Path, tmp_path: Path) -> None:
    older_export(tmp_path / "out")
    export_checkpoint(SPEC, official_file, tmp_path / "out", SMALL)
    assert names_in(tmp_path / "out") == WHOLE | {"notes.txt"}  # the data of the older encoder are gone
    assert (tmp_path / "out" / "encoder.onnx").read_bytes() == b"encoder"
    assert (tmp_path / "out" / "decoder.onnx").read_bytes() == b"decoder"
    assert (tmp_path / "out" / "notes.txt").read_bytes() == b"mine"
    assert json.loads((tmp_path / "out" / "report.json").read_text())["model"] == "sam1:vit_b"


def test_external_data_come_along(quick: dict[str, Any], official_file: Path, tmp_path: Path) -> None:
    quick["files"]["encoder.onnx_data"] = b"numbers"
    exported = export_checkpoint(SPEC, official_file, tmp_path / "out", SMALL)
    assert names_in(exported.folder) == WHOLE | {"encoder.onnx_data"}
    assert exported.report["files"]["encoder.onnx_data"] == 7


@pytest.mark.usefixtures("quick")
def test_a_partly_published_export_is_no_export(
    official_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older_export(tmp_path / "out")
    replace = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if self.name == "decoder.onnx":
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SetupError, match="Input/output error"):
        export_checkpoint(SPEC, official_file, tmp_path / "out", SMALL)
    assert not (tmp_path / "out" / "graphs.json").exists()  # what says that an export is there
    assert not [name for name in names_in(tmp_path / "out") if name.startswith(".")]


@pytest.mark.usefixtures("quick")
def test_a_folder_that_cannot_be_created(official_file: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(SetupError, match=rf"cannot write the export to {tmp_path}/file/out: Not a directory"):
        export_checkpoint(SPEC, official_file, tmp_path / "file" / "out", SMALL)


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.usefixtures("quick")
def test_every_precision_has_a_report_in_strict_json(precision: Precision, official_file: Path, tmp_path: Path) -> None:
    export_checkpoint(SPEC, official_file, tmp_path, ExportOptions(image_size=256, precision=precision))
    report = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert report["parity"]["precision"] == precision.value
    assert graphs_from_json((tmp_path / "graphs.json").read_bytes()).precision is precision


@pytest.mark.usefixtures("quick")
def test_the_size_of_training_is_the_default(official_file: Path, tmp_path: Path) -> None:
    exported = export_checkpoint(SPEC, official_file, tmp_path)
    assert exported.report["image_size"] == exported.spec.side == 1024


def test_a_device_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidInput, match="there is no CUDA device here: use --device cpu"):
        export_checkpoint(SPEC, tmp_path / "x.pt", tmp_path / "out", ExportOptions(device="cuda"))
    assert not (tmp_path / "out").exists()


# checksums


def test_the_checksum_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"abc")
    assert checkpoint_sha256(tmp_path / "a.pt") == hashlib.sha256(b"abc").hexdigest()


def test_the_checksum_of_a_folder(tmp_path: Path) -> None:
    for name, content in (("model-2.safetensors", b"two"), ("model-1.safetensors", b"one"), ("config.json", b"{}")):
        (tmp_path / name).write_bytes(content)
    assert checkpoint_sha256(tmp_path) == hashlib.sha256(b"onetwo").hexdigest()
    (tmp_path / "model-2.safetensors").write_bytes(b"TWO")
    assert checkpoint_sha256(tmp_path) == hashlib.sha256(b"oneTWO").hexdigest()


# trial


def test_random_weights_keep_signals_alive(vit: Small) -> None:
    assert 0.1 < float(np.std(vit.embeddings["image_embeddings"])) < 10
    masks, _ = vit.decode(vit.embedding() | vit.points(2, 1))
    assert 0.01 < float(masks.std()) < 100
    assert math.isfinite(float(masks.sum()))


def test_a_shrunk_model_stays_its_family(vit: Small) -> None:
    assert (vit.spec.id, vit.spec.family, vit.spec.resize) == ("sam1:vit_b", "sam1", SPEC.resize)
    assert sum(parameter.numel() for parameter in vit.network.parameters()) < 6e6

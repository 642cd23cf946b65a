from __future__ import annotations

import builtins
import dataclasses
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.helpers import Steps
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.export import run
from triton_sam.export.run import AUTO, Exported, ExportOptions, checkpoint_sha256
from triton_sam.installation import install_extra
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import Precision, graphs_to_json
from triton_sam.models.weights import WeightStore, silent
from triton_sam.repository.export_cache import ExportRequest, cached_export, export_model, forget_exports

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.torch

SPEC = get_spec("sam1:vit_b")


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "home")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "mine.pt"
    path.write_bytes(b"weights")
    return path


class FalseExporter:
    """Takes the place of the exporter and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, Path, Path, ExportOptions]] = []

    def __call__(
        self, model: Any, checkpoint: Path, folder: Path, options: ExportOptions, say: Callable[[str], None]
    ) -> Exported:
        self.asked.append((model, checkpoint, folder, options))
        say("exporting")
        folder.mkdir(parents=True, exist_ok=True)
        content = f"graph {len(self.asked)}"
        for name in ("encoder.onnx", "decoder.onnx"):
            (folder / name).write_text(content)
        spec = SPEC if model == AUTO else model
        report = {
            "model": spec.id,
            "exporter": run.EXPORTER,
            "checkpoint": {"name": checkpoint.name, "sha256": checkpoint_sha256(checkpoint)},
            "files": {"encoder.onnx": len(content), "decoder.onnx": len(content)},
            "parity": {"seed": options.seed},
        }
        (folder / "report.json").write_text(json.dumps(report))
        (folder / "graphs.json").write_text(graphs_to_json(spec.graphs))
        return Exported(spec, folder, report)


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> FalseExporter:
    made = FalseExporter()
    monkeypatch.setattr(run, "export_checkpoint", made)
    return made


# made once


def test_an_export_is_made_once(store: WeightStore, checkpoint: Path, exporter: FalseExporter) -> None:
    said: list[str] = []
    request = ExportRequest(checkpoint)
    first = export_model(SPEC, store, request, silent, say=said.append)
    second = export_model(SPEC, store, request, silent, say=said.append)
    folder = store.home / "exports" / "sam1_vit_b-fp32"
    assert first == second
    assert first[0] == folder
    assert first[1]["model"] == "sam1:vit_b"
    assert exporter.asked == [(SPEC, checkpoint, folder, ExportOptions())]
    assert said == ["exporting", f"already exported, in {folder}"]


def test_a_checkpoint_is_identified_by_its_checksum_not_its_name(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter
) -> None:
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    moved = checkpoint.rename(checkpoint.with_name("renamed.pth"))
    export_model(SPEC, store, ExportRequest(moved), silent)
    assert len(exporter.asked) == 1


def test_another_checkpoint_is_exported_again(store: WeightStore, checkpoint: Path, exporter: FalseExporter) -> None:
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    checkpoint.write_bytes(b"better weights")
    folder, report = export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert len(exporter.asked) == 2
    assert report["checkpoint"]["sha256"] == checkpoint_sha256(checkpoint)
    assert (folder / "encoder.onnx").read_text() == "graph 2"


def test_another_seed_is_checked_and_so_exported_again(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter
) -> None:
    for seed in (None, 0, 7, 7, None):
        export_model(SPEC, store, ExportRequest(checkpoint, seed=seed), silent)
    assert [options.seed for *_, options in exporter.asked] == [0, 7]


def test_a_folder_of_weights_has_a_checksum_too(store: WeightStore, tmp_path: Path, exporter: FalseExporter) -> None:
    (tmp_path / "hub").mkdir()
    weights = tmp_path / "hub" / "model.safetensors"
    weights.write_bytes(b"one")
    for _ in range(2):
        export_model(SPEC, store, ExportRequest(tmp_path / "hub"), silent)
    assert len(exporter.asked) == 1
    weights.write_bytes(b"two")
    export_model(SPEC, store, ExportRequest(tmp_path / "hub"), silent)
    assert len(exporter.asked) == 2


def test_a_newer_exporter_exports_again(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    monkeypatch.setattr(run, "EXPORTER", run.EXPORTER + 1)
    for _ in range(2):
        export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert len(exporter.asked) == 2


@pytest.mark.parametrize("missing", ["encoder.onnx", "decoder.onnx", "graphs.json", "report.json"])
def test_half_an_export_is_made_again(
    missing: str, store: WeightStore, checkpoint: Path, exporter: FalseExporter
) -> None:
    folder, _ = export_model(SPEC, store, ExportRequest(checkpoint), silent)
    (folder / missing).unlink()
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert len(exporter.asked) == 2
    assert (folder / missing).exists()


@pytest.mark.parametrize(
    ("name", "content"), [("encoder.onnx", "gra"), ("encoder.onnx", "grapf 1"), ("graphs.json", "")]
)
def test_a_damaged_export_is_made_again(
    name: str, content: str, store: WeightStore, checkpoint: Path, exporter: FalseExporter
) -> None:
    folder, _ = export_model(SPEC, store, ExportRequest(checkpoint), silent)
    (folder / name).write_text(content)
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert (folder / "encoder.onnx").read_text() == "graph 2"
    assert len(exporter.asked) == 2


@pytest.mark.parametrize("report", ["", "{", "[]", "3", "{}", '{"files": 3}', '{"files": {}, "checkpoint": null}'])
def test_a_damaged_report_is_none(report: str, store: WeightStore, checkpoint: Path, exporter: FalseExporter) -> None:
    folder, _ = export_model(SPEC, store, ExportRequest(checkpoint), silent)
    (folder / "report.json").write_text(report)
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert len(exporter.asked) == 2


def test_precisions_and_sizes_lie_side_by_side(store: WeightStore, checkpoint: Path, exporter: FalseExporter) -> None:
    requests = [
        ExportRequest(checkpoint),
        ExportRequest(checkpoint, precision=Precision.INT8),
        ExportRequest(checkpoint, image_size=512),
        ExportRequest(checkpoint, image_size=512, precision=Precision.FP16),
    ]
    for request in requests * 2:
        export_model(SPEC, store, request, silent)
    assert [folder.name for _, _, folder, _ in exporter.asked] == [
        "sam1_vit_b-fp32",
        "sam1_vit_b-int8",
        "sam1_vit_b-fp32-512px",
        "sam1_vit_b-fp16-512px",
    ]
    assert exporter.asked[3][3] == ExportOptions(512, "cpu", Precision.FP16)


# where to, and from what


def test_a_folder_of_the_users_own(
    store: WeightStore, checkpoint: Path, tmp_path: Path, exporter: FalseExporter
) -> None:
    for _ in range(2):  # what lies in a folder of the user's own is not trusted
        folder, _ = export_model(SPEC, store, ExportRequest(checkpoint), silent, tmp_path / "out")
        assert folder == tmp_path / "out"
    assert len(exporter.asked) == 2
    assert not store.home.exists()


def test_the_official_checkpoint_is_downloaded(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled: list[Any] = []

    def pull(_store: WeightStore, spec: Any, progress: Any) -> Path:
        pulled.append((spec.id, progress))
        return checkpoint

    monkeypatch.setattr(WeightStore, "pull_checkpoint", pull)
    progress = lambda _file, _step: Steps()  # noqa: E731
    export_model(SPEC, store, ExportRequest(), progress)
    export_model(SPEC, store, ExportRequest(), progress)
    assert pulled == [("sam1:vit_b", progress)] * 2
    assert len(exporter.asked) == 1


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (ExportRequest(device="cuda"), "there is no CUDA device here"),
        (ExportRequest(image_size=1000), "--image-size 1000 does not suit this model"),
        (ExportRequest(image_size=0), "--image-size 0 does not suit this model"),
    ],
)
def test_a_wrong_option_is_reported_before_anything_is_downloaded(
    request_: ExportRequest, told: str, store: WeightStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(WeightStore, "pull_checkpoint", lambda *_: pytest.fail("downloaded"))
    with pytest.raises(InvalidInput, match=told):
        export_model(SPEC, store, request_, silent)
    assert not store.home.exists()


def test_a_missing_checkpoint(store: WeightStore, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no checkpoint"):
        export_model(SPEC, store, ExportRequest(tmp_path / "nowhere.pt"), silent)
    assert not store.home.exists()


def test_a_tilde_is_the_users_home(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    export_model(SPEC, store, ExportRequest(Path("~/mine.pt")), silent)
    assert exporter.asked[0][1] == checkpoint


# auto


def test_auto_is_named_after_its_checkpoint(store: WeightStore, checkpoint: Path, exporter: FalseExporter) -> None:
    for _ in range(2):
        folder, report = export_model(None, store, ExportRequest(checkpoint), silent)
    assert folder == store.home / "exports" / "mine"
    assert report["model"] == "sam1:vit_b"
    assert [asked[0] for asked in exporter.asked] == [AUTO, AUTO]


@pytest.mark.parametrize("word", [".", "../sam2.1-hiera-tiny"])
def test_auto_with_a_folder(
    word: str, store: WeightStore, tmp_path: Path, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sam2.1-hiera-tiny").mkdir()
    monkeypatch.chdir(tmp_path / "sam2.1-hiera-tiny")
    folder, _ = export_model(None, store, ExportRequest(Path(word)), silent)
    assert folder == store.home / "exports" / "sam2.1-hiera-tiny"
    assert len(exporter.asked) == 1


def test_auto_without_a_checkpoint(store: WeightStore) -> None:
    with pytest.raises(SetupError, match="name a checkpoint"):
        export_model(None, store, ExportRequest(), silent)


# without torch


def test_what_an_export_needs_is_named(store: WeightStore, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_torch(monkeypatch)
    with pytest.raises(SetupError) as caught:
        export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert str(caught.value) == f"an export needs torch: {install_extra('export')}"
    assert not store.home.exists()


def test_the_command_line_without_torch(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'onnx', 'safetensors'):\n"
        "    sys.modules[name] = None\n"
        "from triton_sam import cli\n"
        "sys.argv = ['triton-sam', 'export', 'sam1:vit_b', '--checkpoint', 'x.pt']\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"TRITON_SAM_HOME": str(tmp_path), "PATH": ""},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: an export needs torch: ")
    assert done.stderr.endswith(f"pip install -e '{ROOT}[export]'\n")


def refuse_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name == "triton_sam.export.run":
            raise ImportError("No module named 'torch'", name="torch")
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_an_export_that_is_there_needs_no_torch(
    store: WeightStore, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was exported before torch was removed, or was copied here with the cache."""
    official = dataclasses.replace(SPEC.checkpoints[0], size=7, sha256=hashlib.sha256(b"weights").hexdigest())
    spec = dataclasses.replace(SPEC, checkpoints=(official,))
    store.blobs.mkdir(parents=True)
    store.path(official).write_bytes(b"weights")
    assert cached_export(spec, store) is None
    first = export_model(spec, store, ExportRequest(), silent)
    assert cached_export(spec, store) == first[0]
    refuse_torch(monkeypatch)
    assert export_model(spec, store, ExportRequest(), silent) == first
    for other in (ExportRequest(image_size=512), ExportRequest(precision=Precision.FP16), ExportRequest(seed=3)):
        with pytest.raises(SetupError, match="an export needs torch"):
            export_model(spec, store, other, silent)
    (first[0] / "encoder.onnx").write_text("damaged")
    with pytest.raises(SetupError, match="an export needs torch"):
        export_model(spec, store, ExportRequest(), silent)


def test_an_export_of_ones_own_checkpoint_is_not_the_models(
    store: WeightStore, checkpoint: Path, exporter: FalseExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_model(SPEC, store, ExportRequest(checkpoint), silent)
    assert cached_export(SPEC, store) is None
    refuse_torch(monkeypatch)
    with pytest.raises(SetupError, match="an export needs torch"):
        export_model(SPEC, store, ExportRequest(), silent)


# forgetting


def test_only_a_models_own_exports_are_forgotten(store: WeightStore) -> None:
    exports = store.home / "exports"
    for name in ("sam2_tiny-fp32", "sam2_tiny-int8-512px", "sam2.1_tiny-fp32", "sam2_tiny_mine", "mine"):
        (exports / name).mkdir(parents=True)
        (exports / name / "encoder.onnx").write_bytes(bytes(100))
        (exports / name / "report.json").write_bytes(bytes(10))
    assert forget_exports(get_spec("sam2:tiny"), store) == 220
    assert {path.name for path in exports.iterdir()} == {"sam2.1_tiny-fp32", "sam2_tiny_mine", "mine"}
    assert forget_exports(get_spec("sam2:tiny"), store) == 0


def test_nothing_to_forget(store: WeightStore) -> None:
    assert forget_exports(SPEC, store) == 0
    assert not store.home.exists()


@pytest.mark.parametrize(
    ("request_", "plain"),
    [
        (ExportRequest(), True),
        (ExportRequest(device="cuda"), True),
        (ExportRequest(Path("x.pt")), False),
        (ExportRequest(image_size=512), False),
        (ExportRequest(precision=Precision.FP16), False),
    ],
)
def test_what_ready_made_graphs_would_give_too(request_: ExportRequest, plain: bool) -> None:
    assert request_.is_plain is plain

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.unit.cli.helpers import assert_one_sentence, run_main
from triton_sam.cli import app
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import Precision
from triton_sam.models.weights import WeightStore
from triton_sam.repository import export_cache
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.segmenters import find_segmenters, write_models

runner = CliRunner()


# usage


@pytest.mark.parametrize(
    "words",
    [
        ["pull"],
        ["pull", "a", "b"],
        ["models", "rm"],
        ["models", "nonsense"],
        ["export"],
        ["export", "sam2:tiny", "sam2:small"],
        ["export", "sam2:tiny", "--image-size", "wide"],
        ["export", "sam2:tiny", "--precision", "fp8"],
        ["setup", "sam2:tiny", "--precision", "int4"],
        ["setup", "sam2:tiny", "--nonsense"],
    ],
)
def test_wrong_usage_exits_with_2(words: list[str]) -> None:
    assert runner.invoke(app.app, words).exit_code == 2


@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pull", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("models", "rm", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("models", "show", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("models", "show", "vlm:gpt"), "there is no vision-language model 'vlm:gpt'"),
        (("export", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("export", "sam2"), "there is no model 'sam2'"),
        (("export", "auto"), "name one with --checkpoint"),
        (("export", "sam2:tiny", "--device", "tpu"), "--device is cpu or cuda, not 'tpu'"),
        (("export", "sam2:tiny", "--device", "cuda"), "there is no CUDA device here: use --device cpu"),
        (("export", "sam2:tiny", "--image-size", "1000"), "--image-size 1000 does not suit this model"),
        (("export", "sam2:tiny", "--checkpoint", "missing.pt"), "there is no checkpoint missing.pt"),
        (("export", "auto", "--checkpoint", "missing.pt"), "there is no checkpoint missing.pt"),
        (("setup",), "name what to set up: an id such as sam2:tiny, a family (sam1, sam2, sam3) or all"),
        (("setup", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("setup", "sam2:tiny", "--device", "tpu"), "--device is cpu or cuda, not 'tpu'"),
        (("setup", "sam2:tiny", "--device", "cuda", "--precision", "fp16"), "there is no CUDA device here"),
        (("setup", "sam2:tiny", "--checkpoint", "missing.pt"), "there is no checkpoint missing.pt"),
        (("setup", "sam1", "sam2", "--checkpoint", "x.pt"), "--checkpoint goes with one model: name only that"),
        (("setup", "all", "--checkpoint", "x.pt"), "--checkpoint goes with one model: name only that"),
        (("setup", "--profile", "napari"), "there is no profile 'napari': known are paintera"),
        (("setup", "--profile", "paintera", "sam2:tiny"), "Paintera 1.14 does not call sam2:tiny"),
        (("setup", "--profile", "paintera", "sam9:huge"), "there is no model 'sam9:huge'"),
        (("setup", "--profile", "paintera", "--checkpoint", "x.pt"), "one model of a profile: name its id too"),
        (
            ("setup", "--profile", "paintera", "sam1:vit_h", "sam3", "--checkpoint", "x.pt"),
            "one model of a profile: name its id too",
        ),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(
    words: tuple[str, ...],
    told: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(WeightStore, "pull", lambda *_: pytest.fail("downloaded"))
    monkeypatch.setattr(WeightStore, "pull_checkpoint", lambda *_: pytest.fail("downloaded"))
    assert_one_sentence(run_main(*words, monkeypatch=monkeypatch, capsys=capsys), told)
    assert not home.exists()


@pytest.mark.torch
@pytest.mark.parametrize("command", ["export", "setup"])
def test_a_checkpoint_of_another_model(
    command: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    torch.save({"fc.weight": torch.zeros(2, 2)}, tmp_path / "resnet.pt")
    ended = run_main(command, "sam1:vit_b", "--checkpoint", "resnet.pt", monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, "this checkpoint is a network without a SAM encoder, not sam1:vit_b")
    assert not home.exists()


# removing


def test_removing_what_is_not_installed() -> None:
    done = runner.invoke(app.app, ["models", "rm", DEFAULT_MODEL])
    assert done.exit_code == 0
    assert done.output == f"{DEFAULT_MODEL} was not installed\n"


def test_removing_a_model(home: Path) -> None:
    spec, store = get_spec(DEFAULT_MODEL), WeightStore(home)
    store.blobs.mkdir(parents=True)
    files = [store.path(file) for file in spec.files]
    for file in files:
        file.write_bytes(bytes(1_500_000))
    write_models(spec, files[1], files[1], home / "model_repository")
    exports = home / "exports" / "sam2_tiny-fp16"
    exports.mkdir(parents=True)
    (exports / "encoder.onnx").write_bytes(bytes(4_000_000))
    done = runner.invoke(app.app, ["models", "rm", DEFAULT_MODEL])
    assert done.output == f"removed {DEFAULT_MODEL}, 7 MB are free again\n"
    assert not any(path.exists() for path in (*files, exports))
    assert find_segmenters(home / "model_repository") == {}


# pull


def test_pull_of_an_installed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is looked at again, for what may have been done to its files since."""
    compared = []
    monkeypatch.setattr(WeightStore, "is_installed", lambda *_: True)
    monkeypatch.setattr(WeightStore, "pull", lambda _store, spec, _progress: compared.append(spec.id))
    done = runner.invoke(app.app, ["pull", DEFAULT_MODEL])
    assert done.exit_code == 0
    assert f"{DEFAULT_MODEL} is installed already" in done.output
    assert compared == [DEFAULT_MODEL]


def test_pull_of_what_is_part_of_the_package(home: Path) -> None:
    done = runner.invoke(app.app, ["pull", "sam3:shapes"])
    assert done.exit_code == 0
    assert done.output == "sam3:shapes is part of this package: `triton-sam setup sam3:shapes` makes it ready\n"
    assert not home.exists()


def test_a_model_that_is_part_of_the_package_is_included(home: Path) -> None:
    listed = runner.invoke(app.app, ["models"]).output
    assert re.search(r"^sam3:shapes +included +downloaded ", listed, re.MULTILINE)
    shown = runner.invoke(app.app, ["models", "show", "sam3:shapes"]).output
    assert "weights that are part of triton-sam" in shown
    assert "toy" in shown


def test_terms_are_shown(home: Path) -> None:
    shown = runner.invoke(app.app, ["models", "show", "sam3:tracker"]).output
    assert shown.startswith("sam3:full: ")
    assert "https://github.com/facebookresearch/sam3/blob/main/LICENSE" in shown
    assert "HF_TOKEN" in shown


def test_pull(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = []

    def pull(store: WeightStore, spec: Any, progress: Any) -> None:
        pulled.append((store.home, spec.id))
        report = progress(spec.files[0], "download")
        report(1, None)
        report(2, 2)

    monkeypatch.setattr(WeightStore, "pull", pull)
    done = runner.invoke(app.app, ["pull", DEFAULT_MODEL])
    assert done.exit_code == 0
    assert pulled == [(home, DEFAULT_MODEL)]
    assert f"{DEFAULT_MODEL} is installed, 151 MB in {home / 'blobs'}" in done.output


@pytest.mark.parametrize(
    ("words", "method", "told"),
    [
        (["sam2:tiny", "--checkpoint"], "pull_checkpoint", "the checkpoint of sam2:tiny is in "),
        (["sam1:vit_b"], "pull_checkpoint", "the checkpoint of sam1:vit_b is in "),
        (["sam1:vit_b", "--checkpoint"], "pull_checkpoint", "the checkpoint of sam1:vit_b is in "),
        (["sam3:full", "--onnx"], "pull_plain", "the ready-made graphs of sam3:full are in "),
    ],
    ids=["checkpoint beside graphs", "checkpoint alone", "checkpoint asked for", "graphs for others"],
)
def test_what_a_pull_fetches(
    words: list[str], method: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pull", "pull_checkpoint", "pull_plain"):
        monkeypatch.setattr(WeightStore, name, lambda *_: pytest.fail("the wrong files"))
    monkeypatch.setattr(WeightStore, method, lambda _store, _spec, _progress: tmp_path / "there")
    done = runner.invoke(app.app, ["pull", *words])
    assert done.exit_code == 0, done.output
    assert done.output == f"{told}{tmp_path / 'there'}\n"


# export

REPORT = {
    "model": "sam2.1:tiny",
    "opset": {"encoder": 17, "decoder": 18},
    "summary": [
        {"output": "image_embeddings", "max_abs_diff": 1.25e-5, "share": 2e-5, "iou": None},
        {"output": "masks", "max_abs_diff": 3e-4, "share": 5e-5, "iou": 0.99987},
    ],
}


@dataclass
class Asked:
    """What an export was asked for."""

    folder: Path
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def __call__(
        self, spec: Any, store: WeightStore, request: ExportRequest, _progress: object, output_dir: Any, say: Any
    ) -> tuple[Path, dict[str, Any]]:
        self.calls.append((spec and spec.id, store.home, request, output_dir))
        say("writing the encoder")
        return self.folder, REPORT


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    made = Asked(tmp_path / "exported")
    monkeypatch.setattr(export_cache, "export_model", made)
    return made


def test_export(asked: Asked, home: Path) -> None:
    done = runner.invoke(app.app, ["export", "sam2.1:tiny"], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert asked.calls == [("sam2.1:tiny", home, ExportRequest(), None)]
    lines = done.output.splitlines()
    assert lines[0] == "sam2.1:tiny: writing the encoder"
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert rows == [
        ["image_embeddings", "1.25e-05", "2.0e-05", ""],
        ["masks", "3.00e-04", "5.0e-05", "0.99987"],
    ]
    assert lines[-1] == (
        f"sam2.1:tiny is exported to {asked.folder}, opset 18; all figures: {asked.folder / 'report.json'}"
    )


def test_export_passes_its_options_on(asked: Asked, home: Path, tmp_path: Path) -> None:
    words = "export sam1:vit_b --checkpoint mine.pt --image-size 512 --device cuda --precision int8 --seed 7"
    done = runner.invoke(app.app, [*words.split(), "--output-dir", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    request = ExportRequest(Path("mine.pt"), 512, "cuda", Precision.INT8, 7)
    assert asked.calls == [("sam1:vit_b", home, request, tmp_path / "out")]


def test_export_asks_the_checkpoint(asked: Asked, home: Path) -> None:
    done = runner.invoke(app.app, ["export", "auto", "--checkpoint", "mine.safetensors"])
    assert done.exit_code == 0, done.output
    assert asked.calls == [(None, home, ExportRequest(Path("mine.safetensors")), None)]
    assert "sam2.1:tiny is exported to" in done.output

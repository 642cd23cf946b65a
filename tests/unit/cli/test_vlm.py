from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.cli.helpers import assert_one_sentence, run_main
from triton_sam.cli import app
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.models.vlm_weights import VlmStore, bundled_folder
from triton_sam.repository import setup_models
from triton_sam.repository.vlms import find_vlms, own_checkpoint, write_vlm

runner = CliRunner()
SHAPES, LLAVA = get_vlm("vlm:shapes"), get_vlm("vlm:llava")


@pytest.fixture(autouse=True)
def _nothing_in_the_hubs_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, spec: spec.source is None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pull", "vlm:gpt"), "there is no vision-language model 'vlm:gpt': known are vlm:moondream2, vlm:kosmos2"),
        (("pull", "vlm:llava", "--onnx"), "vlm:llava has no ready-made graphs for other tools"),
        (("models", "rm", "vlm:gpt"), "there is no vision-language model 'vlm:gpt'"),
        (("export", "vlm:llava"), "vlm:llava needs no export: `triton-sam setup vlm:llava` serves"),
        (("setup", "vlm"), "there is no vision-language model 'vlm': known are"),
        (("setup", "sam2:tiny", "vlm:gpt"), "there is no vision-language model 'vlm:gpt'"),
        (("setup", "vlm:llava", "--image-size", "512"), "vlm:llava is served as it is: leave --image-size"),
        (("setup", "vlm:llava", "--precision", "fp16"), "vlm:llava is served as it is"),
        (("setup", "vlm:llava", "--device", "cuda"), "vlm:llava is served as it is"),
        (("setup", "vlm:llava", "vlm:shapes", "--checkpoint", "x"), "--checkpoint goes with one model"),
        (("setup", "vlm:llava", "sam2:tiny", "--checkpoint", "x"), "--checkpoint goes with one model"),
        (("setup", "vlm:llava", "--checkpoint", "missing"), "there is no folder"),
        (("setup", "--profile", "paintera", "vlm:llava"), "Paintera 1.14 does not call vlm:llava"),
        (("serve", "vlm:gpt"), "there is no vision-language model 'vlm:gpt'"),
    ],
)
def test_errors_are_one_sentence_and_leave_nothing(
    words: tuple[str, ...],
    told: str,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(setup_models, "set_up", lambda _: pytest.fail("set up"))
    assert_one_sentence(run_main(*words, monkeypatch=monkeypatch, capsys=capsys), told)
    assert not home.exists()


# setup


@pytest.mark.torch
def test_setup_writes_the_folders_only(home: Path) -> None:
    done = runner.invoke(app.app, ["setup", "vlm:shapes", "vlm:llava"])
    assert done.exit_code == 0, done.output
    repository = home / "model_repository"
    assert find_vlms(repository) == {"llava": LLAVA, "shapes": SHAPES}
    assert done.output.splitlines() == [
        f"vlm:shapes is ready: shapes, shapes_stream in {repository}; `triton-sam serve` serves it",
        f"vlm:llava is ready: llava, llava_stream in {repository}; `triton-sam serve` serves it; its first answer "
        "downloads 14.1 GB from the Hugging Face Hub; `triton-sam pull vlm:llava` downloads them now",
    ]


def test_setup_with_a_checkpoint_and_a_repository_of_ones_own(tmp_path: Path, home: Path) -> None:
    mine = bundled_folder(SHAPES)
    words = ["setup", "vlm:llava", "--checkpoint", str(mine), "--model-repository", str(tmp_path / "models")]
    done = runner.invoke(app.app, words)
    assert done.exit_code == 0, done.output
    assert own_checkpoint(LLAVA, tmp_path / "models") == mine
    assert "downloads" not in done.output
    assert not home.exists()


def test_setup_of_both_kinds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(setup_models, "set_up", lambda request: made.append(request.spec.id) or ["sam2"])
    done = runner.invoke(app.app, ["setup", "sam2:tiny", "vlm:shapes"])
    assert done.exit_code == 0, done.output
    assert made == ["sam2:tiny"]
    assert find_vlms(home / "model_repository") == {"shapes": SHAPES}


def test_all_means_segmenters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_models, "set_up", lambda _: ["some"])
    assert runner.invoke(app.app, ["setup", "all"]).exit_code == 0
    assert find_vlms(home / "model_repository") == {}


# pull and removal


def test_pull(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulled = []

    def pull(store: VlmStore, spec: VlmSpec, _progress: object) -> Path:
        pulled.append((store.home, spec.id))
        return Path("/cache/there")

    monkeypatch.setattr(VlmStore, "pull", pull)
    done = runner.invoke(app.app, ["pull", "vlm:llava"])
    assert done.output == "the checkpoint of vlm:llava is in /cache/there\n"
    assert pulled == [(home, "vlm:llava")]


def test_pull_of_the_one_that_comes_with_the_package(home: Path) -> None:
    done = runner.invoke(app.app, ["pull", "vlm:shapes"])
    assert done.output == f"the checkpoint of vlm:shapes is in {bundled_folder(SHAPES)}\n"
    assert not home.exists()


@pytest.mark.parametrize(
    ("spec", "freed", "stays", "told"),
    [
        (LLAVA, 14_000_000_000, False, "removed vlm:llava, 14000 MB are free again"),
        (LLAVA, 0, False, "removed llava, llava_stream"),
        (LLAVA, 0, True, "vlm:llava is no longer served; `triton-sam pull` did not download its files"),
        (SHAPES, 0, False, "removed shapes, shapes_stream"),
    ],
)
def test_removal(
    spec: VlmSpec, freed: int, stays: bool, told: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_vlm(spec, home / "model_repository")
    monkeypatch.setattr(VlmStore, "remove", lambda *_: freed)
    monkeypatch.setattr(VlmStore, "is_installed", lambda _, asked: stays or asked.source is None)
    done = runner.invoke(app.app, ["models", "rm", spec.id])
    assert done.exit_code == 0, done.output
    assert told in done.output
    assert find_vlms(home / "model_repository") == {}


def test_removing_what_is_not_there(home: Path) -> None:
    assert runner.invoke(app.app, ["models", "rm", "vlm:llava"]).output == "vlm:llava was not installed\n"
    assert not home.exists()

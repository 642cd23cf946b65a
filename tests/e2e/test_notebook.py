"""The notebook of vision-language models as a reader runs it, against a real server with small checkpoints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.e2e.notebook_helpers import NOTEBOOKS, check_stored, offline_variables, run_notebook
from triton_sam.cli.demo_vlm import run_vlm_demo
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_weights import bundled_folder
from triton_sam.repository.vlms import find_vlms, write_vlm
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.part("clones")]
NOTEBOOK = NOTEBOOKS / "triton_inference.ipynb"
MODELS = ("moondream2", "kosmos2", "llava", "shapes")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Model -> folder: the real architectures with small numbers, and the toy as it is."""
    import torch  # here, because the environment for every commit may lack it, and collects this file

    from tests.vlm_checkpoints import make_kosmos2, make_llava, make_moondream2

    folder = tmp_path_factory.mktemp("checkpoints")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small are slower on several
    made = {
        "moondream2": make_moondream2(folder / "moondream2"),
        "kosmos2": make_kosmos2(folder / "kosmos2", grounded=True),
        "llava": make_llava(folder / "llava"),
        "shapes": bundled_folder(get_vlm("vlm:shapes")),
    }
    torch.set_num_threads(threads)
    return made


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return offline_variables(tmp_path_factory.mktemp("user"))


@pytest.fixture(scope="module")
def served(
    embedded_server: None,
    checkpoints: dict[str, Path],
    offline: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("models") / "model_repository"
    for name, folder in checkpoints.items():
        spec = get_vlm(name)
        write_vlm(spec, repository, None if spec.source is None else folder)
    with serving(
        ServingOptions(
            repository,
            {},
            Settings(home=tmp_path_factory.mktemp("home")),
            vlms=find_vlms(repository),
            ports=Ports(0, 0, 0, 0),
            with_service=False,
            environment=offline,
        )
    ) as running:
        yield running


def run(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    return run_notebook(NOTEBOOK, environment, monkeypatch)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    check_stored(path)


def test_every_model_says_the_same_served_and_directly(
    served: RunningServer, checkpoints: dict[str, Path], offline: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = json.dumps({name: str(folder) for name, folder in checkpoints.items()})
    written = run(
        offline | {"TRITON_URL": served.urls["HTTP"], "TRITON_SAM_NOTEBOOK_CHECKPOINTS": folders}, monkeypatch
    )
    assert "not served" not in written["connect"]
    rows = [line.split() for line in written["direct"].splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [(name, "yes") for name in MODELS], written["direct"]
    assert all(float(row[1]) > 0 and float(row[2]) > 0 for row in rows)
    assert "a red ball by a dog." in written["kosmos2"]
    assert "a dog: [(" in written["kosmos2"], "boxes"
    assert "There is a red circle at the top left, a yellow star at the top right" in written["shapes"]
    assert "The star is yellow." in written["custom"]
    assert "There are two circles." in written["custom"]
    assert written["options"].count("the same seed, the same text: True") == len(MODELS)
    assert written["options"].count("finish_reason='length'") == len(MODELS)
    assert written["stream"].count("first piece after") == len(MODELS)
    assert written["batch"].count("8 together") == len(MODELS)
    assert written["chat"].startswith("llava: ")


def test_a_server_elsewhere_and_images_of_ones_own(
    served: RunningServer, offline: dict[str, str], monkeypatch: pytest.MonkeyPatch, photographs: Path, tmp_path: Path
) -> None:
    """Without the checkpoints' folders only the toy, which comes with the package, is compared."""
    (tmp_path / "mine.png").write_bytes((photographs / "chelsea.png").read_bytes())
    written = run(
        offline | {"TRITON_URL": served.urls["gRPC"], "TRITON_SAM_NOTEBOOK_IMAGES": str(tmp_path)}, monkeypatch
    )
    assert written["images"].count("mine 451 x 300") == len(MODELS)
    assert written["direct"].count("skipped: name its folder in TRITON_SAM_NOTEBOOK_CHECKPOINTS") == 3
    assert re.search(r"^shapes .* yes$", written["direct"], re.MULTILINE)


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_the_demonstration_of_make_demo_with_vlm(served: RunningServer, protocol: str, tmp_path: Path) -> None:
    """Not of the notebook, but the same server does."""
    result = run_vlm_demo(served.urls[protocol], tmp_path / "demo")
    assert [answer.answer for answer in result.answers] == [
        "The star is yellow.",
        "There are two circles.",
        "The purple triangle is at the bottom right.",
    ]
    assert all(0 < answer.first_word_seconds <= answer.seconds for answer in result.answers)
    assert result.answers_file == tmp_path / "demo" / "shapes-answers.txt"
    assert result.answers_file.read_text() == result.text + "\n"
    assert "is a toy" in result.text
    with Image.open(result.picture) as picture:
        assert (picture.size, picture.mode) == ((384, 384), "RGB")

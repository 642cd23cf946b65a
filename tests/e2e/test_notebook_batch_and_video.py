"""The notebook of a batch job and a video as a reader runs it: real weights, no download beside the default model's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.notebook_helpers import NOTEBOOKS, offline_variables, run_notebook
from triton_sam.models.catalog import DEFAULT_MODEL, VIDEO_MODEL, get_spec
from triton_sam.models.weights import WeightStore
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.serving import Ports, RunningServer, ServingOptions, serving
from triton_sam.settings import Settings

pytestmark = [pytest.mark.triton, pytest.mark.part("clones"), pytest.mark.timeout(1500)]
NOTEBOOK = NOTEBOOKS / "batch_and_video.ipynb"


@pytest.fixture
def served(store: WeightStore, embedded_server: None, tmp_path: Path) -> Iterator[RunningServer]:
    """What the notebook asks for: ``triton-sam serve sam2:tiny sam2:tiny_video``, on free ports."""
    repository = tmp_path / "model_repository"
    for model in (DEFAULT_MODEL, VIDEO_MODEL):
        set_up(SetupRequest(get_spec(model), store, repository))
    segmenters = find_segmenters(repository)
    with serving(
        ServingOptions(
            repository, segmenters, Settings(home=tmp_path / "home"), ports=Ports(0, 0, 0, 0), with_service=False
        )
    ) as running:
        yield running


def test_boxes_to_masks_and_a_click_to_a_video(
    served: RunningServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    written = run_notebook(
        NOTEBOOK,
        offline_variables(tmp_path) | {"TRITON_URL": served.urls["HTTP"], "TRITON_SAM_NOTEBOOK_OUT": str(out)},
        monkeypatch,
    )
    lines = re.findall(r"^(\w+\.png): (\d) masks, scores (.*), [\d.]+ s$", written["job"], re.MULTILINE)
    assert {name: int(count) for name, count, _ in lines} == {"coffee.png": 2, "chelsea.png": 1, "coins.png": 3}
    assert all(float(score) > 0.7 for _, _, scores in lines for score in scores.split(", ")), written["job"]
    assert written["pictures"] == "segmented in this run: 0\n", "the job went on where it had ended"
    assert written["coco"].startswith("3 images, 6 masks\n")
    assert written["coco"].count("values [0, 1") == 3, written["coco"]
    overlaps = [float(value) for value in re.findall(r"\d\.\d\d", written["overlaps"].splitlines()[0])]
    assert overlaps[0] > 0.85, written["overlaps"]
    assert sum(overlaps) / len(overlaps) > 0.7, written["overlaps"]
    (before, after) = re.findall(r"IoU (\S+) before, (\S+) after", written["correct"])[0]
    assert float(after) > float(before), written["correct"]
    assert re.match(r"labels.tif has \d+ frames of 640 x 360", written["labels"])
    assert (out / "frames.png").exists()

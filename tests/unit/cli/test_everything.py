from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.unit import everything_messages
from tests.unit.cli.helpers import assert_one_sentence, run_main
from tests.unit.everything_messages import HEIGHT, MASKS, WIDTH
from tests.unit.service.helpers import Fake, listening
from triton_sam.cli import app
from triton_sam.core.everything.labels import label_image
from triton_sam.core.everything.options import EverythingOptions
from triton_sam.core.rle import from_rle, rle

runner = CliRunner()
LABELS = label_image([rle(mask) for mask in MASKS], WIDTH, HEIGHT)


@pytest.fixture
def fake() -> Fake:
    return Fake()


@pytest.fixture
def url(fake: Fake) -> Iterator[str]:
    """A service in front of a model that finds three masks."""
    with listening(fake) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "picture.png"
    Image.new("RGB", (WIDTH, HEIGHT), (200, 200, 200)).save(path)
    return path


def run(*words: object) -> Any:
    return runner.invoke(app.app, ["everything", *map(str, words)])


def test_all_that_is_written(url: str, picture: Path, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("masks.json", "labels.png", "overlay.png")]
    done = run(picture, "--url", url, *(word for target in targets for word in ("--out", target)))
    assert done.exit_code == 0, done.output
    assert done.stdout == f"3 mask(s): {', '.join(map(str, targets))}\n"
    records = json.loads(targets[0].read_text())
    assert isinstance(records, list)
    assert [record["area"] for record in records] == [55, 30, 2]
    assert np.array_equal([from_rle(record["segmentation"]) for record in records], MASKS)
    with Image.open(targets[1]) as labels:
        assert np.array_equal(np.asarray(labels), LABELS)
    with Image.open(targets[2]) as look:
        assert (look.mode, look.size) == ("RGB", (WIDTH, HEIGHT))
        pixels = np.asarray(look)
    assert len({tuple(pixels[label == LABELS][0]) for label in (1, 2, 3)}) == 3


def test_progress_is_shown(url: str, picture: Path) -> None:
    done = run(picture, "--url", url)
    assert done.exit_code == 0, done.output
    assert f"1024/{everything_messages.POINTS}" in done.stderr
    assert "3 masks" in done.stderr
    assert Path("overlay.png").exists()


def test_every_option_is_a_flag(fake: Fake, url: str, picture: Path, tmp_path: Path) -> None:
    grids = tmp_path / "grids.json"
    grids.write_text("[[[0.5, 0.5]], [[0.25, 0.5]]]")
    values: dict[str, Any] = {
        "points_per_batch": 8,
        "pred_iou_thresh": 0.5,
        "stability_score_thresh": 0.6,
        "stability_score_offset": 0.7,
        "mask_threshold": -0.5,
        "box_nms_thresh": 0.8,
        "crop_n_layers": 1,
        "crop_nms_thresh": 0.9,
        "crop_overlap_ratio": 0.25,
        "crop_n_points_downscale_factor": 2,
        "min_mask_region_area": 100,
    }
    words = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", value)]
    more = ["--no-multimask-output", "--use-m2m", "--region", "0,1,8,4", "--point-grids", grids]
    assert run(picture, "--url", url, *words, *more).exit_code == 0
    sent = everything_messages.prompt_of(fake.transport.streams[0])["everything"]
    assert sent == values | {
        "multimask_output": False,
        "use_m2m": True,
        "region": [0, 1, 8, 4],
        "point_grids": [[[0.5, 0.5]], [[0.25, 0.5]]],
    }
    assert {*sent, "points_per_side"} == set(EverythingOptions.__dataclass_fields__)


def test_without_options_the_server_chooses(fake: Fake, url: str, picture: Path) -> None:
    assert run(picture, "--url", url, "--points-per-side", 8).exit_code == 0
    assert everything_messages.prompt_of(fake.transport.streams[0])["everything"] == {"points_per_side": 8}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--points-per-side", "-3"], "points_per_side of everything is a whole number from 1 to 128"),
        (["--points-per-side", "10000"], "points_per_side of everything is a whole number from 1 to 128"),
        (["--box-nms-thresh", "nan"], "box_nms_thresh of everything is a number from 0 to 1"),
        (["--region", "1,2,3"], "--region x0,y0,x1,y1"),
        (["--region", "5,5,1,1"], "inverted or empty"),
        (["--point-grids", "nothing.json"], "nothing.json is not a JSON file with grids"),
        (["--out", "masks.gif"], "masks.gif is neither a .png nor a .json file"),
        (["--window", "3"], "--window LOW,HIGH"),
    ],
)
def test_bad_values_get_one_sentence(
    words: list[str], sentence: str, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_main("everything", picture, *words, monkeypatch=monkeypatch, capsys=capsys)
    assert_one_sentence(ended, sentence)

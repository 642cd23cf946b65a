from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from typer.testing import CliRunner

from triton_sam.cli import app, segment
from triton_sam.client.sync_client import Segmentation
from triton_sam.core.rle import from_rle
from triton_sam.models.catalog import DEFAULT_MODEL

runner = CliRunner()
MASKS = np.zeros((2, 6, 10), np.bool_)
MASKS[0, 1:3, 2:5] = True
MASKS[1, 4:, 7:] = True


class FakeClient:
    """Takes the place of the client; answers one mask for each object."""

    made: list[FakeClient]

    def __init__(self, url: str | None, model: str, token: str | None = None) -> None:
        self.url, self.model, self.token = url, model, token
        self.image: Path | None = None
        self.asked: tuple[Any, ...] = ()
        FakeClient.made.append(self)

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def set_image(self, image: Path, **choice: Any) -> None:
        self.image, self.choice = image, choice

    def segment(
        self, points: Any = None, labels: Any = None, box: Any = None, *, objects: Any = None, clean: int
    ) -> Segmentation:
        self.asked = (points, labels, box, objects)
        self.clean = clean
        count = len(objects) if objects else 1
        result = {
            "width": 10,
            "height": 6,
            "model": DEFAULT_MODEL,
            "timings_ms": {"total": 12.4},
            "mask": {},
            "masks": [{"score": 0.25 * (index + 1), "object": index} for index in range(count)],
        }
        return Segmentation(result, np.packbits(MASKS[:count], axis=2))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeClient]:
    monkeypatch.setattr(segment, "SAM2TritonClient", FakeClient)
    monkeypatch.setattr(FakeClient, "made", [], raising=False)
    return FakeClient


def test_segment_with_points_and_a_box(fake: type[FakeClient], photograph: Path) -> None:
    words = ["--point", "3,2", "--point", "4.5,1,0", "--box", "0,0,5,5", "--model", "sam3", "--url", "host:1"]
    done = runner.invoke(app.app, ["segment", str(photograph), *words])
    assert done.exit_code == 0, done.output
    (client,) = fake.made
    assert (client.url, client.model, client.image, client.closed) == ("host:1", "sam3", photograph, True)
    assert client.asked == ([[3.0, 2.0], [4.5, 1.0]], [1, 0], [0.0, 0.0, 5.0, 5.0], None)
    assert done.output == "1 mask(s), score 0.250, 12 ms on the server: overlay.png\n"
    assert Path("overlay.png").exists()


def test_a_page_a_channel_and_a_window(fake: type[FakeClient], tmp_path: Path) -> None:
    """The overlay shows what the model was given."""
    path, overlay = tmp_path / "stack.tif", tmp_path / "overlay.png"
    values = np.full((3, 2, 6, 10), 100, np.uint16)
    values[2, 1] = 700
    tifffile.imwrite(path, values, photometric="minisblack", imagej=True, metadata={"axes": "ZCYX"})
    words = ["--page", "2", "--channel", "1", "--window", "200,1200", "--box", "0,0,5,5", "--out", str(overlay)]
    done = runner.invoke(app.app, ["segment", str(path), *words])
    assert done.exit_code == 0, done.output
    assert fake.made[0].choice == {"page": 2, "channel": 1, "window": (200.0, 1200.0)}
    with Image.open(overlay) as picture:
        assert picture.convert("RGB").getpixel((9, 5)) == (128, 128, 128)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--window", "3"], "--window LOW,HIGH"), (["--window", "5,3"], "low below high"), (["--page", "-1"], "page")],
)
def test_choices_that_cannot_be(words: list[str], sentence: str, fake: type[FakeClient], photograph: Path) -> None:
    done = runner.invoke(app.app, ["segment", str(photograph), "--box", "0,0,5,5", *words])
    assert done.exit_code != 0
    assert sentence in f"{done.output} {done.exception}"
    assert fake.made == []


def test_several_boxes_are_several_objects(fake: type[FakeClient], photograph: Path) -> None:
    done = runner.invoke(app.app, ["segment", str(photograph), "--box", "0,0,5,5", "--box", "1,1,6,6"])
    assert done.exit_code == 0, done.output
    assert fake.made[0].asked == (None, None, None, [{"box": [0.0, 0.0, 5.0, 5.0]}, {"box": [1.0, 1.0, 6.0, 6.0]}])
    assert "2 mask(s), score 0.250, 0.500" in done.output


@pytest.mark.usefixtures("fake")
def test_what_is_written(photograph: Path, tmp_path: Path) -> None:
    targets = [tmp_path / name for name in ("result.json", "mask-1.PNG", "look.png")]
    options = [word for target in targets for word in ("--out", str(target))]
    boxes = ["--box", "0,0,5,5", "--box", "1,1,6,6"]
    done = runner.invoke(app.app, ["segment", str(photograph), *boxes, *options])
    assert done.exit_code == 0, done.output
    result = json.loads(targets[0].read_text())
    assert (result["width"], result["height"], result["model"]) == (10, 6, DEFAULT_MODEL)
    assert "mask" not in result
    assert [entry["score"] for entry in result["masks"]] == [0.25, 0.5]
    assert np.array_equal([from_rle(entry["rle"]) for entry in result["masks"]], MASKS)
    with Image.open(targets[1]) as mask:
        assert mask.mode == "L"
        assert np.array_equal(np.asarray(mask), MASKS.any(axis=0) * np.uint8(255))
    with Image.open(targets[2]) as look:
        assert look.mode == "RGB"
        changed = (np.asarray(look) != 200).any(axis=2)
    assert changed[MASKS.any(axis=0)].all()


@pytest.mark.usefixtures("fake")
def test_the_overlay_lies_on_the_upright_picture(tmp_path: Path) -> None:
    turned = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (6, 10)).save(turned, exif=exif)  # a person sees 10 x 6
    done = runner.invoke(app.app, ["segment", str(turned), "--point", "3,2"])
    assert done.exit_code == 0, done.output
    with Image.open("overlay.png") as look:
        assert look.size == (10, 6)


@pytest.mark.parametrize(("options", "sent"), [([], 0), (["--clean", "64"], 64)])
@pytest.mark.parametrize("prompt", [["--point", "3,2"], ["--box", "1,1,4,4", "--box", "5,1,9,4"]])
def test_clean(fake: type[FakeClient], photograph: Path, options: list[str], sent: int, prompt: list[str]) -> None:
    target = photograph.with_name("masks.json")
    assert runner.invoke(app.app, ["segment", str(photograph), *prompt, *options, "--out", str(target)]).exit_code == 0
    assert fake.made[0].clean == sent

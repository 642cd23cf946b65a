from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam.bench.pictures import Pictures, number_at
from triton_sam.errors import InvalidInput


def pixels(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.format == "JPEG"
        return np.asarray(opened.convert("RGB"))


def test_numbers_make_other_files_of_the_same_pixels() -> None:
    pictures = Pictures(side=96)
    one, other = pictures.jpeg(1), pictures.jpeg(2)
    assert one != other
    assert len(one) == len(other)
    assert (pixels(one) == pixels(other)).all()
    assert pixels(one).shape == (96, 96, 3)
    assert one == pictures.jpeg(1)


def test_a_number_can_be_changed_in_place() -> None:
    pictures = Pictures(side=64)
    data = bytearray(pictures.jpeg(3))
    data[number_at(bytes(data))] = b"000000000017"
    assert bytes(data) == pictures.jpeg(17)


def test_a_users_jpeg_is_sent_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.jpg"
    Image.new("RGB", (60, 40), "red").save(path, quality=50)
    pictures = Pictures(path)
    assert (pictures.width, pictures.height) == (60, 40)
    assert (pixels(pictures.jpeg()) == pixels(path.read_bytes())).all()
    assert pictures.about.startswith("mine.jpg, 60 x 40 px")


def test_other_files_become_jpegs(tmp_path: Path) -> None:
    Image.new("RGBA", (30, 20), "blue").save(tmp_path / "mine.png")
    assert pixels(Pictures(tmp_path / "mine.png").jpeg()).shape == (20, 30, 3)


def test_clicks_are_inside_and_apart() -> None:
    pictures = Pictures(side=64)
    points = [pictures.point(number) for number in range(64)]
    assert all(0 <= x < 64 and 0 <= y < 64 for x, y in points)
    assert len({(round(x, 3), round(y, 3)) for x, y in points}) == 64


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "no.jpg").write_text("no")
    with pytest.raises(InvalidInput, match=r"no\.jpg has an unknown format: give a PNG"):
        Pictures(tmp_path / "no.jpg")
    with pytest.raises(InvalidInput, match=r"cannot read the image .*missing\.jpg"):
        Pictures(tmp_path / "missing.jpg")

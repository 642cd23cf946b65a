"""A page, a channel or a contrast window, read by the client and sent as PNG."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from tests.unit.core.image_helpers import Pixels, decoded, noise
from triton_sam.core.image_choice import ImageChoice, chosen_bytes, picture_for_model
from triton_sam.errors import InvalidInput

STACK = np.random.default_rng(8).integers(0, 4096, (3, 2, 20, 30), dtype=np.uint16)


def tiff(values: Pixels, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, photometric="minisblack", **options)
    return buffer.getvalue()


def test_without_a_choice_the_file_goes_as_it_is() -> None:
    assert chosen_bytes(b"anything", ImageChoice()) == b"anything"


def test_a_page_and_a_channel_of_a_stack(tmp_path: Path) -> None:
    path = tmp_path / "stack.tif"
    path.write_bytes(tiff(STACK, imagej=True, metadata={"axes": "ZCYX"}))
    found = decoded(chosen_bytes(path, ImageChoice(page=2, channel=1)))
    assert np.abs(found[:, :, 0] - STACK[2, 1] * (255 / 4095)).max() <= 0.5
    np.testing.assert_array_equal(np.asarray(picture_for_model(path, ImageChoice(page=2, channel=1))), found)


def test_a_window_in_the_files_own_values() -> None:
    values = np.linspace(-500, 1500, 600, dtype=np.float32).reshape(20, 30)
    found = decoded(chosen_bytes(tiff(values), ImageChoice(window=(0, 1000))))[:, :, 0]
    assert np.abs(found - (values / 1000).clip(0, 1) * 255).max() <= 0.51


def test_a_window_takes_values_that_are_no_numbers_as_black() -> None:
    values = np.full((4, 5), 7, np.float32)
    values[1, 1] = np.nan
    found = decoded(chosen_bytes(tiff(values), ImageChoice(window=(0, 7))))[:, :, 0]
    assert found[1, 1] == 0
    assert found[0, 0] == 255


def test_of_an_array() -> None:
    values = STACK[0].transpose(1, 2, 0)
    found = decoded(chosen_bytes(values, ImageChoice(channel=1, window=(0, 2000))))[:, :, 0]
    assert np.abs(found - (values[:, :, 1] / 2000).clip(0, 1) * 255).max() <= 0.51
    found = decoded(chosen_bytes(noise(5, 6), ImageChoice(window=(0, 128))))
    assert np.abs(found - (noise(5, 6) / 128).clip(0, 1) * 255).max() <= 0.51


def test_a_window_on_colours() -> None:
    buffer = io.BytesIO()
    values = np.random.default_rng(1).integers(0, 4096, (20, 30, 3), dtype=np.uint16)
    tifffile.imwrite(buffer, values, photometric="rgb")
    found = decoded(chosen_bytes(buffer.getvalue(), ImageChoice(window=(100, 1100))))
    assert np.abs(found - ((values - 100.0) / 1000).clip(0, 1) * 255).max() <= 0.51


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"page": 9}, "3 page"),
        ({"channel": 2}, "2 channel"),
        ({"page": 1}, "channel=0 to 1"),
        ({"page": -1}, "page must be"),
        ({"channel": True}, "channel must be"),
        ({"channel": 0.5}, "channel must be"),
        ({"window": (3, 3)}, "low below high"),
        ({"window": (0, float("nan"))}, "low below high"),
        ({"window": 5}, "two numbers"),
        ({"window": (1, 2, 3)}, "two numbers"),
        ({"window": "ab"}, "two numbers"),
    ],
)
def test_what_cannot_be_chosen(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        chosen_bytes(tiff(STACK, imagej=True, metadata={"axes": "ZCYX"}), ImageChoice(**options))


def test_an_array_has_no_pages() -> None:
    with pytest.raises(InvalidInput, match="no pages"):
        chosen_bytes(STACK[0, 0], ImageChoice(page=0))
    with pytest.raises(InvalidInput, match="no channel 3"):
        chosen_bytes(noise(4, 4), ImageChoice(channel=3))

"""``/v1/describe`` and ``/v1/planes``: the pages and channels of scientific images."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import tifffile
from PIL import Image

from tests.unit.service.helpers import ask, image_file, refusal

Array = npt.NDArray[Any]
RANDOM = np.random.default_rng(5)


def tiff(values: Array, **options: Any) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, values, **options)
    return buffer.getvalue()


def describe(image: bytes, **settings: Any) -> dict[str, Any]:
    answer = ask("POST", "/v1/describe", settings=settings, files={"image": ("a", image)})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def planes(image: bytes, query: str = "", **settings: Any) -> httpx.Response:
    return ask("POST", f"/v1/planes{query}", settings=settings, files={"image": ("a", image)})


def read(answer: httpx.Response) -> tuple[dict[str, Any], Array]:
    """(the header, [pages,C,H,W])."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/octet-stream"
    head = json.loads(answer.headers["x-planes"])
    shape = head["pages"], head["channels"], head["height"], head["width"]
    return head, np.frombuffer(answer.content, {"uint8": "u1", "uint16": "<u2"}[head["dtype"]]).reshape(shape)


def deep(*shape: int) -> Array:
    return RANDOM.integers(0, 2**16, shape, dtype=np.uint16)


def test_two_channels_that_no_model_takes() -> None:
    values = deep(30, 40, 2)
    image = tiff(values, photometric="minisblack", planarconfig="contig")
    assert describe(image) == {
        "format": "TIFF",
        "width": 40,
        "height": 30,
        "pages": 1,
        "channels": 2,
        "channel_names": None,
        "dtype": "uint16",
        "bits": 16,
    }
    head, found = read(planes(image))
    assert head == {"width": 40, "height": 30, "channels": 2, "pages": 1, "dtype": "uint16", "low": 0, "high": 65535}
    np.testing.assert_array_equal(found[0], np.moveaxis(values, 2, 0))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"imagej": True, "metadata": {"axes": "ZCYX"}}, None),
        ({"ome": True, "metadata": {"axes": "ZCYX", "Channel": {"Name": ["DAPI", "GFP <2>"]}}}, ["DAPI", "GFP <2>"]),
    ],
    ids=["ImageJ", "OME"],
)
def test_channels_that_are_pages(options: dict[str, Any], names: list[str] | None) -> None:
    values = deep(5, 2, 30, 40)
    image = tiff(values, photometric="minisblack", **options)
    found = describe(image)
    assert (found["pages"], found["channels"], found["channel_names"]) == (5, 2, names)
    head, samples = read(planes(image, "?first=1&count=3"))
    assert head["pages"] == 3
    np.testing.assert_array_equal(samples, values[1:4])
    assert read(planes(image, "?first=4&count=9"))[0]["pages"] == 1


def test_one_directory_for_a_whole_stack_of_imagej() -> None:
    values = deep(6, 30, 40)
    image = tiff(values, photometric="minisblack", imagej=True, truncate=True, metadata={"axes": "ZYX"})
    assert describe(image)["pages"] == 6
    np.testing.assert_array_equal(read(planes(image, "?count=6"))[1][:, 0], values)


def test_an_ome_file_whose_slices_come_before_its_channels() -> None:
    values = deep(2, 3, 20, 30)  # C, Z
    image = tiff(values, photometric="minisblack", ome=True, metadata={"axes": "CZYX"})
    assert (describe(image)["pages"], describe(image)["channels"]) == (3, 2)
    np.testing.assert_array_equal(read(planes(image, "?count=3"))[1], values.transpose(1, 0, 2, 3))


def test_levels_of_a_pyramid_are_no_pages() -> None:
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(deep(40, 60))
        writer.write(deep(20, 30), subfiletype=1)
    assert describe(buffer.getvalue())["pages"] == 1


def test_eight_bits_stay_eight_bits() -> None:
    values = RANDOM.integers(0, 256, (3, 20, 30), dtype=np.uint8)
    image = tiff(values, photometric="rgb", planarconfig="separate")
    assert describe(image)["channel_names"] == ["red", "green", "blue"]
    head, found = read(planes(image))
    assert (head["dtype"], head["low"], head["high"]) == ("uint8", 0, 255)
    np.testing.assert_array_equal(found[0], values)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "int32", "uint32"])
def test_other_ranges_are_mapped(dtype: str) -> None:
    values = (RANDOM.random((2, 20, 30)) * 9e4 - (0 if dtype == "uint32" else 3e4)).clip(
        -32768, 32767 if dtype == "int16" else 9e4
    )
    values = values.astype(dtype)
    head, found = read(planes(tiff(values, photometric="minisblack"), "?count=2"))
    assert (head["low"], head["high"]) == (values.min(), values.max())
    back = head["low"] + found[:, 0] / 65535 * (head["high"] - head["low"])
    assert np.abs(back - values).max() <= (head["high"] - head["low"]) / 65535


def test_integers_that_fit_stay_as_they_are() -> None:
    values = deep(20, 30).astype(np.int32)
    head, found = read(planes(tiff(values)))
    assert (head["dtype"], head["low"], head["high"]) == ("uint16", 0, 65535)
    np.testing.assert_array_equal(found[0, 0], values)


def test_values_that_are_no_numbers_are_counted() -> None:
    values = np.linspace(1, 2, 600, dtype=np.float32).reshape(20, 30)
    values[3, 4:6] = np.nan, np.inf
    head, found = read(planes(tiff(values)))
    assert head["not_finite"] == 2
    assert found[0, 0, 3, 4] == 0


def test_upright() -> None:
    values = deep(20, 30)
    image = tiff(values, extratags=[(274, "H", 1, 6, False)])
    assert (describe(image)["width"], describe(image)["height"]) == (20, 30)
    np.testing.assert_array_equal(read(planes(image))[1][0, 0], np.rot90(values, -1))


def test_where_white_is_zero() -> None:
    values = deep(20, 30)
    np.testing.assert_array_equal(read(planes(tiff(values, photometric="miniswhite")))[1][0, 0], 65535 - values)


def test_other_formats() -> None:
    grey = Image.fromarray(deep(20, 30))
    buffer = io.BytesIO()
    grey.save(buffer, "PNG")
    found = describe(buffer.getvalue())
    assert (found["format"], found["pages"], found["channels"], found["dtype"]) == ("PNG", 1, 1, "uint16")
    np.testing.assert_array_equal(read(planes(buffer.getvalue()))[1][0, 0], np.asarray(grey))
    found = describe(image_file())
    assert (found["channels"], found["channel_names"]) == (3, ["red", "green", "blue"])


def test_a_long_answer_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.service.routes.planes._MAX_ANSWER_BYTES", 2 * 20 * 30 * 2)
    image = tiff(deep(5, 20, 30), photometric="minisblack")
    assert read(planes(image, "?count=5"))[0]["pages"] == 2


def test_what_is_refused() -> None:
    image = tiff(deep(3, 20, 30), photometric="minisblack")
    for path in ("/v1/describe", "/v1/planes"):
        assert "the form has no file image" in refusal(ask("POST", path), 400, "invalid_input")
        for settings, status in (({"max_image_bytes": 10}, 413), ({"max_image_pixels": 10}, 413)):
            refusal(ask("POST", path, settings=settings, files={"image": ("a", image)}), status, "too_large")
        token = {"token": "a-very-long-word"}
        refusal(ask("POST", path, settings=token, files={"image": ("a", image)}), 401, "not_authorised")
        refusal(ask("POST", path, files={"image": ("a", b"no image")}), 400, "invalid_input")
    assert "3 page(s)" in refusal(planes(image, "?first=3"), 400, "invalid_input")
    for query in ("?first=-1", "?first=x", "?count=0", "?count=99999999", "?first=1.5"):
        refusal(planes(image, query), 400, "invalid_input")


def test_pages_of_different_shapes_in_one_request() -> None:
    buffer = io.BytesIO()
    with tifffile.TiffWriter(buffer) as writer:
        writer.write(deep(20, 30))
        writer.write(deep(10, 10))
    assert describe(buffer.getvalue())["pages"] == 2
    assert "10 x 10" in refusal(planes(buffer.getvalue(), "?count=2"), 400, "invalid_input")
    assert read(planes(buffer.getvalue(), "?first=1"))[1].shape == (1, 1, 10, 10)

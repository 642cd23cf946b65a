"""What is sent to a server, and what is said when an image cannot be read."""

from __future__ import annotations

import errno
import io
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.batch.input_helpers import item, png, stack, write, zarr2
from tests.unit.core.image_helpers import EXIF_ORIENTATION, decoded
from tests.unit.core.tiff_layouts import Layout, layouts
from triton_sam.batch.inputs import reading
from triton_sam.batch.inputs.reading import read_item, size_of
from triton_sam.core.file_bytes import FileBytes
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.core.image_planes import ImagePlanes
from triton_sam.errors import InvalidInput, JobStopped, SetupError

PLAIN = ImageChoice()
PLANES = np.random.default_rng(5).integers(0, 4096, (3, 2, 20, 30), dtype=np.uint16)


def test_a_plain_image_is_sent_as_it_is(tmp_path: Path) -> None:
    for name, data in (("a.png", png()), ("odd.suffix", png())):
        assert read_item(item(write(tmp_path / name, data)), PLAIN) == data
    path = stack(tmp_path / "a.tif", PLANES[0, 0])
    assert read_item(item(path), PLAIN) == path.read_bytes()


def test_a_page_a_channel_and_a_window_are_as_those_of_one_image(tmp_path: Path) -> None:
    for path in (
        stack(tmp_path / "z.tif", PLANES[:, 0]),
        stack(tmp_path / "zc.tif", PLANES, imagej=True, metadata={"axes": "ZCYX"}),
    ):
        for page in range(3):
            choice = ImageChoice(None, 1 if "zc" in path.name else None, (100, 3000))
            expected = chosen_bytes(path, ImageChoice(page, choice.channel, choice.window))
            np.testing.assert_array_equal(decoded(read_item(item(path, page), choice)), decoded(expected))
    picture = write(tmp_path / "a.png", png())
    assert read_item(item(picture), ImageChoice(channel=0)) == chosen_bytes(picture, ImageChoice(channel=0))


def test_of_a_large_stack_only_the_page_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stack(tmp_path / "a.tif", np.zeros((20, 200, 300), np.uint16))
    counts: list[int] = []
    read = FileBytes._read

    def counting(self: FileBytes, start: int, count: int) -> bytes:
        counts.append(count)
        return read(self, start, count)

    monkeypatch.setattr(FileBytes, "_read", counting)
    for page in (3, 4):
        assert size_of(read_item(item(path, page), PLAIN)) == (300, 200)
    assert sum(counts) < 5 * 200 * 300 * 2


@given(layout=layouts(), start=st.integers(0, 200), length=st.integers(0, 20_000))
def test_a_file_that_is_read_piece_by_piece_is_the_file(
    tmp_path_factory: pytest.TempPathFactory, layout: Layout, start: int, length: int
) -> None:
    path = write(tmp_path_factory.mktemp("tiff") / "a.tif", layout.data)
    file = FileBytes(path)
    try:
        assert (len(file), bytes(file), file[start : start + length]) == (
            len(layout.data),
            layout.data,
            layout.data[start : start + length],
        )
        whole, pieces = (
            ImagePlanes(data, max_bytes=2**40, max_pixels=2**40).page(0).values for data in (layout.data, file)
        )
        np.testing.assert_array_equal(whole, pieces)
    finally:
        file.close()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_plane_of_a_zarr_array_is_as_that_array(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("zarr")
    values = (PLANES[:, 0] / 4096 * 200).astype(dtype)
    folder = zarr2(tmp_path / "a.zarr", values)
    for page in (0, 2):
        assert read_item(item(folder, page), PLAIN) == chosen_bytes(values[page], PLAIN)
    choice = ImageChoice(window=(3, 100))
    assert read_item(item(folder, 1), choice) == chosen_bytes(values[1], choice)


def test_one_image_as_a_zarr_array_and_its_channels(tmp_path: Path) -> None:
    pytest.importorskip("zarr")
    channels = np.moveaxis(PLANES[0], 0, 2)[None]
    folder = zarr2(tmp_path / "nhwc.zarr", channels)
    choice = ImageChoice(channel=1)
    assert read_item(item(folder, 0), choice) == chosen_bytes(channels[0], choice)
    with pytest.raises(InvalidInput, match="has 2 channels: choose one with --channel 0 to 1"):
        read_item(item(folder, 0), PLAIN)
    grey = zarr2(tmp_path / "hw.zarr", PLANES[0, 0])
    assert read_item(item(grey), PLAIN) == chosen_bytes(PLANES[0, 0], PLAIN)
    with pytest.raises(InvalidInput, match=r"has 1 plane\(s\), and no plane 7: it was changed"):
        read_item(item(grey, 7), PLAIN)


def test_a_zarr_array_of_the_package_itself(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(tmp_path / "v3.zarr", shape=(3, 20, 30), chunks=(1, 10, 10), dtype="uint16")
    array[:] = PLANES[:, 0]
    assert read_item(item(tmp_path / "v3.zarr", 2), PLAIN) == chosen_bytes(PLANES[2, 0], PLAIN)
    (tmp_path / "v3.zarr" / "c" / "1" / "0" / "0").write_bytes(b"damaged")
    with pytest.raises(InvalidInput, match="the image is damaged or cut short"):
        read_item(item(tmp_path / "v3.zarr", 1), PLAIN)


def test_the_size_is_upright() -> None:
    picture = Image.new("RGB", (6, 4))
    exif = Image.Exif()
    exif[EXIF_ORIENTATION] = 6
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", exif=exif)
    assert size_of(buffer.getvalue()) == (4, 6)
    assert size_of(png(7, 5)) == (7, 5)


def test_the_size_of_a_tiff_that_only_the_server_can_decode(tmp_path: Path) -> None:
    data = stack(tmp_path / "a.tif", np.zeros((4, 5), np.uint8)).read_bytes()
    compression = data.index(b"\x03\x01\x03\x00\x01\x00\x00\x00\x01\x00")
    data = data[: compression + 8] + b"\x5a\xc3" + data[compression + 10 :]
    assert size_of(data) == (5, 4)


@pytest.mark.parametrize(
    ("name", "data", "page", "message"),
    [
        ("empty.png", b"", None, "the image is empty"),
        ("text.png", b"hello", None, "the image format is unknown"),
        ("page.png", b"%PDF-1.4", None, "this is a PDF"),
        ("cut.png", png()[:20], None, "the image is damaged or cut short|format is unknown"),
        ("cut.tif", b"II*\0\x08\0\0\0", None, "the image is damaged or cut short"),
        ("cut.tif", b"II*\0\x08\0\0\0", 3, "the image is damaged or cut short"),
        ("was-a-tiff", png(), 3, "has no pages: it was a TIFF when the job began"),
    ],
)
def test_what_is_no_image(tmp_path: Path, name: str, data: bytes, page: int | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_item(item(write(tmp_path / name, data), page), PLAIN)


def test_a_page_that_a_shorter_stack_has_not(tmp_path: Path) -> None:
    path = stack(tmp_path / "a.tif", PLANES[:, 0])
    read_item(item(path, 2), PLAIN)
    stack(path, PLANES[:2, 0])
    with pytest.raises(InvalidInput, match=r"the TIFF has 2 page\(s\), and 2 is none of 0 to 1"):
        read_item(item(path, 2), PLAIN)


def test_a_file_that_has_vanished_fails_alone_and_a_folder_stops_the_job(tmp_path: Path) -> None:
    write(tmp_path / "in" / "b.png", png())
    gone = item(tmp_path / "in" / "a.png")
    with pytest.raises(InvalidInput, match=r"a\.png has vanished since the job began"):
        read_item(gone, PLAIN)
    (tmp_path / "in" / "b.png").unlink()
    with pytest.raises(JobStopped, match="/in is empty: is its disk or network share mounted"):
        read_item(gone, PLAIN)
    shutil.rmtree(tmp_path / "in")
    with pytest.raises(JobStopped, match="/in is gone: is its disk or network share mounted"):
        read_item(gone, PLAIN)


def test_a_bad_sector_is_one_images_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = write(tmp_path / "a.png", png())
    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(InvalidInput, match=r"cannot read .*a.png: Input/output error"):
        read_item(item(path), PLAIN)
    monkeypatch.setattr(os, "scandir", failing)  # nothing else can be read either
    with pytest.raises(JobStopped, match="does not work"):
        read_item(item(path), PLAIN)


@pytest.mark.parametrize("code", [errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT])
def test_a_share_that_does_not_respond_stops_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    path = write(tmp_path / "a.png", png())
    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(JobStopped, match="does not work: run the same command again when it does"):
        read_item(item(path), PLAIN)


def test_a_share_that_goes_away_inside_a_stack_stops_the_job_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stack(tmp_path / "a.tif", np.zeros((3, 100, 100), np.uint16))
    before = read_item(item(path, 0), PLAIN)
    opened = reading._opened.cache_info().misses

    class Stale(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.ESTALE, "Stale file handle")

    file, _ = reading._opened((path, path.stat().st_size, path.stat().st_mtime_ns))
    with monkeypatch.context() as stale:
        stale.setattr(file, "_file", Stale())
        with pytest.raises(JobStopped, match="Stale file handle"):
            read_item(item(path, 1), PLAIN)
    file.close()
    assert read_item(item(path, 0), PLAIN) == before
    assert reading._opened.cache_info().misses in (1, opened + 1)


def test_a_file_without_the_right_to_read_it_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    path = write(tmp_path / "a.png", png())
    monkeypatch.setattr(Path, "read_bytes", failing)
    with pytest.raises(InvalidInput, match=r"cannot read .*a\.png: Permission denied"):
        read_item(item(path), PLAIN)


def test_a_zarr_share_that_goes_away_is_no_empty_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zarr takes chunks that are not there as empty."""
    zarr = pytest.importorskip("zarr")
    folder = zarr2(tmp_path / "in" / "a.zarr", PLANES[:, 0])
    open_array = zarr.open_array

    def unmounted(*arguments: Any, **options: Any) -> Any:
        array = open_array(*arguments, **options)
        shutil.rmtree(tmp_path / "in")
        return array

    monkeypatch.setattr(zarr, "open_array", unmounted)
    with pytest.raises(JobStopped, match="is its disk or network share mounted"):
        read_item(item(folder, 1), PLAIN)


def test_a_worker_without_zarr_stops_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise SetupError("Zarr arrays need the package zarr")

    folder = zarr2(tmp_path / "a.zarr", PLANES[:, 0])
    monkeypatch.setattr(reading.zarr_arrays, "_zarr", missing)
    with pytest.raises(JobStopped, match="Zarr arrays need the package zarr"):
        read_item(item(folder, 1), PLAIN)

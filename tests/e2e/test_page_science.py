"""Scientific images on the page: what the canvas shows is what the model is given, and both are numpy's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.e2e.browser import OpenPage, serious_findings, wait_until
from tests.e2e.list_helpers import expect_open
from tests.e2e.page_helpers import PATIENCE
from tests.e2e.science_helpers import Bench, cells, stretch, windowed
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
CELL = (150, 95)


@pytest.fixture
def bench(server: RunningServer, open_page: OpenPage) -> Bench:
    return Bench(open_page(server.urls["service"]), server.urls["service"])


def test_a_window_is_moved_and_kept(bench: Bench, tmp_path: Path, axe: str) -> None:
    """16 bits: stretched at first, then by numbers and by keys; masks stay, and a reload changes nothing."""
    samples = (300 + 14.5 * cells()).astype(np.uint16)
    tifffile.imwrite(tmp_path / "cells.tif", samples)
    bench.open(tmp_path / "cells.tif")
    page, screen = bench.page, bench.screen
    low, high = stretch(samples)
    np.testing.assert_array_equal(bench.given(), windowed(samples, low, high))
    bench.expect_shown(windowed(samples, low, high))
    assert bench.told == f"Stretched from {low:,} to {high:,}; the model sees this."

    screen.picture = Image.fromarray(bench.given()).convert("RGB")
    pixel = screen.click(*CELL)
    mask = screen.best(screen.asked_at(*pixel))
    screen.expect_mask(mask, exact=True)

    given = bench.given_after(lambda: bench.type("White", 2000))
    np.testing.assert_array_equal(given, windowed(samples, low, 2000))
    page.locator(".histogram input[data-end=low]").focus()
    given = bench.given_after(lambda: page.keyboard.press("ArrowRight"))
    moved = int(page.locator("#contrast").get_by_label("Black", exact=True).input_value())
    assert moved > low
    np.testing.assert_array_equal(given, windowed(samples, moved, 2000))
    bench.expect_shown(given)
    screen.expect_mask(mask, exact=True)
    assert serious_findings(page, axe) == []

    screen.picture = Image.fromarray(given).convert("RGB")
    asked = len(screen.asked)
    screen.press("n")
    other = screen.click(330, 200)
    assert screen.answers(screen.asked_at(*other)), "the new mask is of the new pixels"
    assert all(body["points"] != [list(pixel)] or body["labels"] != [1] for body in screen.asked[asked:])
    screen.rows.nth(1).wait_for()
    told = bench.told
    wait_until(page, lambda: page.evaluate("document.querySelectorAll('.facts').length") == 2)
    page.reload()
    page.locator(".histogram").wait_for(timeout=PATIENCE * 1000)
    assert bench.told == told
    bench.expect_shown(given)
    bench.keep_uploads()
    full = bench.given_after(lambda: page.get_by_role("button", name="Full").click())
    np.testing.assert_array_equal(full, windowed(samples, samples.min(), samples.max()))


def test_channels_are_chosen(bench: Bench, tmp_path: Path) -> None:
    """Two dyes in their colours, then one of them as grey, then the other as red."""
    dapi, gfp = (200 + 11 * cells(2)).astype(np.uint16), (90 + 4 * cells(1)).astype(np.uint16)
    names = {"axes": "CYX", "Channel": {"Name": ["DAPI", "GFP"]}}
    tifffile.imwrite(tmp_path / "two.ome.tif", np.stack([dapi, gfp]), metadata=names)
    bench.open(tmp_path / "two.ome.tif")
    panel = bench.page.locator("#contrast")
    blue, green = windowed(dapi, *stretch(dapi)), windowed(gfp, *stretch(gfp))
    coloured = np.stack([np.zeros_like(blue), green, blue], axis=-1)
    np.testing.assert_array_equal(bench.given(), coloured)
    bench.expect_shown(coloured)
    assert "DAPI from" in bench.told

    given = bench.given_after(lambda: panel.get_by_label("Show").select_option("GFP"))
    np.testing.assert_array_equal(given, green)
    bench.expect_shown(green)
    bench.given_after(lambda: panel.get_by_label("Show").select_option("Several in colour"))
    panel.get_by_role("radio", name="DAPI").click()
    given = bench.given_after(lambda: bench.type("Black", 500))
    blue = windowed(dapi, 500, stretch(dapi)[1])
    np.testing.assert_array_equal(given, np.stack([np.zeros_like(blue), green, blue], axis=-1))


def test_a_stack_becomes_images_of_the_list(bench: Bench, tmp_path: Path) -> None:
    """Five pages, each with its own stretch; one window for all; the page is in the exports' names."""
    stack = np.stack([np.roll(300 + 9 * cells(), 37 * page, 1) / (1 + page) for page in range(5)]).astype(np.uint16)
    tifffile.imwrite(tmp_path / "stack.tif", stack, photometric="minisblack")
    bench.open(tmp_path / "stack.tif")
    page, screen = bench.page, bench.screen
    rows = page.locator("#image-rows [role=option] .image-name")
    wait_until(page, lambda: rows.all_inner_texts() == [f"stack.tif#{number}" for number in range(1, 6)], PATIENCE)
    bench.expect_shown(windowed(stack[0], *stretch(stack[0])))
    page.locator("#contrast").get_by_label("Page").select_option("3 of 5")
    expect_open(page, "stack.tif#3")
    bench.expect_shown(windowed(stack[2], *stretch(stack[2])))

    use = page.locator("#contrast").get_by_role("button", name="Use for all 5 pages")
    use.click()
    use.and_(page.locator(":enabled")).wait_for(timeout=PATIENCE * 1000)
    screen.press("PageDown")
    expect_open(page, "stack.tif#4")
    bench.expect_shown(windowed(stack[3], *stretch(stack[2])))

    screen.click(*CELL)
    screen.row("Object 1").locator(".facts", has_text="px").wait_for(timeout=PATIENCE * 1000)
    with page.expect_download() as begun:
        page.get_by_role("button", name="COCO JSON").click()
    assert begun.value.suggested_filename == "stack-4-coco.json"
    document = json.loads(Path(begun.value.path()).read_text())
    assert [image["file_name"] for image in document["images"]] == ["stack.tif#4"]


def test_floats_without_a_value_are_black(bench: Bench, tmp_path: Path) -> None:
    """Numbers are shown in the file's values, and what is not a number does not move the window."""
    values = (cells() / 255 - 0.1).astype(np.float32)
    values[:60, :90] = np.nan
    tifffile.imwrite(tmp_path / "float.tif", values)
    bench.open(tmp_path / "float.tif")
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    spread = (np.where(np.isfinite(values), values, low).astype(np.float64) - low) / (high - low)
    samples = np.rint(65535 * spread).astype(np.uint16)
    start, end = stretch(samples[np.isfinite(values)])
    given = bench.given()
    assert not given[:60, :90].any()
    # The mapping to 16 bits may round otherwise by one of 65536.
    assert np.abs(given.astype(int) - windowed(samples, start, end).astype(int)).max() <= 1
    bench.expect_shown(given)
    assert "no numbers are black" in bench.told
    black = bench.page.locator("#contrast").get_by_label("Black", exact=True)
    assert float(black.input_value()) == pytest.approx(low + start / 65535 * (high - low), abs=1e-4)


def test_an_ordinary_picture_has_a_contrast_too(bench: Bench) -> None:
    """Closed at first; as in the file until it is moved."""
    screen, page = bench.screen, bench.page
    screen.open_sample()
    assert screen.picture is not None
    before = np.asarray(screen.picture)
    assert not page.locator(".histogram").is_visible()
    page.get_by_text("Contrast", exact=True).click()
    page.locator(".histogram").wait_for(timeout=PATIENCE * 1000)
    assert bench.told == "Brightness as in the file; the model sees this."
    given = bench.given_after(lambda: bench.type("White", 180))
    # Chromium and Pillow may decode a JPEG otherwise by a few levels.
    assert np.abs(given.astype(int) - windowed(before, 0, 180).astype(int)).mean() < 2
    bench.expect_shown(given)


def test_what_the_service_refuses_is_said(bench: Bench, tmp_path: Path, page_log: Any) -> None:
    page_log.expect("status of 400")
    (tmp_path / "broken.tif").write_bytes(b"II*\0" + bytes(40))
    bench.page.locator("#file").set_input_files(tmp_path / "broken.tif")
    notice = bench.page.locator(".notice[data-kind=picture]")
    notice.wait_for(timeout=PATIENCE * 1000)
    assert "TIFF" in notice.inner_text()

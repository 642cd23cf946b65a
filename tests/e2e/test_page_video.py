"""Objects through a video on the page, from a drop to exports; masks on the canvas are the API's."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import av
import numpy as np
import pytest

from tests.e2e.browser import OpenPage, serious_findings, wait_until
from tests.e2e.page_helpers import PATIENCE
from tests.e2e.video_helpers import FIRST, FRAMES, SECOND, VideoScreen, write_clip
from tests.integration.serve_folder import serve_folder
from tests.video_serving import MODEL_ID, SIZE
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.triton, pytest.mark.torch]

LONG = 150
_DROP = """([name, type, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type }));
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true }));
}"""


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), threads="1") as started:
        yield started


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "blobs.mp4")


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """So long that one can cancel."""
    return write_clip(tmp_path_factory.mktemp("clip") / "long.mp4", LONG)


@pytest.fixture
def screen(running: RunningServer, open_page: OpenPage) -> VideoScreen:
    page = open_page(running.urls["service"])
    page.locator("html[data-ready]").wait_for()
    return VideoScreen(page, running.urls["service"])


def drop(page: Page, path: Path) -> None:
    page.evaluate(_DROP, [path.name, "video/mp4", base64.b64encode(path.read_bytes()).decode("ascii")])


def test_drop_click_track_correct_and_export(screen: VideoScreen, clip: Path) -> None:
    page = screen.page
    with page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
        drop(page, clip)
    info = screen.opened(sent.value)
    assert (info["width"], info["height"], info["frames"], info["model"]) == (*SIZE, FRAMES, MODEL_ID)
    assert page.locator("#video-memory").is_hidden()

    asked = screen.prompt(*FIRST)
    assert (asked["object_id"], asked["frame_index"], asked["labels"]) == (1, 0, [1])
    assert asked["points"] == [list(screen.view.pixel(*screen.view.place(*FIRST)))]
    screen.press("n")
    with page.expect_response("**/prompts") as answered:
        screen.drag((90, 20), (120, 60), (150, 90))
    assert answered.value.request.post_data_json["object_id"] == 2
    np.testing.assert_allclose(answered.value.request.post_data_json["box"], [90, 20, 150, 90], atol=1)
    screen.expect_masks(0, [1, 2])
    screen.expect_lane(1, "not tracked in frames", 1, FRAMES - 1)

    screen.track("forward")
    wait_until(page, lambda: "not tracked" not in screen.lane(1) + screen.lane(2))
    seen = False
    for number in (0, 5, FRAMES - 1):
        screen.go(number)
        seen |= any(mask.any() for mask in screen.expect_masks(number, [1, 2]).values())
    assert seen, "the test needs a mask"

    screen.go(4)
    asked = screen.prompt(70, 60, shift=True)
    assert (asked["object_id"], asked["frame_index"], asked["labels"]) == (2, 4, [0])
    screen.expect_lane(2, "older than a correction in frames", 5, FRAMES - 1)
    assert "older" not in screen.lane(1)
    screen.expect_masks(4, [1, 2])
    again = page.get_by_role("button", name="Track again from frame 4")
    with page.expect_request("**/propagate") as propagation:
        again.click()
    assert propagation.value.post_data_json == {"start_frame_index": 4, "direction": "forward"}
    screen.expect_tracked()
    wait_until(page, lambda: "older" not in screen.lane(2))
    assert again.is_hidden()
    screen.go(9)
    screen.expect_masks(9, [1, 2])
    screen.expect_picture(9)

    coco = json.loads(exported(page, "coco"))
    shown = {(row["image_id"], row["track_id"]) for row in coco["annotations"]}
    ninth = {row["track_id"]: from_rle(row["segmentation"]) for row in coco["annotations"] if row["image_id"] == 10}
    found = {name: mask for name, mask in screen.masks(9).items() if mask.any()}
    assert ninth.keys() == found.keys()
    assert all(np.array_equal(ninth[name], mask) for name, mask in found.items())
    assert shown
    with av.open(io.BytesIO(exported(page, "mp4"))) as film:
        assert sum(1 for _ in film.decode(video=0)) == FRAMES


def exported(page: Page, format_: str) -> bytes:
    with page.expect_download(timeout=PATIENCE * 1000) as download:
        page.locator(f"#video-exports [data-format={format_}]").click()
    return Path(download.value.path()).read_bytes()


def test_cancel_and_keys(screen: VideoScreen, long_clip: Path, axe: str) -> None:
    """Cancel stops the server too, and what was tracked stays; then the keyboard alone."""
    page = screen.page
    screen.open(long_clip)
    assert serious_findings(page, axe) == []
    screen.prompt(*SECOND)
    page.locator("#video-forward").click()
    page.locator("#video-progress-text", has_text=f"of {LONG} frames").wait_for()
    wait_until(page, lambda: "present" in screen.lane(1) or "lost" in screen.lane(1))
    assert serious_findings(page, axe) == []
    page.locator("#video-cancel").click()
    screen.expect_tracked()
    known = screen.api.get(f"/v1/videos/{screen.id}").json()
    assert not known["propagating"]
    ((first, last),) = known["tracked"]
    assert (first, last < LONG - 1) == (0, True)
    screen.expect_lane(1, "not tracked in frames", last + 1, LONG - 1)
    screen.go(last)
    screen.expect_masks(last, [1])

    keys = ("Home", "ArrowRight", "ArrowRight", "Shift+ArrowRight", "ArrowLeft", "End", "Shift+ArrowLeft")
    for key, number in zip(keys, (0, 1, 2, 12, 11, LONG - 1, LONG - 11), strict=True):
        screen.press(key)
        screen.expect_frame(number)
    page.keyboard.press(" ")
    page.get_by_role("button", name="Pause").wait_for()
    screen.expect_frame(LONG - 1)
    page.get_by_role("button", name="Play").wait_for()
    screen.press("Home")
    page.keyboard.press("n")
    page.keyboard.press("d")  # the crosshair comes, in the middle
    with page.expect_response("**/prompts") as answered:
        page.keyboard.press("Shift+Enter")
    asked = answered.value.request.post_data_json
    assert (asked["object_id"], asked["labels"]) == (2, [0])
    assert np.abs(np.subtract(asked["points"][0], np.array(SIZE) / 2)).max() < 5
    screen.expect_masks(0, [1, 2])
    with page.expect_response("**/prompts?*") as cleared:
        page.keyboard.press("c")
    assert cleared.value.ok, cleared.value.text()
    with page.expect_response("**/objects/2") as removed:
        page.keyboard.press("Delete")
    assert removed.value.status == 204
    screen.expect_masks(0, [1])

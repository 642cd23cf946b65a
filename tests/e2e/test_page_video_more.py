"""Videos on the page: stacks, a reload, phones, what goes wrong, and servers without a model for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.browser import OpenPage, PageLog, serious_findings, wait_until
from tests.e2e.page_helpers import PATIENCE, Screen, service_of
from tests.e2e.test_page_devices import PHONE, Fingers
from tests.e2e.video_helpers import FIRST, FRAMES, SECOND, VideoScreen, write_clip, write_stack
from tests.integration.serve_folder import serve_folder
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.triton, pytest.mark.torch]


def ready(page: Page) -> Page:
    page.locator("html[data-ready]").wait_for()
    return page


def test_a_server_without_a_model_for_videos_says_which_command_to_run(
    server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    screen = Screen(ready(open_page(server.urls["service"])), server.urls["service"])
    assert screen.page.locator("#drop-video").is_hidden()
    (tmp_path / "clip.mp4").write_bytes(bytes(2000))
    screen.page.locator("#file").set_input_files(tmp_path / "clip.mp4")
    screen.expect_notice("picture", "triton-sam serve sam2:tiny_video")
    assert screen.page.locator("#video-work").count() == 0


@pytest.fixture(scope="module")
def running(
    video_repository: Path, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with serve_folder(video_repository, tmp_path_factory.mktemp("home"), threads="1") as started:
        yield started


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "blobs.mp4")


def opened(page: Page, running: RunningServer, clip: Path) -> VideoScreen:
    screen = VideoScreen(ready(page), running.urls["service"])
    screen.open(clip)
    return screen


@pytest.mark.part("video")
def test_a_stack_has_slices_and_is_tracked_both_ways(
    running: RunningServer, open_page: OpenPage, tmp_path: Path, axe: str
) -> None:
    """The user is asked what a TIFF with pages is; 16 bits are scaled once, which is told."""
    page = ready(open_page(running.urls["service"]))
    screen = VideoScreen(page, running.urls["service"])
    page.locator("#file").set_input_files(write_stack(tmp_path / "cells.tif"))
    page.locator("dialog", has_text=f"cells.tif has {FRAMES} pages").wait_for(timeout=PATIENCE * 1000)
    assert serious_findings(page, axe) == []
    with page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
        page.locator("dialog [data-choice=z]").click()
    info = screen.opened(sent.value)
    assert (info["axis"], info["frames"]) == ("z", FRAMES)
    assert info["contrast"]["note"] in page.locator("#video-notes").inner_text()
    assert "16" in page.locator("#video-notes").inner_text()
    assert "slices" in page.locator("#video-facts").inner_text()
    assert "strong" in (page.locator("#video-both").get_attribute("class") or "")
    screen.go(7)
    screen.prompt(*FIRST)
    with page.expect_request("**/propagate") as propagation:
        screen.press("t")
    assert propagation.value.post_data_json == {"start_frame_index": 7, "direction": "both"}
    screen.expect_tracked()
    wait_until(page, lambda: "not tracked" not in screen.lane(1))
    for number in (0, 7, FRAMES - 1):
        screen.go(number)
        screen.expect_masks(number, [1])
    screen.go(5)
    screen.prompt(*SECOND)
    screen.expect_lane(1, "older than a correction in slices", 0, 4)
    page.get_by_role("button", name="Track again from slice 5").wait_for()
    assert serious_findings(page, axe) == []


@pytest.mark.part("video")
def test_a_stack_with_channels_is_asked_for_one(
    running: RunningServer, open_page: OpenPage, tmp_path: Path, axe: str, page_log: PageLog
) -> None:
    page_log.expect("status of 400")
    page = ready(open_page(running.urls["service"]))
    screen = VideoScreen(page, running.urls["service"])
    about = f"ImageJ=1.53t\nimages={FRAMES}\nchannels=2\nslices={FRAMES // 2}\nhyperstack=true\n"
    page.locator("#file").set_input_files(write_stack(tmp_path / "dyes.tif", about=about))
    page.locator("dialog [data-choice=z]").click(timeout=PATIENCE * 1000)
    screen.expect_notice("video", "c from 0 to 1")
    page.get_by_role("button", name="Choose").click()
    page.get_by_label("Channel, 0 to 1").fill("1")
    assert serious_findings(page, axe) == []
    with page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
        page.locator("dialog").get_by_role("button", name="Open").click()
    info = screen.opened(sent.value)
    assert (info["axis"], info["frames"]) == ("z", FRAMES // 2)
    screen.prompt(*FIRST)
    screen.expect_masks(0, [1])


@pytest.mark.part("video")
def test_pages_are_added_to_the_list_if_the_user_wants_that(
    running: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    page = ready(open_page(running.urls["service"]))
    page.locator("#file").set_input_files(write_stack(tmp_path / "cells.tif", 3))
    page.locator("dialog [data-choice=images]").click(timeout=PATIENCE * 1000)
    page.locator("#image-rows .image-row").nth(2).wait_for()
    page.locator("#file").set_input_files(write_stack(tmp_path / "more.tif", 3))
    page.locator("dialog").get_by_role("button", name="Close").click(timeout=PATIENCE * 1000)
    page.locator("dialog[open]").wait_for(state="detached")
    assert page.locator("#image-rows .image-row").count() == 3


@pytest.mark.part("video")
def test_a_reload_finds_the_video_again(running: RunningServer, open_page: OpenPage, clip: Path) -> None:
    screen = opened(open_page(running.urls["service"]), running, clip)
    page = screen.page
    screen.prompt(*FIRST)
    screen.press("n")
    screen.prompt(*SECOND)
    screen.track()
    lanes = screen.lane(1), screen.lane(2)
    page.reload()
    ready(page)
    screen.expect_frame(0)
    wait_until(page, lambda: (screen.lane(1), screen.lane(2)) == lanes)
    screen.go(6)
    screen.expect_masks(6, [1, 2])
    screen.go(0)
    asked = screen.prompt(90, 80)
    assert (asked["object_id"], len(asked["points"])) == (2, 2)
    page.on("dialog", lambda dialog: dialog.accept())
    page.locator("#video-close").click()
    page.locator("#video-work").wait_for(state="detached")
    wait_until(page, lambda: screen.api.get(f"/v1/videos/{screen.id}").status_code == 404)
    assert page.locator("#modes").is_hidden()


@pytest.mark.part("video")
def test_on_a_phone(running: RunningServer, open_page: OpenPage, clip: Path, axe: str) -> None:
    """Nothing is wider than the window; taps prompt, and a finger scrubs."""
    screen = opened(open_page(running.urls["service"], **PHONE), running, clip)  # type: ignore[arg-type]
    page, fingers = screen.page, Fingers(screen.page)
    view = screen.view
    with page.expect_response("**/prompts") as answered:
        page.touchscreen.tap(*view.place(*FIRST))
    assert answered.value.ok
    page.locator("#video-forward").tap()
    screen.expect_tracked()
    strip = page.locator("#video-strip").bounding_box()
    assert strip is not None
    y = strip["y"] + strip["height"] / 2
    at = lambda number: strip["x"] + strip["width"] * (number + 0.5) / FRAMES  # noqa: E731
    fingers.slide([(at(number), y) for number in (1, 3, 6, 9)])
    screen.expect_frame(9)
    screen.expect_masks(9, [1])
    fits = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
    assert page.evaluate(fits)
    outside = page.evaluate(
        """() => [...document.querySelectorAll("#video-work button, #video-work input, .top button")]
          .filter((control) => control.checkVisibility({ visibilityProperty: true }))
          .filter((control) => {
            const { left, right, width } = control.getBoundingClientRect();
            return width === 0 || left < -1 || right > innerWidth + 1;
          })
          .map((control) => control.id || control.getAttribute("aria-label"))"""
    )
    assert outside == []
    assert serious_findings(page, axe) == []
    page.locator("#video-show-panel").tap()
    page.locator("#video-panel.open").wait_for()
    page.locator("#video-objects .facts", has_text="in ").wait_for()
    screen.frames(20)  # the sheet moves
    assert serious_findings(page, axe) == []


@pytest.mark.part("video")
def test_the_dark(running: RunningServer, open_page: OpenPage, clip: Path, axe: str) -> None:
    screen = opened(open_page(running.urls["service"], dark=True), running, clip)
    screen.prompt(*FIRST)
    screen.track()
    assert serious_findings(screen.page, axe) == []
    screen.page.get_by_role("button", name="Help and shortcuts").click()
    screen.page.locator("#help-dialog", has_text="In a video").wait_for()


@pytest.mark.part("video")
def test_what_goes_wrong_is_told_in_the_services_sentence(
    running: RunningServer, open_page: OpenPage, clip: Path, tmp_path: Path, page_log: PageLog
) -> None:
    page_log.expect(r"status of 4\d\d")
    page = ready(open_page(running.urls["service"]))
    screen = VideoScreen(page, running.urls["service"])
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(clip.read_bytes()[:400] + bytes(3000))
    with page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
        page.locator("#file").set_input_files(broken)
    told = sent.value.json()["error"]["message"]
    screen.expect_notice("video", told[1:])
    assert page.locator("#video-work").count() == 0

    screen.open(clip)
    screen.expect_no_notice("video")
    screen.prompt(*FIRST)
    before = screen.id
    assert screen.api.delete(f"/v1/videos/{before}").status_code == 204  # as after an hour
    screen.click(*SECOND)
    screen.expect_notice("video", "there is no such video"[1:])
    with page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
        page.get_by_role("button", name="Open it again").click()
    screen.opened(sent.value)
    assert screen.id != before
    wait_until(page, lambda: screen.masks(0))
    page.locator("#video-objects [data-object='1']").wait_for()
    screen.expect_frame(0)
    screen.expect_masks(0, [1])


@pytest.mark.part("video")
def test_a_file_that_is_too_large_is_not_sent(running: RunningServer, open_page: OpenPage, tmp_path: Path) -> None:
    (tmp_path / "huge.mp4").write_bytes(bytes(200_000))
    with service_of(running, video_upload_bytes=100_000) as address:
        screen = VideoScreen(ready(open_page(address)), address)
        screen.page.locator("#file").set_input_files(tmp_path / "huge.mp4")
        screen.expect_notice("picture", "200,000 bytes and 100,000 are allowed")


@pytest.mark.part("video")
def test_images_and_a_video_side_by_side(running: RunningServer, open_page: OpenPage, clip: Path) -> None:
    """An image that is opened is shown; the video waits, with its keys."""
    screen = opened(open_page(running.urls["service"]), running, clip)
    page = screen.page
    screen.prompt(*FIRST)
    page.get_by_role("button", name="Samples").click()
    page.locator("#samples-list .sample[data-sample=coffee]").click()
    page.locator("#surface").wait_for()
    assert page.locator("#video-work").is_hidden()
    page.locator("#surface").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("radio", name="Video").click()
    page.locator("#video-work").wait_for()
    screen.expect_frame(0)
    screen.press("ArrowRight")
    screen.expect_frame(1)
    screen.press("Home")
    screen.expect_masks(0, [1])
    assert page.locator("#work").is_hidden()
    asked: list[str] = []
    page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.locator("#file").set_input_files(clip)
    wait_until(page, lambda: asked)
    assert "prompts and masks are lost" in asked[0]
    screen.expect_masks(0, [1])
    before = screen.id
    page.once("dialog", lambda dialog: dialog.accept())
    screen.open(clip)
    wait_until(page, lambda: page.locator("#video-objects [data-object]").count() == 0)
    wait_until(page, lambda: screen.api.get(f"/v1/videos/{before}").status_code == 404)

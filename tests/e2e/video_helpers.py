"""One open video on the page as a person sees and uses it, and a clip for the small network with a memory."""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
from PIL import Image

from tests.e2e.browser import wait_until
from tests.e2e.page_helpers import PATIENCE, Mask, Screen, View
from tests.video_serving import SIZE, frame
from triton_sam.core.label_overlay import label_colours
from triton_sam.core.rle import from_rle

if TYPE_CHECKING:
    from playwright.sync_api import Page

FRAMES = 16
#: Places in frame 0.
FIRST, SECOND = (60, 50), (118, 52)
_VIEW = """() => {
  const surface = document.getElementById("video-surface");
  const { left, top } = surface.getBoundingClientRect();
  const { width, height } = document.getElementById("video-masks");
  const { scale, x, y } = surface.dataset;
  return [Number(scale), Number(x), Number(y), width, height, left, top, devicePixelRatio];
}"""


@functools.cache
def picture(number: int) -> Image.Image:
    return Image.open(io.BytesIO(frame(number))).convert("RGB")


def write_clip(path: Path, frames: int = FRAMES) -> Path:
    """A video of the pictures that the small network has objects in."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("libx264", rate=25)
        stream.width, stream.height = SIZE
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            file.mux(stream.encode(av.VideoFrame.from_image(picture(number))))
        file.mux(stream.encode(None))
    return path


def write_stack(path: Path, frames: int = FRAMES, about: str = "") -> Path:
    """A TIFF of 16 bits with a page for each picture.

    Args:
        about: its description, by which ImageJ tells what pages are.
    """
    pages = [
        Image.fromarray(np.asarray(picture(number).convert("L")).astype(np.uint16) * 12) for number in range(frames)
    ]
    pages[0].save(path, save_all=True, append_images=pages[1:], description=about)
    return path


def colour_of(name: int) -> str:
    """Of an object, on the page and in exported videos."""
    return f"#{bytes(label_colours(name)[name]).hex()}"


class VideoScreen(Screen):
    """Attributes:
    id: of the open video.
    """

    def __init__(self, page: Page, service: str) -> None:
        super().__init__(page, service)
        self.id = ""

    @property
    def view(self) -> View:
        scale, x, y, width, height, left, top, unit = self.page.evaluate(_VIEW)
        return View(scale, x, y, int(width), int(height), left, top, unit)

    # -- a person's hands ------------------------------------------------------------------------------------------

    def open(self, path: Path) -> dict[str, Any]:
        """By the file dialogue; returns what the service said of it, when its first frame is to be seen."""
        with self.page.expect_response("**/v1/videos", timeout=PATIENCE * 1000) as sent:
            self.page.locator("#file").set_input_files(path)
        return self.opened(sent.value)

    def opened(self, answer: Any) -> dict[str, Any]:
        assert answer.status == 201, answer.text()
        info: dict[str, Any] = answer.json()
        self.id = info["id"]
        self.page.locator("#video-surface").wait_for()
        self.expect_frame(0)
        return info

    def go(self, number: int) -> None:
        """By typing its number."""
        self.page.locator("#video-number").fill(str(number))
        self.page.locator("#video-number").press("Enter")
        self.expect_frame(number)
        self.page.locator("#video-surface").focus()

    def press(self, keys: str) -> None:
        self.page.locator("#video-surface").focus()
        self.page.keyboard.press(keys)

    def prompt(self, x: float, y: float, **how: Any) -> dict[str, Any]:
        """A click; gives what the page asked the service, once it is answered."""
        with self.page.expect_response("**/prompts", timeout=PATIENCE * 1000) as answered:
            self.click(x, y, **how)
        assert answered.value.ok, answered.value.text()
        asked: dict[str, Any] = answered.value.request.post_data_json
        return asked

    def track(self, way: str = "forward") -> None:
        """By its button; returns at the end."""
        self.page.locator(f"#video-{way}").click()
        self.expect_tracked()

    # -- what is so in the end -------------------------------------------------------------------------------------

    def expect_frame(self, number: int) -> None:
        """It is to be seen, and the timeline is there."""
        self.page.locator(f"#video-surface[data-frame='{number}']").wait_for(timeout=PATIENCE * 1000)
        self.page.locator(f"#video-strip[aria-valuenow='{number}']").wait_for()

    def expect_tracked(self) -> None:
        self.page.locator("#video-progress").wait_for(state="hidden", timeout=PATIENCE * 1000)

    def masks(self, number: int) -> dict[int, Mask]:
        """By object, from the API."""
        answer = self.api.get(f"/v1/videos/{self.id}/masks", params={"frame_index": number})
        assert answer.status_code == 200, answer.text
        return {row["object_id"]: from_rle(row["mask"]) for row in answer.json()["results"]}

    def expect_masks(self, number: int, names: Sequence[int]) -> dict[int, Mask]:
        """All pixels of the canvas are those of the API's masks, in the objects' colours, the last one on top."""
        found = self.masks(number)
        assert sorted(found) == sorted(names)
        view = self.view
        owners = np.zeros((view.height, view.width), np.uint8)
        for place, name in enumerate(sorted(found), 1):
            owners[view.sample(found[name])] = place
        colours = [colour_of(name) for name in sorted(found)]
        read = lambda: self.owners(colours, "video-masks")  # noqa: E731
        self._until_equal(read, owners, f"frame {number}")
        return found

    def expect_picture(self, number: int) -> None:
        """The canvas shows this frame, and not the one beside it: the middle of each of its pixels is compared."""
        view = self.view
        x, y = np.arange(SIZE[0]) + 0.5, np.arange(SIZE[1]) + 0.5
        columns, rows = np.floor(view.x + x * view.scale).astype(int), np.floor(view.y + y * view.scale).astype(int)
        shown = self.canvas("video-picture")[rows][:, columns, :3].astype(int)

        def distance(index: int) -> float:
            answer = self.api.get(f"/v1/videos/{self.id}/frames/{index}")
            assert answer.status_code == 200, answer.text
            return float(np.abs(shown - np.asarray(Image.open(io.BytesIO(answer.content)).convert("RGB"))).mean())

        assert distance(number) < min(0.5, distance(number - 1) / 2)

    def lane(self, name: int) -> str:
        """Where an object is, in words."""
        return self.page.locator(f".lane[data-object='{name}'] svg").get_attribute("aria-label") or ""

    def expect_lane(self, name: int, what: str, first: int, last: int) -> None:
        """Frames of which this is said, both ends included."""
        wait_until(self.page, lambda: f"{what} {first}\N{EN DASH}{last}" in self.lane(name))

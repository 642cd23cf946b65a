"""Scientific images as the tests make them, what numpy shows of them, and a page that has one."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tests.e2e.browser import wait_until
from tests.e2e.page_helpers import PATIENCE, Screen
from triton_sam.service.routes import synthetic_cells

if TYPE_CHECKING:
    from playwright.sync_api import Page

Samples = npt.NDArray[Any]
#: Keeps what the page uploads for encoding: the debugger does not show files in forms.
_KEEP_UPLOADS = """() => {
  window.uploads = [];
  const send = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (body) {
    if (body instanceof FormData) window.uploads.push(body.get("image"));
    return send.call(this, body);
  };
}"""
_LAST_UPLOAD = """async () => {
  const bytes = new Uint8Array(await window.uploads.at(-1).arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return btoa(text);
}"""


def cells(channel: int = 1) -> npt.NDArray[np.float64]:
    """[320,480], 0 to 255: a part of the sample with cells."""
    with Image.open(io.BytesIO(synthetic_cells.picture())) as picture:
        return np.asarray(picture.convert("RGB"))[:320, :480, channel].astype(np.float64)


def windowed(samples: Samples, low: float, high: float) -> npt.NDArray[np.uint8]:
    """What a window shows, by numpy."""
    share = np.clip((samples.astype(np.float64) - low) / (high - low), 0, 1)
    shown: npt.NDArray[np.uint8] = np.floor(255 * share + 0.5).astype(np.uint8)
    return shown


def stretch(samples: Samples) -> tuple[int, int]:
    """The automatic window, by numpy."""
    low, high = np.percentile(samples, [0.35, 99.65], method="inverted_cdf")
    return int(low), int(high)


class Bench:
    """A page with scientific images."""

    def __init__(self, page: Page, service: str) -> None:
        self.page = page
        self.screen = Screen(page, service)
        self.keep_uploads()

    def keep_uploads(self) -> None:
        """From now on, until the page is reloaded."""
        self.page.evaluate(_KEEP_UPLOADS)

    def open(self, path: Path) -> None:
        """Returns when it is encoded, and its histogram is shown."""
        with self.page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
            self.page.locator("#file").set_input_files(path)
        assert encoded.value.ok, encoded.value.text()
        self.page.locator(".histogram").wait_for(timeout=PATIENCE * 1000)

    def given_after(self, act: Callable[[], object]) -> npt.NDArray[np.uint8]:
        """[H,W] or [H,W,3]: the pixels that the model is given because of this."""
        with self.page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
            act()
        assert encoded.value.ok, encoded.value.text()
        return self.given()

    def given(self) -> npt.NDArray[np.uint8]:
        data = base64.b64decode(self.page.evaluate(_LAST_UPLOAD))
        with Image.open(io.BytesIO(data)) as picture:
            assert picture.format == "PNG"
            return np.asarray(picture)

    def expect_shown(self, pixels: npt.NDArray[np.uint8]) -> None:
        """The canvas has these pixels, all of them."""
        view = self.screen.actual_size()
        colours = pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2)
        height, width = colours.shape[:2]

        def is_shown() -> bool:
            shown = self.screen.canvas("picture")[int(view.y) :, int(view.x) :][:height, :width, :3]
            return np.array_equal(shown, colours)

        wait_until(self.page, is_shown)

    def type(self, label: str, value: float) -> None:
        """A number of the window."""
        self.page.locator("#contrast").get_by_label(label, exact=True).fill(str(value))
        self.page.keyboard.press("Enter")

    @property
    def told(self) -> str:
        return self.page.locator("#contrast-told").inner_text()

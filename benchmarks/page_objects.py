"""Does the page stay quick with hundreds of objects? The longest task of its main thread, step by step."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from PIL import Image

from benchmarks.instant_service import instant_service
from testkit.chromium import chromium
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SIDE, _RADIUS = 2048, 36.0
_BAR_MS = 100.0
#: A task blocks the page: clicks and frames wait for its end. Browsers report those of 50 ms and more.
_OBSERVE = """() => {
  window.tasks = [];
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) window.tasks.push(duration);
  }).observe({ type: "longtask" });
}"""
_TAKE = """async () => {
  await new Promise((resolve) => setTimeout(resolve, 600)); // saving begins after a pause
  return window.tasks.splice(0);
}"""
_IS_SHOWN = "() => document.querySelector('#surface').dataset.scale !== undefined"
#: All objects are there, and those whose rows are in the page have their masks.
_COUNT = """(count) => {
  const rows = [...document.querySelectorAll('#objects .facts')];
  const isAll = document.querySelector('#count-badge').textContent === String(count);
  return isAll && rows.every((facts) => !facts.textContent.includes("waiting"));
}"""


def run_page_objects(count: int) -> Result:
    """Makes ``count`` objects by clicks on an image of 2048 x 2048 pixels, and works with them."""
    result = Result("page-objects", about={"image": f"{_SIDE} x {_SIDE} px", "objects": str(count)})
    with instant_service(_SIDE, _RADIUS) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        result.figures += _Desk(page, count).figures()
    return result


class _Desk:
    """The page with an image open, and what a person does with it."""

    def __init__(self, page: Page, count: int) -> None:
        self._page = page
        self._count = count
        buffer = io.BytesIO()
        Image.effect_noise((_SIDE, _SIDE), 60).convert("RGB").save(buffer, "JPEG", quality=80)
        page.set_input_files("#file", {"name": "noise.jpg", "mimeType": "image/jpeg", "buffer": buffer.getvalue()})
        page.wait_for_function(_IS_SHOWN)
        page.evaluate(_OBSERVE)
        box = page.locator("#masks").bounding_box()
        assert box is not None
        side = 0.9 * min(box["width"], box["height"])
        left, top = box["x"] + (box["width"] - side) / 2, box["y"] + (box["height"] - side) / 2
        across = int(count**0.5) + 1
        self._places = [
            (left + side * (index % across + 0.5) / across, top + side * (index // across + 0.5) / across)
            for index in range(count)
        ]

    def figures(self) -> Iterator[Figure]:
        page, places = self._page, self._places
        page.locator("#one-click").check()
        some = min(20, self._count)
        self._clicks(places[:-some])
        self._settled(self._count - some)
        page.evaluate(_TAKE)
        yield self._longest("a click that makes an object", lambda: self._clicks(places[-some:], pause=100))
        self._settled(self._count)
        page.evaluate(_TAKE)
        yield self._longest("moving the mouse", lambda: self._moves(places[: 2 * some]))
        yield self._longest("choosing an object", lambda: self._choose(places[self._count // 2]))
        near = [(x + 3, y + 3) for x, y in places[self._count // 2 :][:some]]
        yield self._longest("moving the mouse with an active object", lambda: self._moves(near))
        yield self._longest("a click that refines", lambda: page.mouse.click(*near[some // 2]))
        yield self._longest("undo and redo", lambda: self._press("Control+z", "Control+z", "Control+Shift+z"))
        yield self._longest("zoom and move", self._look_around)
        yield self._longest("hiding and showing", lambda: self._press("h", "h"))
        yield self._longest("cleaning, another size", lambda: self._slide("#clean", "End"))
        yield self._longest("opacity", lambda: self._slide("#opacity", "ArrowLeft"))
        yield self._longest("deleting an object", lambda: self._press("Delete"))
        for label in ("PNG masks", "Label image", "COCO JSON", "GeoJSON", "Picture for a slide"):
            yield self._longest(f"export, {label}", partial(self._export, label), bar=None)

    def _longest(self, name: str, action: Callable[[], None], bar: float | None = _BAR_MS) -> Figure:
        action()
        tasks = self._page.evaluate(_TAKE)
        detail = f"{len(tasks)} tasks of 50 ms or more" if tasks else "no task of 50 ms or more"
        return Figure(name, max(tasks, default=0.0), "ms", bar, detail)

    def _settled(self, count: int) -> None:
        self._page.wait_for_function(_COUNT, arg=count, timeout=120_000)

    def _clicks(self, places: list[tuple[float, float]], pause: float = 0) -> None:
        for place in places:
            self._page.mouse.click(*place)
            self._page.wait_for_timeout(pause)

    def _moves(self, places: list[tuple[float, float]]) -> None:
        for x, y in places:
            self._page.mouse.move(x, y)
            self._page.wait_for_timeout(30)

    def _choose(self, place: tuple[float, float]) -> None:
        self._page.keyboard.down("Alt")
        self._page.mouse.click(place[0] + 12, place[1])
        self._page.keyboard.up("Alt")

    def _press(self, *keys: str) -> None:
        self._page.locator("#surface").focus()
        for key in keys:
            self._page.keyboard.press(key)
            self._page.wait_for_timeout(50)

    def _look_around(self) -> None:
        self._page.mouse.move(*self._places[0])
        for delta in (-300, -300, 200, 400):
            self._page.mouse.wheel(0, delta)
            self._page.wait_for_timeout(50)
        self._press("a", "f")

    def _slide(self, selector: str, key: str) -> None:
        self._page.locator(selector).focus()
        self._page.keyboard.press(key)

    def _export(self, label: str) -> None:
        with self._page.expect_download(timeout=120_000):
            self._page.get_by_role("button", name=label, exact=True).click()

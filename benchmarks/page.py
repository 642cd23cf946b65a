"""What does the web page add to the server's time? Measured in a real browser by the page's own clock."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from PIL import Image

from testkit.chromium import chromium
from testkit.page_traffic import Traffic
from triton_sam.bench.figures import Figure
from triton_sam.bench.results import Result
from triton_sam.bench.target import Target, TargetOptions, open_target
from triton_sam.core.samples import sample_photograph

if TYPE_CHECKING:
    from playwright.sync_api import Page

_LARGE = (6000, 4000)
_MOVES_A_SECOND = 60
_BAR_MS = 25.0
#: The page measures every hover, from the mouse event's time stamp to the drawn mask. Cache hits are left out.
_OBSERVE = """() => {
  window.hovers = [];
  const take = (list) => {
    for (const entry of list.getEntries())
      if (entry.name === "hover" && entry.detail.serverMs) window.hovers.push([entry.duration, entry.detail.serverMs]);
  };
  new PerformanceObserver(take).observe({ type: "measure" });
}"""
_WEIGH = """() => {
  const files = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
    .filter(({ name, entryType }) => entryType === "navigation" || name.includes("/app/"));
  const total = (field) => files.reduce((sum, file) => sum + file[field], 0);
  return [files.length, total("decodedBodySize"), total("transferSize")];
}"""
_COUNT = "() => window.hovers.length"
_TAKE = "() => window.hovers.splice(0)"
_IS_SHOWN = "() => document.querySelector('#surface').dataset.scale !== undefined"


def run_page(model: str, rounds: int) -> Result:
    """Starts a server with the service, and measures the page."""
    with open_target(TargetOptions(model), service=True) as target:
        return measure_page(target, rounds)


def measure_page(target: Target, rounds: int) -> Result:
    """Hovers over a photograph and over a large one, one by one and with a mouse that does not stop."""
    result = target.result("page")
    result.figures += _figures(target.started_server("the page").urls["service"], sample_photograph(), rounds)
    return result


def _figures(url: str, sample: Path, rounds: int) -> Iterator[Figure]:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        traffic = Traffic(page)
        page.goto(url)
        page.wait_for_selector("html[data-ready]")
        page.wait_for_load_state("networkidle")
        files, plain, sent = page.evaluate(_WEIGH)
        detail = f"{files} files, before compression ({sent / 1e3:.0f} kB on the wire); samples not counted"
        yield Figure("weight of the page", plain / 1e3, "kB", 300.0, detail)
        page.evaluate(_OBSERVE)

        _open(page, sample.name, sample.read_bytes())
        yield _figure("one move at a time", _single_moves(page, rounds))
        traffic.most_in_flight = 0
        walk = _walk(page, rounds)
        yield _figure(f"a mouse that moves {_MOVES_A_SECOND} times a second", walk)
        detail = f"hovers over the socket and others, during {len(walk)} hovers with clicks between them"
        yield Figure("requests of the page in flight, most", traffic.most_in_flight, "", 2.0, detail)

        with Image.open(sample) as picture:
            large = io.BytesIO()
            picture.convert("RGB").resize(_LARGE, Image.Resampling.BICUBIC).save(large, "JPEG", quality=90)
        _open(page, "large.jpg", large.getvalue())
        yield _figure(f"{_LARGE[0]} x {_LARGE[1]} px, one move at a time", _single_moves(page, rounds))


def _figure(name: str, hovers: list[tuple[float, float]]) -> Figure:
    """``hovers``: (time from the move to the drawn mask, the server's part of it), milliseconds."""
    extra = median(whole - server for whole, server in hovers)
    whole, server = median(whole for whole, _ in hovers), median(server for _, server in hovers)
    detail = f"{whole:.0f} ms from the move to the drawn mask, server {server:.0f} ms; medians of {len(hovers)}"
    return Figure(f"hover minus server time, {name}", extra, "ms", _BAR_MS, detail)


def _open(page: Page, name: str, data: bytes) -> None:
    """Opens an image; returns when it is encoded, that is after the first hover's response."""
    page.set_input_files("#file", {"name": name, "mimeType": "image/jpeg", "buffer": data})
    page.wait_for_function(f"() => document.querySelector('#picture-name').textContent === {name!r}")
    page.wait_for_function(_IS_SHOWN)
    x, y = _middle(page)
    _until(page, lambda: page.mouse.move(x + time.monotonic() % 7, y))
    page.evaluate(_TAKE)


def _middle(page: Page) -> tuple[float, float]:
    box = page.locator("#surface").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def _until(page: Page, move: Callable[[], None]) -> None:
    """Moves the mouse until a hover was answered and drawn."""
    before = page.evaluate(_COUNT)
    deadline = time.monotonic() + 60
    while page.evaluate(_COUNT) == before:
        if time.monotonic() > deadline:
            raise RuntimeError("no hover was answered within a minute")
        move()
        page.wait_for_timeout(200)


def _single_moves(page: Page, rounds: int) -> list[tuple[float, float]]:
    """Each move waits for the previous move's mask."""
    x, y = _middle(page)
    for step in range(rounds):
        before = page.evaluate(_COUNT)
        page.mouse.move(x - 200 + 3.7 * step, y - 120 + 2.3 * step)
        page.wait_for_function("before => window.hovers.length > before", arg=before, polling=5)
    return [(whole, server) for whole, server in page.evaluate(_TAKE)]


def _walk(page: Page, rounds: int) -> list[tuple[float, float]]:
    """The mouse never stops, so that most positions are never requested; a few clicks come in between."""
    x, y = _middle(page)
    started = time.monotonic()
    for step in range(4 * rounds):
        page.mouse.move(x - 250 + (5 * step) % 500, y - 150 + (7 * step) % 300)
        if step % rounds == rounds // 2:
            page.mouse.down()
            page.mouse.up()
        pause = started + step / _MOVES_A_SECOND - time.monotonic()
        if pause > 0:
            page.wait_for_timeout(pause * 1e3)
    page.wait_for_function("() => window.hovers.length > 0")
    return [(whole, server) for whole, server in page.evaluate(_TAKE)]

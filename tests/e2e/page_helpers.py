"""One open page as a person sees and uses it, and what must be on it.

Places are given in original pixels of the image. A mask is worked out twice: the API's answer to the page's question
must be the analytic model's (tests/analytic.py), and the canvas must show that answer, pixel for pixel, by the one rule
that the page has: a pixel of the screen shows the mask's pixel under its centre.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from tests.analytic import RADII, assert_mask
from tests.e2e.browser import wait_until
from triton_sam.core.mask_cleaning import Cleaning, clean_mask
from triton_sam.core.masks import decode
from triton_sam.server import host
from triton_sam.service.app import create_app
from triton_sam.service.upstream import Upstream
from triton_sam.service.uvicorn_thread import ServiceThread
from triton_sam.serving import RunningServer
from triton_sam.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Locator, Page, Request, WebSocket

Mask = npt.NDArray[np.bool_]
Pixels = npt.NDArray[np.uint8]
#: Fixed places on the coffee sample, 600 x 400.
SPOON, CUP, TABLE, SAUCER = (365, 290), (385, 120), (60, 60), (250, 330)
#: So near to CUP that a click here takes some of its mask away.
NEAR_CUP = (420, 130)
CUP_BOX = (144, 16, 420, 224)
COFFEE = (600, 400)
#: What the page cleans away from masks by default.
CLEANED = Cleaning(64, 64)
#: Seconds until a mask must be there; an encode on two busy cores is part of it.
PATIENCE = 60
#: What all that follows is made of. Megabytes of pixels take long from a browser to here, so that each of them sends
#: only what is asked for.
_PIXELS = """
  const canvas = document.getElementById(layer);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const base64 = (bytes) => {
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    return btoa(text);
  };
"""
_READ = f"(layer) => {{ {_PIXELS} return [canvas.width, canvas.height, base64(data)]; }}"
#: Where its alpha is not 0, a bit a pixel.
_COVERED = f"""(layer) => {{ {_PIXELS}
  const bits = new Uint8Array(Math.ceil(data.length / 32));
  for (let at = 0; at < data.length / 4; at += 1) if (data[4 * at + 3] > 0) bits[at >> 3] |= 128 >> (at & 7);
  return [canvas.width, canvas.height, base64(bits)];
}}"""
#: A byte a pixel: 0 where nothing is drawn, i + 1 for colours[i], 255 for any other. A canvas keeps colours multiplied
#: by their alpha, and reading divides again: each is off by a little.
_OWNERS = f"""([layer, colours]) => {{ {_PIXELS}
  const owners = new Uint8Array(data.length / 4);
  const isNear = (at, colour) => colour.every((value, part) => Math.abs(data[4 * at + part] - value) <= 3);
  for (let at = 0; at < owners.length; at += 1) {{
    if (data[4 * at + 3] > 0) owners[at] = colours.findIndex((colour) => isNear(at, colour)) + 1 || 255;
  }}
  return [canvas.width, canvas.height, base64(owners)];
}}"""
#: The same for the same pixels.
_FINGERPRINT = f"""async (layer) => {{ {_PIXELS}
  const digest = await crypto.subtle.digest("SHA-256", data);
  return `${{canvas.width}} ${{canvas.height}} ${{base64(new Uint8Array(digest))}}`;
}}"""
_IS_DRAWN = """([layer, x, y]) => {
  const { data } = document.getElementById(layer).getContext("2d").getImageData(x - 1, y - 1, 3, 3);
  return data.some((value, at) => at % 4 === 3 && value > 0);
}"""
_VIEW = """() => {
  const surface = document.getElementById("surface");
  const { left, top } = surface.getBoundingClientRect();
  const { width, height } = document.getElementById("masks");
  const { scale, x, y } = surface.dataset;
  return [Number(scale), Number(x), Number(y), width, height, left, top, devicePixelRatio];
}"""
_FRAMES = """(count) => new Promise((resolve) => {
  const next = () => (count-- > 0 ? requestAnimationFrame(next) : resolve());
  next();
})"""


@dataclass(frozen=True)
class View:
    """Where the image is on the canvases. Device pixels, but for ``left`` and ``top``: CSS pixels of the window."""

    scale: float
    x: float
    y: float
    width: int
    height: int
    left: float
    top: float
    unit: float

    def place(self, x: float, y: float) -> tuple[int, int]:
        """The whole CSS pixel nearest to the middle of an image's pixel: a real mouse has no others."""
        across = (self.x + (x + 0.5) * self.scale) / self.unit + self.left
        down = (self.y + (y + 0.5) * self.scale) / self.unit + self.top
        return int(across), int(down)

    def image_point(self, across: float, down: float) -> tuple[float, float]:
        """CSS pixels of the window -> original pixels, continuous."""
        x = ((across - self.left) * self.unit - self.x) / self.scale
        y = ((down - self.top) * self.unit - self.y) / self.scale
        return x, y

    def pixel(self, across: float, down: float) -> tuple[int, int]:
        """CSS pixels of the window -> the original pixel that is there."""
        x, y = self.image_point(across, down)
        return int(np.floor(x)), int(np.floor(y))

    def sample(self, mask: Mask) -> Mask:
        """[H,W] of the image -> what the whole canvas must show of it."""
        columns = np.floor((np.arange(self.width) + 0.5 - self.x) / self.scale).astype(int)
        rows = np.floor((np.arange(self.height) + 0.5 - self.y) / self.scale).astype(int)
        inside = ((rows >= 0) & (rows < mask.shape[0]))[:, None] & ((columns >= 0) & (columns < mask.shape[1]))
        found = mask[np.clip(rows, 0, mask.shape[0] - 1)][:, np.clip(columns, 0, mask.shape[1] - 1)]
        return np.asarray(found & inside)


class Screen:
    """A page of the service.

    Attributes:
        asked: bodies of /v1/segment and messages of /v1/hover, in the order in which the page has sent them.
        picture: what is open, as the model sees it; None before anything is.
    """

    def __init__(self, page: Page, service: str, token: str = "", *, is_analytic: bool = True) -> None:
        self.page = page
        self.picture: Image.Image | None = None
        self._is_analytic = is_analytic
        self.asked: list[dict[str, Any]] = []
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.api = httpx.Client(base_url=service, timeout=120, trust_env=False, headers=headers)
        page.on("request", self._began)
        page.on("websocket", self._opened)
        page.on("close", lambda _: self.api.close())

    def _began(self, request: Request) -> None:
        if urlsplit(request.url).path == "/v1/segment":
            self.asked.append(json.loads(request.post_data or ""))

    def _opened(self, socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: self.asked.append(json.loads(frame)))

    # -- a person's hands ------------------------------------------------------------------------------------------

    def open_sample(self, name: str = "coffee") -> None:
        """By its card; returns when it is encoded."""
        with self.page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
            self.page.locator(f".sample[data-sample={name}]").and_(self.page.locator(":visible")).click()
        assert encoded.value.ok
        self.page.locator("#surface").wait_for()
        self.picture = picture_in(self.api.get(f"/samples/{name}").content)

    def open_file(self, path: Path, picture: Image.Image | None = None) -> None:
        """By the file dialogue; returns when it is encoded.

        Args:
            picture: what is in the file, where it is not plain: upright, of 8 bits.
        """
        with self.page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
            self.page.locator("#file").set_input_files(path)
        assert encoded.value.ok, encoded.value.text()
        self.picture = picture or picture_in(path.read_bytes())

    def press(self, keys: str) -> None:
        """A shortcut, with the focus on the image."""
        self.page.locator("#surface").focus()
        self.page.keyboard.press(keys)

    def actual_size(self) -> View:
        """1:1, with the whole of a small image in the window."""
        self.press("a")
        wait_until(self.page, lambda: self.view.scale == 1)
        return self.view

    def move(self, x: float, y: float) -> tuple[int, int]:
        """The mouse to an original pixel; gives the one that it is really on."""
        view = self.view
        place = view.place(x, y)
        self.page.mouse.move(*place)
        return view.pixel(*place)

    def click(self, x: float, y: float, *, button: Any = "left", shift: bool = False) -> tuple[int, int]:
        """The original pixel that was clicked."""
        pixel = self.move(x, y)
        if shift:
            self.page.keyboard.down("Shift")
        self.page.mouse.down(button=button)
        self.page.mouse.up(button=button)
        if shift:
            self.page.keyboard.up("Shift")
        return pixel

    def drag(self, *places: tuple[float, float], button: Any = "left") -> list[tuple[float, float]]:
        """Through original pixels; gives the points of the mouse, original pixels, continuous."""
        view = self.view
        path = [view.place(*place) for place in places]
        self.page.mouse.move(*path[0])
        self.page.mouse.down(button=button)
        for place in path[1:]:
            self.page.mouse.move(*place)
            self.frames(2)  # one event a frame: a browser gives several as one otherwise, which is the same stroke
        self.page.mouse.up(button=button)
        return [view.image_point(*place) for place in path]

    # -- a person's eyes -------------------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        scale, x, y, width, height, left, top, unit = self.page.evaluate(_VIEW)
        return View(scale, x, y, int(width), int(height), left, top, unit)

    def frames(self, count: int = 2) -> None:
        """So many frames later."""
        self.page.evaluate(_FRAMES, count)

    def canvas(self, layer: str = "masks") -> Pixels:
        """[H,W,4], device pixels, RGBA."""
        width, height, data = self.page.evaluate(_READ, layer)
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)

    def covered(self, layer: str = "masks") -> Mask:
        """[H,W], device pixels: where a canvas shows anything."""
        width, height, data = self.page.evaluate(_COVERED, layer)
        bits = np.frombuffer(base64.b64decode(data), np.uint8)
        return np.unpackbits(bits, count=width * height).reshape(height, width).astype(np.bool_)

    def owners(self, colours: Sequence[str], layer: str = "masks") -> npt.NDArray[np.uint8]:
        """[H,W], device pixels: 0 where nothing is drawn, i + 1 for colours[i] ("#rrggbb"), 255 for any other."""
        wanted = [list(bytes.fromhex(colour[1:])) for colour in colours]
        width, height, data = self.page.evaluate(_OWNERS, [layer, wanted])
        return np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width)

    def fingerprint(self, layer: str = "masks") -> str:
        """The same only for the same pixels."""
        return str(self.page.evaluate(_FINGERPRINT, layer))

    def is_drawn(self, layer: str, x: float, y: float) -> bool:
        """Whether a canvas shows anything at an original pixel, or beside it."""
        view = self.view
        place = [layer, round(view.x + x * view.scale), round(view.y + y * view.scale)]
        return bool(self.page.evaluate(_IS_DRAWN, place))

    def still(self, layer: str = "masks") -> str:
        """The canvas' fingerprint after what was just done is drawn."""
        self.frames(2)
        return self.fingerprint(layer)

    @property
    def rows(self) -> Locator:
        """The objects in the panel, the topmost first."""
        return self.page.locator("#objects > li")

    def names(self) -> list[str]:
        return [row.locator(".name").input_value() for row in self.rows.all()]

    def row(self, name: str) -> Locator:
        return self.rows.filter(has=self.page.locator(f"input.name[aria-label='Name of {name}']"))

    # -- what is so in the end -------------------------------------------------------------------------------------

    def question(self, **prompt: Any) -> dict[str, Any]:
        """The message with exactly this prompt (points, labels, box, multimask), when the page has sent it."""
        wanted = {name: json.loads(json.dumps(value)) for name, value in prompt.items()}
        names = ("points", "labels", "box", "multimask")

        def found() -> dict[str, Any] | None:
            return next((one for one in self.asked if {n: one[n] for n in names if n in one} == wanted), None)

        try:
            wait_until(self.page, found, PATIENCE / 2)
        except AssertionError:
            raise AssertionError(f"the page asked {self.asked} and not {wanted}") from None
        body = found()
        assert body is not None
        assert body["format"] == "rle", "masks travel as run lengths"
        return body

    def answers(self, body: dict[str, Any]) -> list[tuple[Mask, float]]:
        """(mask [H,W], score) of each candidate, in the model's order, as the page shows it.

        From the API, which must be right, and cleaned as the page does it.
        """
        answer = self.api.post("/v1/segment", json={name: value for name, value in body.items() if name != "id"})
        assert answer.status_code == 200, answer.text
        found = [(decode(row), row["score"]) for row in answer.json()["masks"]]
        assert len(found) == (3 if body["multimask"] else 1)
        if self._is_analytic:
            assert self.picture is not None
            prompt = {name: body[name] for name in ("points", "labels", "box") if name in body}
            for (mask, _), radius in zip(found, RADII, strict=False):
                assert_mask(mask, self.picture, **prompt, radius=radius)
        return [(clean_mask(mask, CLEANED), score) for mask, score in found]

    def best(self, body: dict[str, Any]) -> Mask:
        """The mask with the best score."""
        return max(self.answers(body), key=lambda answer: answer[1])[0]

    def asked_at(self, x: int, y: int, label: int = 1) -> dict[str, Any]:
        """The question of one plain click."""
        return self.question(points=[[x, y]], labels=[label], multimask=True)

    def expect_mask(self, mask: Mask, layer: str = "masks", *, exact: bool = False) -> None:
        """All pixels of a canvas, in the end.

        Args:
            exact: the view is 1:1 and shows all of the image, so that each of its pixels has been compared.
        """
        view = self.view
        if exact:
            height, width = mask.shape
            assert view.scale == 1
            assert 0 <= view.x <= view.width - width
            assert 0 <= view.y <= view.height - height
        expected = view.sample(mask)
        assert expected.any(), "nothing would be compared"
        self._until_equal(lambda: self.covered(layer), expected, layer)

    def expect_objects(self, *objects: tuple[Mask, str]) -> None:
        """Masks with their colours ("#rrggbb"), the bottom one first: each pixel has the colour of the topmost."""
        view = self.view
        owners = np.zeros((view.height, view.width), np.uint8)
        for number, (mask, _) in enumerate(objects, 1):
            owners[view.sample(mask)] = number
        colours = [colour for _, colour in objects]
        self._until_equal(lambda: self.owners(colours), owners, "masks")

    def expect_same(self, before: str, layer: str = "masks") -> None:
        """As in the fingerprint."""
        wait_until(self.page, lambda: self.fingerprint(layer) == before)

    def expect_empty(self, layer: str = "masks") -> None:
        wait_until(self.page, lambda: not self.covered(layer).any())

    def expect_notice(self, kind: str, text: str) -> None:
        """A sentence of this kind that has these words."""
        self.page.locator(f".notice[data-kind={kind}]", has_text=text).wait_for(timeout=PATIENCE * 1000)

    def expect_no_notice(self, kind: str) -> None:
        self.page.locator(f".notice[data-kind={kind}]").wait_for(state="detached", timeout=PATIENCE * 1000)

    def _until_equal(self, read: Callable[[], npt.NDArray[Any]], expected: npt.NDArray[Any], what: str) -> None:
        try:
            wait_until(self.page, lambda: np.array_equal(read(), expected), PATIENCE / 3)
        except AssertionError:
            found = read()
            assert found.shape == expected.shape, f"{what}: {found.shape} and not {expected.shape}"
            count, shown = np.count_nonzero(found != expected), np.count_nonzero(found)
            raise AssertionError(f"{what}: {count} values are wrong, {shown} are not 0") from None


@functools.cache
def picture_in(data: bytes) -> Image.Image:
    """The picture in a file, upright."""
    with Image.open(io.BytesIO(data)) as picture:
        return ImageOps.exif_transpose(picture).convert("RGB")


@contextlib.contextmanager
def service_of(running: RunningServer, *, port: int = 0, **settings: Any) -> Iterator[str]:
    """The address of one more service with settings of its own, in front of the same Triton: it starts at once."""
    backend = Upstream(
        status=lambda: running.supervisor.status,
        segmenters=lambda: running.segmenters,
        triton_url=running.urls["HTTP"],
    )
    port = port or host.free_port("127.0.0.1")
    with ServiceThread(create_app(backend, Settings(**settings)), "127.0.0.1", port):
        yield f"http://127.0.0.1:{port}"

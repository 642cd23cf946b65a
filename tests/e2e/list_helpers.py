"""A list of images as a person makes and reads it."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from tests.e2e.browser import wait_until
from tests.e2e.page_helpers import PATIENCE

if TYPE_CHECKING:
    from playwright.sync_api import Page

#: A drop of files from outside of the browser.
_DROP = """(files) => {
  const data = new DataTransfer();
  for (const { name, type, base64 } of files) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    data.items.add(new File([bytes], name, { type }));
  }
  const about = { dataTransfer: data, bubbles: true, cancelable: true };
  document.getElementById("stage").dispatchEvent(new DragEvent("drop", about));
}"""
_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".zip": "application/zip", ".txt": "text/plain"}


def make_images(photographs: Path, folder: Path, count: int, size: tuple[int, int] = (300, 200)) -> list[Path]:
    """Parts of the coffee, all different: photo-1.png, photo-2.png, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(photographs / "coffee.png") as picture:
        pixels = np.asarray(picture.convert("RGB"))
    paths = []
    for number in range(1, count + 1):
        shifted = np.roll(pixels, (7 * number, 13 * number), (0, 1))[: size[1], : size[0]]
        paths.append(folder / f"photo-{number}.png")
        Image.fromarray(np.ascontiguousarray(shifted)).save(paths[-1])
    return paths


def drop(page: Page, paths: Iterable[Path]) -> None:
    """All at once, in the order given."""
    files = [
        {"name": path.name, "type": _TYPES.get(path.suffix, ""), "base64": base64.b64encode(path.read_bytes()).decode()}
        for path in paths
    ]
    page.evaluate(_DROP, files)


def rows(page: Page) -> list[str]:
    """What a screen reader says of each row that is in the page, in the order of the list."""
    found = page.locator("#image-rows [role=option]").evaluate_all(
        """(all) => all.map((row) => [Number(row.ariaPosInSet),
          [...row.querySelectorAll(".image-name, .image-state")].map((part) => part.textContent).join(": ")])"""
    )
    return [label for _, label in sorted(found)]


def expect_rows(page: Page, labels: Sequence[str]) -> None:
    """The whole list, in the end."""
    try:
        wait_until(page, lambda: rows(page) == list(labels), PATIENCE)
    except AssertionError:
        raise AssertionError(f"the list has {rows(page)} and not {list(labels)}") from None


def expect_open(page: Page, name: str) -> None:
    """This image is on the stage."""
    page.locator("#picture-name").get_by_text(name, exact=True).wait_for()

"""Words on the page with nothing canned: a model that finds colours, and the toy that has learned words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import expected_instances, scene
from tests.e2e.browser import OpenPage, PageLog, wait_until
from tests.e2e.page_helpers import PATIENCE, Mask, Screen
from tests.integration.serve_folder import serve_folder
from triton_sam.cli.demo_words import SCENE, draw_words_scene
from triton_sam.core.rle import from_rle
from triton_sam.models.catalog import TEXT_MODEL, get_spec
from triton_sam.models.weights import WeightStore
from triton_sam.repository.setup import SetupRequest, set_up
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
#: Of a found mask with the drawn one.
LEAST_IOU = 0.85
RED, BLUE, YELLOW, GREEN, PURPLE = (
    (208, 44, 44),
    (44, 92, 206),
    (240, 200, 52),
    (48, 152, 70),
    (136, 66, 164),
)


@pytest.fixture(scope="module")
def toy_server(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("words")
    set_up(SetupRequest(get_spec(TEXT_MODEL), WeightStore(folder / "weights"), folder / "models"))
    with serve_folder(folder / "models", folder / "home") as started:
        yield started


def shapes(picture: Image.Image, *wanted: tuple[str, tuple[int, int, int]]) -> list[Mask]:
    """The drawn masks of these shapes and colours."""
    pixels: npt.NDArray[np.int16] = np.asarray(picture, np.int16)
    rows, columns = np.mgrid[: picture.height, : picture.width]
    return [
        (np.abs(pixels - colour).sum(axis=2) < 60) & (np.hypot(columns - x, rows - y) < radius + 3)
        for shape, colour, x, y, radius in SCENE
        if (shape, colour) in wanted
    ]


def expect_all(found: list[Mask], drawn: list[Mask], least: float = LEAST_IOU) -> None:
    """One found mask for each drawn one, and no more."""
    ious = np.array([[np.sum(a & b) / np.sum(a | b) for b in drawn] for a in found])
    assert len(found) == len(drawn), f"{len(found)} found, {len(drawn)} drawn: {ious}"
    assert (ious.max(axis=0) > least).all(), ious


def find(screen: Screen, text: str) -> None:
    """Types it, and waits for the answer."""
    asked = len(screen.asked)
    screen.page.locator("#words-text").fill(text)
    screen.page.locator("#words-text").press("Enter")
    wait_until(screen.page, lambda: len(screen.asked) > asked, PATIENCE)
    screen.page.locator("#words-progress").wait_for(state="hidden", timeout=PATIENCE * 1000)


def row_of(screen: Screen, category: str) -> Any:
    """The topmost object of a class in the list."""
    return screen.rows.filter(has=screen.page.locator(".class-name", has_text=category)).first


def exported(page: Any) -> dict[str, list[Mask]]:
    """The masks of each category in COCO."""
    with page.expect_download() as download:
        page.locator("[data-export=coco]").click()
    document = json.loads(Path(download.value.path()).read_bytes())
    masks: dict[str, list[Mask]] = {row["name"]: [] for row in document["categories"]}
    names = {row["id"]: row["name"] for row in document["categories"]}
    for row in document["annotations"]:
        masks[names[row["category_id"]]].append(from_rle(row["segmentation"]))
    return masks


@pytest.fixture(scope="module")
def colour_server(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("colours")
    write_analytic_concepts(folder / "models", folder / "graphs")
    with serve_folder(folder / "models", folder / "home") as started:
        yield started


def test_what_the_page_finds_is_what_the_server_does(
    colour_server: RunningServer, open_page: OpenPage, page_log: PageLog, tmp_path: Path
) -> None:
    page_log.expect("status of 400")
    picture = scene()
    file = tmp_path / "colours.png"
    picture.save(file)

    def drawn(*prompt: Any) -> list[Mask]:
        return [one.logits > 0 for one in expected_instances(picture, *prompt)]

    service = colour_server.urls["service"]
    page = open_page(service)
    screen = Screen(page, service, is_analytic=False)
    screen.open_file(file)
    find(screen, "red, blue")
    found = exported(page)
    expect_all(found["red"], drawn("red"), least=0.98)
    expect_all(found["blue"], drawn("blue"), least=0.98)

    # The slider asks nobody; one is dropped, and one gets more by a click.
    asked = len(screen.asked)
    page.locator("#least-score").fill("100")
    wait_until(page, lambda: screen.rows.count() < 5)
    page.locator("#least-score").fill("0")
    wait_until(page, lambda: screen.rows.count() >= 5)
    assert len(screen.asked) == asked
    row_of(screen, "red").locator("[aria-label^=Delete]").click()
    page.locator("#accept-found").click()
    row_of(screen, "blue").locator(".name").click()
    x, y = screen.click(40, 210)
    page.locator("#objects .active .facts", has_text="edited").wait_for()
    found = exported(page)
    assert (len(found["red"]), len(found["blue"])) == (2, 2)
    assert sum(bool(mask[y, x]) for mask in found["blue"]) == 1
    page.locator("#surface").focus()
    for _ in range(3):
        page.keyboard.press("Control+z")
    page.locator("#drop-found").click()

    # An example of what is meant, and one of what is not.
    yellow, blue = (5, 185, 75, 235), (85, 125, 155, 175)
    screen.drag(yellow[:2], yellow[2:])
    page.get_by_role("button", name="Like this").click()
    find(screen, "")
    (like,) = (masks for masks in exported(page).values() if masks)
    expect_all(like, drawn(None, [yellow]), least=0.98)
    page.locator("#drop-found").click()
    page.get_by_role("button", name="Remove: like this, example 1").click()
    screen.drag(blue[:2], blue[2:])
    page.get_by_role("button", name="Not this").click()
    find(screen, "red blue")
    (rest,) = (masks for masks in exported(page).values() if masks)
    expect_all(rest, drawn("red"), least=0.98)
    page.get_by_role("button", name="Remove: not this, example 1").click()

    for text, told in {
        "green": "No green found.",
        "☕": "has no letter or digit",
        "red " * 40: "use fewer words",
        "red" * 200: "400 are allowed",
    }.items():
        find(screen, text)
        screen.expect_notice("words", told)


@pytest.mark.part("page")
def test_from_words_and_an_example_to_coco(
    toy_server: RunningServer, open_page: OpenPage, page_log: PageLog, tmp_path: Path
) -> None:
    page_log.expect("status of 400")
    picture = draw_words_scene()
    file = tmp_path / "shapes.png"
    picture.save(file)
    service = toy_server.urls["service"]
    page = open_page(service)
    screen = Screen(page, service, is_analytic=False)
    screen.open_file(file)
    red, stars = shapes(picture, ("circle", RED)), shapes(picture, ("star", YELLOW), ("star", GREEN))

    find(screen, "red circle, star")
    found = exported(page)
    expect_all(found["red circle"], red)
    expect_all(found["star"], stars)

    # The slider asks nobody; one is dropped, and one gets more by a click.
    asked = len(screen.asked)
    page.locator("#least-score").fill("100")
    screen.frames(2)
    assert 0 < screen.rows.count() < len(red + stars)
    page.locator("#least-score").fill("0")
    screen.frames(2)
    assert len(screen.asked) == asked
    (small,) = shapes(picture, ("square", BLUE))[1:]
    row_of(screen, "star").locator("[aria-label^=Delete]").click()
    page.locator("#accept-found").click()
    row_of(screen, "red circle").locator(".name").click()
    screen.click(66, 302)
    page.locator("#objects .active .facts", has_text="edited").wait_for()
    screen.frames(2)
    found = exported(page)
    assert (len(found["red circle"]), len(found["star"])) == (3, 1)
    assert any(np.sum(mask & small) > 0.8 * np.sum(small) for mask in found["red circle"])

    # What is like a drawn box; what it does not know.
    screen.press("n")
    screen.drag((28, 352), (166, 470))
    page.get_by_role("button", name="Like this").click()
    find(screen, "")
    page.locator("#accept-found").click()
    found = exported(page)
    (like,) = (masks for category, masks in found.items() if category not in ("red circle", "star"))
    expect_all(like, shapes(picture, ("triangle", PURPLE)))
    page.get_by_role("button", name="Remove: like this, example 1").click()
    find(screen, "white heart")
    screen.expect_notice("words", f"No white heart found. {TEXT_MODEL} is a toy")
    find(screen, "red circle " * 20)
    screen.expect_notice("words", "use fewer words")

"""Zoom, pan, keyboard alone, and the choice of the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, PATIENCE, SPOON, TABLE, Screen, picture_in
from tests.integration.serve_folder import serve_folder
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import ModelSpec
from triton_sam.repository.segmenters import write_models
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.triton
OTHER = "sam2.1:small"


@pytest.fixture
def screen(server: RunningServer, open_page: OpenPage) -> Screen:
    """The coffee sample, encoded."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    return screen


def test_the_wheel_zooms_to_the_mouse(screen: Screen) -> None:
    """What is under the mouse stays there, to the pixel of the screen; F shows all of it again."""
    fitted = screen.view
    place = fitted.place(*SPOON)
    for delta in (-240, -240, -240, 180, -330, 400):
        before = screen.view
        screen.page.mouse.move(*place)
        screen.page.mouse.wheel(0, delta)
        screen.frames(2)
        after = screen.view
        assert (after.scale > before.scale) == (delta < 0)
        moved = np.subtract(after.image_point(*place), before.image_point(*place)) * after.scale
        # Offsets are drawn as whole pixels, before and after.
        assert np.abs(moved).max() <= 0.51 * (1 + after.scale / before.scale)
    screen.press("f")
    wait_until(screen.page, lambda: screen.view == fitted)
    for keys, grows in (("+", True), ("-", False)):
        before = screen.view
        screen.press(keys)
        assert screen.view.scale != before.scale
        assert (screen.view.scale > before.scale) == grows
    screen.page.get_by_role("button", name="Fit the image").click()
    wait_until(screen.page, lambda: screen.view == fitted)


def test_the_view_is_moved_and_nothing_is_made(screen: Screen) -> None:
    """With the space bar, with the middle button, and with the tool for it."""
    screen.actual_size()
    for way in ("space", "middle button", "tool"):
        move_view(screen, way)
    pixel = screen.click(*CUP)
    screen.expect_mask(screen.best(screen.asked_at(*pixel)))


def move_view(screen: Screen, way: str) -> None:
    page = screen.page
    screen.frames(2)
    before = screen.view
    start, end = before.place(*SPOON), before.place(SPOON[0] - 70, SPOON[1] - 45)
    if way == "tool":
        screen.press("m")
    page.mouse.move(*start)
    if way == "space":
        page.locator("#surface").focus()
        page.keyboard.down(" ")
    button: Literal["left", "middle"] = "middle" if way == "middle button" else "left"
    page.mouse.down(button=button)
    page.mouse.move(start[0] - 30, start[1] + 10)
    page.mouse.move(*end)
    page.mouse.up(button=button)
    if way == "space":
        page.keyboard.up(" ")
    wait_until(page, lambda: screen.view.x == before.x - 70)
    assert screen.view == dataclasses.replace(before, x=before.x - 70, y=before.y - 45)
    assert screen.rows.count() == 0
    if way == "tool":
        screen.press("v")


def test_the_keyboard_alone_is_enough(server: RunningServer, open_page: OpenPage) -> None:
    """From the first Tab to a mask, a refined one and one more object, without a mouse."""
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    page.locator("#shelf .sample").first.wait_for()

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"{selector} cannot be reached with the Tab key")

    tab_to(".sample[data-sample=coffee]")
    with page.expect_response("**/v1/images"):
        page.keyboard.press("Enter")
    page.locator("#surface").wait_for()
    screen.picture = picture_in(screen.api.get("/samples/coffee").content)
    tab_to("#surface")
    page.keyboard.press("ArrowRight")  # the crosshair comes, in the middle and a step
    page.keyboard.press("Shift+ArrowUp")
    page.locator("#status-cursor", has_text="x ").wait_for()
    x, y = (int(part.split()[1]) for part in page.locator("#status-cursor").inner_text().split(","))
    assert x > COFFEE[0] // 2
    assert y < COFFEE[1] // 2
    screen.expect_mask(screen.best(screen.asked_at(x, y)), "preview")
    page.keyboard.press("Enter")
    screen.expect_mask(screen.best(screen.asked_at(x, y)))
    for _ in range(3):
        page.keyboard.press("Shift+ArrowLeft")
    wait_until(page, lambda: not page.locator("#status-cursor").inner_text().startswith(f"x {x},"))
    other = int(page.locator("#status-cursor").inner_text().split(",")[0].split()[1])
    page.keyboard.press("Shift+Enter")
    body = screen.question(points=[[x, y], [other, y]], labels=[1, 0], multimask=False)
    screen.expect_mask(screen.best(body))
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    screen.asked_at(other, y)
    wait_until(page, lambda: screen.rows.count() == 2)
    page.keyboard.press("?")
    page.locator("#help-dialog").wait_for()
    page.keyboard.press("Escape")
    page.locator("#help-dialog").wait_for(state="hidden")


@pytest.fixture(scope="module")
def two_models(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The default model, and one that says to be another: here it counts who is asked, not what it answers."""
    folder = tmp_path_factory.mktemp("two-models")
    models = folder / "model_repository"
    graphs = repository / "sam2/1/encoder.onnx", repository / "sam2/1/decoder.onnx"
    write_models(spec, *graphs, models)
    write_models(dataclasses.replace(get_spec(OTHER), graphs=spec.graphs), *graphs, models)
    with serve_folder(models, folder / "home") as running:
        yield running


def test_another_model_is_chosen_and_objects_stay(
    two_models: RunningServer, spec: ModelSpec, open_page: OpenPage, traffic: Callable[[Page], Traffic]
) -> None:
    page = open_page(two_models.urls["service"])
    screen = Screen(page, two_models.urls["service"])
    picker = page.get_by_label("Model")
    page.locator("#model option").nth(1).wait_for(state="attached")
    assert sorted(picker.locator("option").all_inner_texts()) == sorted([spec.id, OTHER])
    assert picker.input_value() == spec.id
    screen.open_sample()
    screen.actual_size()
    screen.click(*CUP)
    first = screen.asked_at(*CUP)
    mask = screen.best(first)
    screen.expect_mask(mask)
    assert first["model"] == spec.id

    with page.expect_response("**/v1/images", timeout=PATIENCE * 1000) as encoded:
        picker.select_option(OTHER)
    assert encoded.value.json()["model"] == OTHER
    screen.expect_mask(mask)
    screen.press("n")
    screen.click(*TABLE)
    second = screen.asked_at(*TABLE)
    assert second["model"] == OTHER
    assert second["image_key"] == encoded.value.json()["image_key"] != first["image_key"]
    answer = screen.api.post("/v1/segment", json={name: second[name] for name in second if name != "id"}).json()
    assert answer["model"] == OTHER
    screen.expect_mask(mask | screen.best(second))

    picker.select_option(spec.id)  # both keys are known now
    screen.press("n")
    screen.click(*SPOON)
    assert screen.asked_at(*SPOON)["image_key"] == first["image_key"]
    assert traffic(page).requests.count("POST /v1/images") == 2
    page.reload()
    page.locator("#surface").wait_for()
    # The page is there before it has asked which models are served.
    wait_until(page, lambda: page.get_by_label("Model").input_value() == spec.id)

"""The page with models that really answer: one that was trained on scenes like the one opened, one that points."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.ask_helpers import ask
from tests.e2e.browser import OpenPage
from tests.e2e.page_helpers import CLEANED, PATIENCE, Screen
from tests.integration.vlm_serving import one_thread, png, serving_vlms
from triton_sam.core.mask_cleaning import clean_mask
from triton_sam.core.masks import decode
from triton_sam.models.specs import ModelSpec
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("page"), pytest.mark.torch]
#: Original pixels; small ones would be no prompt for a segmenter.
SIDE = 400


@pytest.fixture(scope="module")
def asked_server(
    repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """The default segmenter, the little model of shapes, and a Kosmos-2 that knows one caption."""
    from tests.vlm_checkpoints import make_kosmos2

    folder = tmp_path_factory.mktemp("asked")
    own = folder / "model_repository"
    shutil.copytree(repository, own, symlinks=True, copy_function=os.link)
    with one_thread():
        models = {"vlm:shapes": None, "vlm:kosmos2": make_kosmos2(folder / "checkpoint", grounded=True)}
    with serving_vlms(folder, models, repository=own, segmenters={"sam2": spec}) as running:
        yield running


def test_a_right_answer_and_boxes_that_become_masks(
    asked_server: RunningServer, open_page: OpenPage, tmp_path: Path
) -> None:
    from training.shapes.evaluate import held_out
    from training.shapes.scenes import draw

    scene, question = next((scene, asked) for scene, asked in held_out(40) if asked.text.startswith("Where is"))
    picture = tmp_path / "scene.png"
    picture.write_bytes(png(draw(scene, SIDE)))
    service = asked_server.urls["service"]
    page = open_page(service)
    screen = Screen(page, service)
    screen.open_file(picture)
    page.get_by_role("tab", name="Ask").click()
    page.get_by_label("Who answers").select_option("shapes")
    turn = ask(page, question.text)
    turn.get_by_text("tokens").wait_for(timeout=PATIENCE * 1000)  # it loads first
    assert turn.locator(".answer").inner_text() == question.answer

    # It says where, and shows what lies there.
    page.get_by_role("button", name="Show me").click()
    name = question.text.removeprefix("Where is the ").rstrip("?")
    screen.rows.locator(f"input.name[aria-label$='{name}']").wait_for(state="attached", timeout=PATIENCE * 1000)
    image = f"data:image/png;base64,{base64.b64encode(picture.read_bytes()).decode()}"
    wanted = {"image": image, "question": question.text, "model": "shapes", "format": "rle"}
    (region,) = screen.api.post("/v1/ground", json=wanted).json()["regions"]
    screen.expect_mask(clean_mask(decode(region["mask"]), CLEANED))
    assert screen.names() == [region["label"]]
    screen.press("Control+z")
    screen.expect_empty()

    page.get_by_label("Who answers").select_option("kosmos2")
    turn = ask(page, "An image of")
    turn.get_by_text("tokens").wait_for(timeout=PATIENCE * 1000)
    assert turn.locator(".answer").inner_text() == "a red ball by a dog."
    assert turn.locator("mark").all_inner_texts() == ["a red ball", "a dog"]
    screen.frames(2)
    assert screen.covered("marks").any(), "boxes are drawn"

    page.get_by_role("button", name="a red ball").click()
    # Patches 44 and 863 of 32 x 32, from the middle of one to the middle of the other.
    box = [round(SIDE * (patch + 0.5) / 32) for patch in (44 % 32, 44 // 32, 863 % 32, 863 // 32)]
    screen.expect_mask(screen.best(screen.question(box=box, multimask=False)))
    assert screen.names() == ["a red ball"]

"""Show me: what an answer is about becomes objects."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.e2e.ask_helpers import (
    CHATS,
    ENTITIES,
    GROUNDS,
    POINTS,
    TEXT,
    Canned,
    answer_of,
    ask,
)
from tests.e2e.browser import PageLog
from tests.e2e.page_helpers import CLEANED, CUP_BOX, SPOON, Screen
from triton_sam.core.mask_cleaning import clean_mask
from triton_sam.core.masks import decode

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.triton


def test_show_me_makes_objects_of_all_that_an_answer_is_about(
    open_screen: Callable[..., Screen], canned: Canned, page_log: PageLog
) -> None:
    """Boxes of the answer by the segmenter, as drawn ones; for other models by asking them where it is."""
    page_log.expect("status of 400")
    canned.models = [GROUNDS, POINTS, CHATS]
    screen = open_screen()
    page = screen.page
    screen.actual_size()
    canned.answers = [answer_of(TEXT, ENTITIES), answer_of("At the left."), answer_of("A cup.")]
    show = page.get_by_role("button", name="Show me")
    ask(page, "What is there?").get_by_text("12 tokens").wait_for()
    show.click()
    boxes = [list(CUP_BOX), [300, 255, 440, 330], [20, 4, 590, 396]]
    masks = [screen.best(screen.question(box=box, multimask=False)) for box in boxes]
    screen.expect_mask(np.logical_or.reduce(masks), exact=True)
    assert screen.names() == ["a table", "a spoon", "A cup"]
    show.click()
    screen.frames(2)
    assert screen.rows.count() == 3, "they are there already"
    screen.press("Control+z")
    assert screen.rows.count() == 0, "all in one step"

    # Its masks come with the places, and the image goes with the question.
    page.get_by_label("Who answers").select_option("points")
    ask(page, "Where is the spoon?").get_by_text("12 tokens").wait_for()
    body = {"points": [[*SPOON]], "labels": [1], "multimask": False, "format": "rle"}
    key = {name: screen.asked[-1][name] for name in ("image_key", "model")}
    (row,) = screen.api.post("/v1/segment", json={**body, **key}).json()["masks"]
    region = {"label": "the spoon", "point": [*SPOON], "mask": row, "score": row["score"]}
    grounded: list[dict[str, Any]] = []

    def ground(route: Route) -> None:
        grounded.append(json.loads(route.request.post_data or ""))
        answers: list[dict[str, Any]] = [{"regions": [region]}, {"regions": []}]
        if len(grounded) <= len(answers):
            route.fulfill(json={"text": "", **answers[len(grounded) - 1]})
        else:
            route.fulfill(status=400, json={"error": {"code": "invalid_input", "message": "sam2 is not served"}})

    page.route("**/v1/ground", ground)
    asked = len(screen.asked)
    show.click()
    screen.row("the spoon").wait_for(state="attached")
    screen.expect_mask(clean_mask(decode(row), CLEANED), exact=True)
    assert len(screen.asked) == asked, "nobody asks for it again"
    (sent,) = grounded
    image = base64.b64decode(sent.pop("image").partition("base64,")[2])
    assert image == screen.api.get("/samples/coffee").content
    assert (sent["question"], sent["model"], sent["segmenter"]) == ("Where is the spoon?", "points", key["model"])
    show.click()
    screen.expect_notice("show", "points does not say where that is")
    show.click()
    screen.expect_notice("show", "Sam2 is not served.")
    page.get_by_label("Who answers").select_option("chats")
    ask(page, "What?").get_by_text("12 tokens").wait_for()
    assert show.count() == 0

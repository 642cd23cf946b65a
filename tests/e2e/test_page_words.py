"""Words and examples on the page.

What is found comes from here, so that places and scores are known; all else comes from the server. A model that has
learned words is in test_page_words_real.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.e2e.browser import OpenPage, PageLog, serious_findings, wait_until
from tests.e2e.page_helpers import COFFEE, CUP, CUP_BOX, SPOON, TABLE, Mask, Screen
from triton_sam.core.rle import from_rle, rle
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.triton

PHONE = {"width": 390, "height": 844, "touch": True, "scale": 2}
#: The name by which the page's requests reach the server's model, whose catalogue id takes no words here.
TAKES_WORDS = "sam2"


def disc(x: int, y: int, radius: int) -> Mask:
    rows, columns = np.mgrid[: COFFEE[1], : COFFEE[0]]
    return np.asarray(np.hypot(columns - x, rows - y) < radius)


#: (mask, score) of what is found by words, apart from each other and from the places that are clicked.
CUPS = [(disc(80, 300, 40), 0.9), (disc(200, 320, 50), 0.8), (disc(500, 60, 45), 0.3)]
LIDS = [(disc(480, 220, 30), 0.7)]
LIKE = [(disc(60, 180, 25), 0.6)]
KNOWN = {"cup": CUPS, "lid": LIDS, None: LIKE}
REST = {"score_threshold": 0.1, "format": "rle", "model": TAKES_WORDS}


class Words:
    """A page whose words are answered here.

    Attributes:
        asked: bodies of the requests with words or examples, without the image's key.
        held: requests that are not answered, for a test that cancels.
        problem: what the next request is told instead of an answer.
    """

    def __init__(self, page: Page) -> None:
        self.asked: list[dict[str, Any]] = []
        self.held: list[Route] = []
        self.is_holding = False
        self.problem: dict[str, Any] | None = None
        page.route(re.compile(r"//[^/]+/models$"), self._models)
        page.route("**/v1/segment", self._segment)

    def _models(self, route: Route) -> None:
        response = route.fetch()
        (row,) = response.json()
        prompts = [kind for kind in row["prompts"] if kind != "text"]
        words = {**row, "id": TAKES_WORDS, "prompts": [*prompts, "text"], "default": False}
        route.fulfill(response=response, json=[{**row, "prompts": prompts}, words])

    def _segment(self, route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        if "text" not in body and "exemplars" not in body:
            route.continue_()
            return
        assert body.pop("image_key")
        self.asked.append(body)
        if self.is_holding:
            self.held.append(route)
        elif self.problem:
            route.fulfill(status=400, json={"error": self.problem})
        else:
            route.fulfill(json=self._answer(body))

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = body.get("text")
        found = [KNOWN.get(text, []) for text in (texts if isinstance(texts, list) else [texts])]
        masks = [
            {"encoding": "rle", "data": rle(mask), "score": score, "concept": index}
            for index, rows in enumerate(found)
            for mask, score in rows
        ]
        concepts = [{"presence": 0.9, "found": len(rows), "returned": len(rows)} for rows in found]
        return {"concepts": concepts, "masks": masks, "timings_ms": {"total": 1.0}}


def open_words(server: RunningServer, open_page: OpenPage, **options: Any) -> tuple[Screen, Words]:
    page = open_page("about:blank", **options)
    words = Words(page)
    page.goto(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    screen.open_sample()
    if options.get("touch"):
        page.locator("#show-panel").tap()
    return screen, words


def find(page: Page, text: str) -> None:
    page.locator("#words-text").fill(text)
    page.locator("#words-text").press("Enter")


def union(*masks: Mask) -> Mask:
    return np.asarray(np.logical_or.reduce(masks))


def exported(page: Page) -> dict[str, Any]:
    with page.expect_download() as download:
        page.locator("[data-export=coco]").click()
    document: dict[str, Any] = json.loads(Path(download.value.path()).read_bytes())
    return document


def expect_counted(page: Page, text: str) -> None:
    page.locator("#found-text", has_text=text).wait_for()


def test_words_slider_accept_drop_refine_export(
    server: RunningServer, open_page: OpenPage, page_log: PageLog, axe: str
) -> None:
    page_log.expect("status of 400")
    screen, words = open_words(server, open_page)
    page = screen.page
    assert page.locator("#words-text").is_disabled(), "this model knows no words"
    with page.expect_response("**/v1/images"):
        page.get_by_role("button", name=f"Use {TAKES_WORDS}").click()
    screen.actual_size()
    find(page, " ")
    screen.expect_notice("words", "Type what to look for")

    # One question, with a threshold below what is shown: the slider needs no other.
    find(page, "cup, spoon,  lid")
    expect_counted(page, "3 of 4 found are shown")
    screen.expect_notice("words", "No spoon found.")
    assert words.asked == [{"text": ["cup", "spoon", "lid"], **REST}]
    screen.expect_mask(union(CUPS[0][0], CUPS[1][0], LIDS[0][0]), exact=True)
    assert page.locator("#class-chips [data-class]").all_inner_texts() == ["cup\n1", "lid\n2", "No class\n0"]
    assert page.evaluate("document.activeElement.id") == "words-text", "another word can follow"
    assert serious_findings(page, axe) == []
    page.locator("#least-score").fill("0")
    expect_counted(page, "4 found, all shown")
    screen.expect_mask(union(*(mask for mask, _ in CUPS + LIDS)), exact=True)
    page.locator("#least-score").fill("90")
    expect_counted(page, "1 of 4 found are shown")

    # One is accepted by its key, one dropped, and the slider and the same words again change neither.
    page.locator("#least-score").fill("0")
    page.locator("#object-order").select_option("score")
    screen.rows.nth(3).locator(".name").click()
    screen.press("k")
    expect_counted(page, "3 found, all shown")
    page.locator("#least-score").fill("30")
    screen.expect_mask(union(CUPS[0][0], CUPS[1][0], CUPS[2][0]), exact=True)
    page.locator("#least-score").fill("0")
    screen.rows.nth(1).locator("[aria-label^=Delete]").click()
    expect_counted(page, "2 found, all shown")
    find(page, "cup")
    expect_counted(page, "3 found, all shown")
    screen.expect_no_notice("words")
    assert len(words.asked) == 2

    # Refined by a click, as any object; then all are the user's.
    screen.rows.first.locator(".name").click()
    screen.click(*SPOON)
    more = screen.best(screen.asked_at(*SPOON))
    page.locator("#accept-found").click()
    page.locator("#found").wait_for(state="hidden")
    kept = [CUPS[0][0] | more, CUPS[1][0], CUPS[2][0], LIDS[0][0]]
    screen.expect_mask(union(*kept), exact=True)
    document = exported(page)
    names = {row["id"]: row["name"] for row in document["categories"]}
    assert sorted(names.values()) == ["cup", "lid"]
    objects = [(names[row["category_id"]], from_rle(row["segmentation"])) for row in document["annotations"]]
    assert sorted(name for name, _ in objects) == ["cup", "cup", "cup", "lid"]
    for mask in kept:
        assert any(np.array_equal(mask, other) for _, other in objects)

    # What goes wrong is a sentence, and Cancel ends the request.
    words.problem = {"code": "invalid_input", "message": "text has 40 tokens and 32 are allowed: use fewer words"}
    find(page, "a long text")
    screen.expect_notice("words", "Text has 40 tokens and 32 are allowed: use fewer words.")
    words.problem, words.is_holding = None, True
    find(page, "lid")
    page.locator("#words-progress", has_text="Looking for lid").wait_for()
    wait_until(page, lambda: words.held)
    page.locator("#words-progress").get_by_role("button", name="Cancel").click()
    screen.expect_notice("words", "Cancelled. Nothing was changed.")
    wait_until(page, lambda: any("/v1/segment" in entry for entry in page_log.aborted))
    assert screen.rows.count() == 4


def test_examples_by_box_by_object_and_by_key(server: RunningServer, open_page: OpenPage) -> None:
    screen, words = open_words(server, open_page)
    page = screen.page
    screen.press("l")
    screen.expect_notice("words", "takes no words and no examples.")
    with page.expect_response("**/v1/images"):
        page.locator("#notices").get_by_role("button", name=f"Use {TAKES_WORDS}").click()
    screen.expect_no_notice("words")
    screen.actual_size()
    screen.press("l")
    screen.expect_notice("words", "Draw a box around one")
    screen.drag(CUP_BOX[:2], CUP_BOX[2:])
    assert screen.rows.count() == 1
    page.get_by_role("button", name="Like this").click()
    screen.expect_no_notice("words")
    assert screen.rows.count() == 0, "a box without more is the example"
    screen.frames(2)
    assert screen.is_drawn("marks", CUP_BOX[0], 150)
    screen.click(*TABLE)
    screen.best(screen.asked_at(*TABLE))
    screen.row("Object 2").locator(".facts", has_text="score").wait_for()
    screen.press("Shift+L")
    page.get_by_role("button", name="Remove: not this, example 2").wait_for()
    assert screen.rows.count() == 1, "an object stays"

    find(page, "cup, lid")
    screen.expect_notice("words", "Examples go with one word")
    find(page, "")
    expect_counted(page, "1 found, all shown")
    (body,) = words.asked
    assert (body["exemplars"][0], body["exemplar_labels"]) == (list(CUP_BOX), [1, 0])
    assert "text" not in body
    page.get_by_role("button", name="Remove: like this, example 1").press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Remove: not this, example 1"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.textContent") == "Like this", "the focus is not lost"
    screen.frames(2)
    assert not screen.is_drawn("marks", CUP_BOX[0], 150)
    screen.click(*CUP)
    assert screen.rows.count() == 3, "clicks are clicks"


@pytest.mark.part("page")
@pytest.mark.parametrize("options", [{}, {"dark": True}, PHONE], ids=["light", "dark", "phone"])
def test_it_can_be_read_and_reached(
    server: RunningServer, open_page: OpenPage, axe: str, options: dict[str, Any]
) -> None:
    screen, _ = open_words(server, open_page, **options)
    page = screen.page
    assert serious_findings(page, axe) == []
    page.get_by_role("button", name=f"Use {TAKES_WORDS}").click()
    find(page, "cup, lid")
    if options.get("touch"):
        page.locator("#panel.open").wait_for(state="detached")
        page.locator("#show-panel").tap()
    expect_counted(page, "3 of 4 found are shown")
    assert serious_findings(page, axe) == []
    for name in ("#words-text", "#words-find", "#accept-found", "#drop-found", "#objects .accept"):
        box = page.locator(name).first.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= page.viewport_size["width"]  # type: ignore[index]
    screen.rows.first.locator(".accept").click()
    expect_counted(page, "2 of 3 found are shown")
    page.get_by_role("button", name="Drop the rest").click()
    page.locator("#found").wait_for(state="hidden")
    assert screen.rows.count() == 1

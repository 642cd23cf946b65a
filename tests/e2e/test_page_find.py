"""Find everything on the page: progress, cancel, filters, undo, reload, and an export that has the API's masks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.e2e.browser import OpenPage, PageLog, wait_until
from tests.e2e.page_helpers import PATIENCE, Mask, Screen
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.triton

#: Masks of the analytic model are discs with soft borders: by the default, none of them would be stable.
STABLE = {"stability_score_thresh": 0.6}


class Finder:
    """A page on which everything can be found; ``asked`` are the bodies of its requests, as the server gets them."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.page = screen.page
        self.asked: list[dict[str, Any]] = []
        self.page.route("**/v1/everything", self._ask)

    def _ask(self, route: Route) -> None:
        body = json.loads(route.request.post_data or "")
        body["everything"] |= STABLE
        self.asked.append(body)
        route.continue_(post_data=json.dumps(body))

    def start(self, points: int) -> None:
        self.page.locator("#find-points").select_option(str(points))
        self.page.locator("#find-start").click()

    def find(self, points: int) -> list[dict[str, Any]]:
        """The API's records, when the page has as many objects."""
        self.start(points)
        self.page.locator("#find-progress").wait_for(state="hidden", timeout=PATIENCE * 1000)
        answer = self.screen.api.post("/v1/everything", json=self.asked[-1])
        assert answer.status_code == 200, answer.text
        records: list[dict[str, Any]] = answer.json()["masks"]
        assert len(records) > 1, "the test needs several"
        self.page.locator("#found-text", has_text=f"{len(records)} found, all shown").wait_for()
        return records

    def slide(self, slider: str, position: int) -> None:
        self.page.locator(f"#{slider}").fill(str(position))
        self.screen.frames(3)

    def exported(self, kind: str) -> bytes:
        with self.page.expect_download() as download:
            self.page.locator(f"[data-export={kind}]").click()
        return Path(download.value.path()).read_bytes()


@pytest.fixture
def finder(server: RunningServer, open_page: OpenPage) -> Finder:
    """The coffee sample, encoded, at 1:1."""
    screen = Screen(open_page(server.urls["service"]), server.urls["service"])
    screen.open_sample()
    screen.actual_size()
    return Finder(screen)


def union_of(records: list[dict[str, Any]]) -> Mask:
    masks = [from_rle(record["segmentation"]) for record in records]
    return np.asarray(np.logical_or.reduce(masks))


def numbers_of(rows: list[dict[str, Any]], score: str) -> Counter[tuple[Any, ...]]:
    """What records and COCO's annotations have in common."""
    facts = ((row["area"], row[score], row["segmentation"]) for row in rows)
    return Counter((area, value, mask["counts"], *mask["size"]) for area, value, mask in facts)


def test_find_cancel_find_again_filter_drop_export(finder: Finder, page_log: PageLog) -> None:
    screen, page = finder.screen, finder.page
    finder.start(64)
    page.locator("#find-text", has_text="objects").wait_for(timeout=PATIENCE * 1000)
    wait_until(page, lambda: screen.covered().any(), PATIENCE)  # they are shown while others are looked for
    page.locator("#find-cancel").click()
    screen.expect_notice("find", "Nothing was changed")
    screen.expect_empty()
    wait_until(page, lambda: any("/v1/everything" in entry for entry in page_log.aborted))
    assert screen.rows.count() == 0
    assert page.locator("#undo").get_attribute("aria-disabled") == "true"

    records = finder.find(16)
    screen.expect_no_notice("find")
    screen.expect_mask(union_of(records), exact=True)
    everything = screen.still()

    finder.slide("least-size", 50)
    least = int(page.locator("#least-size-text").inner_text().removesuffix(" px").replace(",", ""))
    finder.slide("least-score", 30)
    score = float(page.locator("#least-score-text").inner_text())
    shown = [record for record in records if record["area"] >= least and record["predicted_iou"] >= score]
    assert 1 < len(shown) < len(records), "the test needs some of each"
    page.locator("#found-text", has_text=f"{len(shown)} of {len(records)} found are shown").wait_for()
    screen.expect_mask(union_of(shown), exact=True)
    filtered = screen.still()

    page.locator("#object-order").select_option("size")
    screen.rows.first.locator("[aria-label^=Delete]").click()
    page.locator("#found-text", has_text=f"{len(shown) - 1} of {len(records) - 1} found are shown").wait_for()
    exported = json.loads(finder.exported("coco"))["annotations"]
    dropped = numbers_of(shown, "predicted_iou") - numbers_of(exported, "score")
    assert [area for area, *_ in dropped.elements()] == [max(record["area"] for record in shown)]
    assert len(exported) == len(shown) - 1
    screen.expect_mask(union_of(exported), exact=True)

    screen.press("Control+z")
    screen.expect_same(filtered)
    finder.slide("least-score", 0)
    finder.slide("least-size", 0)
    screen.expect_same(everything)
    screen.press("Control+z")
    screen.expect_empty()
    assert page.locator("#undo").get_attribute("aria-disabled") == "true", "the whole find is one step"
    screen.press("Control+Shift+z")
    screen.expect_same(everything)

    finder.slide("least-size", 50)
    kept = screen.still()
    assert kept != everything
    page.reload()
    page.locator("#surface").wait_for()
    screen.actual_size()
    screen.expect_same(kept)

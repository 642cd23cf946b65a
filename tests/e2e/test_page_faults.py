"""What goes wrong between the page and the server: one calm sentence, no work lost, and no hand needed after it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from testkit.page_traffic import Traffic
from tests.e2e.browser import OpenPage, PageLog, wait_until
from tests.e2e.page_helpers import CLEANED, CUP, NEAR_CUP, SAUCER, SPOON, TABLE, Mask, Screen, service_of
from tests.e2e.restartable import Restartable
from triton_sam.core.mask_cleaning import clean_mask
from triton_sam.core.masks import decode
from triton_sam.models.specs import ModelSpec
from triton_sam.serving import RunningServer

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def fragile(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restartable]:
    server = Restartable(repository, spec, tmp_path_factory.mktemp("fragile"), embeddings=1)
    try:
        yield server
    finally:
        server.stop()


def first_object(screen: Screen) -> Mask:
    """The cup, on the coffee sample at 1:1."""
    screen.open_sample()
    screen.actual_size()
    screen.click(*CUP)
    mask = screen.best(screen.asked_at(*CUP))
    screen.expect_mask(mask)
    return mask


def shown_mask(screen: Screen, body: dict[str, object], before: Mask) -> None:
    """The canvas has the object of before and the answer to this prompt; the key in it may be an old one."""
    image = screen.api.get("/samples/coffee").content
    key = screen.api.post("/v1/images", files={"image": image}).json()["image_key"]
    screen.expect_mask(before | screen.best(body | {"image_key": key}))


def test_a_forgotten_image_is_encoded_again_by_itself(
    fragile: Restartable, open_page: OpenPage, page_log: PageLog, traffic: Callable[[Page], Traffic]
) -> None:
    """For a click, for the mouse, and after a reload."""
    page_log.expect("status of 404")
    page = open_page(fragile.url)
    screen, seen = Screen(page, fragile.url), traffic(page)
    cup = first_object(screen)
    screen.press("n")

    fragile.forget()
    with page.expect_response("**/v1/images"):
        screen.move(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)), "preview")  # without another move

    fragile.forget()
    with page.expect_response("**/v1/images"):
        screen.click(*TABLE)
    both = cup | screen.best(screen.asked_at(*TABLE))
    screen.expect_mask(both)

    fragile.forget()
    encoded = seen.requests.count("POST /v1/images")
    page.reload()
    page.locator("#objects > li").nth(1).wait_for()
    screen.actual_size()
    screen.expect_mask(both)
    screen.press("n")
    with page.expect_response("**/v1/images"):
        screen.click(*SAUCER)
    screen.expect_mask(both | screen.best(screen.asked_at(*SAUCER)))
    assert seen.requests.count("POST /v1/images") == encoded + 1
    assert not page.locator(".notice").count()


def test_a_restarted_server_is_found_again(fragile: Restartable, open_page: OpenPage, page_log: PageLog) -> None:
    """All of it, Triton included: what was clicked meanwhile gets its mask."""
    page_log.expect("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_SOCKET_NOT_CONNECTED")
    page_log.expect("status of 404|status of 503")
    page_log.expect("WebSocket connection")
    page = open_page(fragile.url)
    screen = Screen(page, fragile.url)
    cup = first_object(screen)
    fragile.stop()
    try:
        screen.press("n")
        screen.click(*SPOON)
        screen.expect_notice("server", "Your work is kept")
        assert page.locator(".notice").count() == 1, "one sentence"
        page.locator("#status-connection[data-state=away]").wait_for()
        screen.expect_mask(cup)
        page.locator("#objects .facts", has_text="waiting for the mask").wait_for()
        name = page.get_by_label("Name of Object 1")
        name.fill("Cup")
        name.press("Enter")
    finally:
        fragile.start()
    body = screen.asked_at(*SPOON)
    shown_mask(screen, body, cup)
    screen.expect_no_notice("server")
    page.locator("#status-connection[data-state=ready]").wait_for()
    assert screen.names() == ["Object 2", "Cup"]
    screen.press("n")
    pixel = screen.move(*TABLE)  # the socket is there again too
    body = screen.asked_at(*pixel)
    screen.expect_mask(screen.best(body), "preview")


@pytest.mark.parametrize(
    ("status", "code", "sentence"),
    [(429, "queue_full", "busy"), pytest.param(503, "unavailable", "restarting", marks=pytest.mark.part("page"))],
)
def test_a_busy_server_is_asked_again(
    server: RunningServer, open_page: OpenPage, page_log: PageLog, status: int, code: str, sentence: str
) -> None:
    page_log.expect(f"status of {status}")
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    first_object(screen)
    refused: list[Route] = []

    def refuse(route: Route) -> None:
        refused.append(route)
        if len(refused) <= 2:
            route.fulfill(status=status, json={"error": {"code": code, "message": "try again in a moment"}})
        else:
            route.continue_()

    page.route("**/v1/segment", refuse)
    screen.click(*NEAR_CUP, button="right")  # the mouse alone has not asked this
    screen.expect_notice("server", sentence)
    body = screen.question(points=[CUP, NEAR_CUP], labels=[1, 0], multimask=False)
    screen.expect_mask(screen.best(body))
    screen.expect_no_notice("server")
    assert len(refused) == 3


# The first cannot be a subprotocol of a WebSocket as it is: those have no "/", "=" or " ", and a token may.
@pytest.mark.parametrize(
    "token",
    ["b3Blbi/zZXNhbWU= 1", pytest.param("open-sesame-open", marks=pytest.mark.part("page"))],
    ids=["odd", "plain"],
)
def test_a_token_is_asked_for_until_it_is_the_right_one(
    browser_service: Callable[..., str], open_page: OpenPage, page_log: PageLog, token: str
) -> None:
    """The socket takes it too, and a reload does not ask again."""
    page_log.expect("status of 401")
    url = browser_service(token=token)
    page = open_page(url)
    screen = Screen(page, url, token=token)
    dialog = page.get_by_role("dialog", name="This server asks for a token")
    dialog.wait_for()
    dialog.get_by_label("Token").fill("wrong")
    dialog.get_by_role("button", name="Go on").click()
    dialog.get_by_text("The server does not take this token.").wait_for()
    dialog.get_by_label("Token").fill(token)
    dialog.get_by_role("button", name="Go on").click()
    dialog.wait_for(state="hidden")
    page.locator("#status-connection[data-state=ready]").wait_for()
    cup = first_object(screen)
    screen.press("n")
    screen.move(*SPOON)
    screen.expect_mask(screen.best(screen.asked_at(*SPOON)), "preview")
    page.reload()
    page.locator("#objects > li").wait_for()
    screen.actual_size()
    screen.expect_mask(cup)
    assert not dialog.is_visible()


@pytest.fixture
def browser_service(server: RunningServer) -> Iterator[Callable[..., str]]:
    """Starts services with settings of their own in front of the one Triton; named before ``open_page``."""
    with contextlib.ExitStack() as stack:
        yield lambda **settings: stack.enter_context(service_of(server, **settings))


def test_an_image_that_is_too_large_is_told(start_small: str, open_page: OpenPage, page_log: PageLog) -> None:
    page_log.expect("status of 413")
    page = open_page(start_small)
    page.locator("#shelf .sample[data-sample=coffee]").click()
    Screen(page, start_small).expect_notice("picture", "too large for the server")
    text = page.locator(".notice[data-kind=picture]").inner_text()
    assert "240,000" in text or "100,000" in text
    page.locator("#progress").wait_for(state="hidden")


@pytest.fixture
def start_small(browser_service: Callable[..., str]) -> str:
    """A service that takes no image of more than 100,000 pixels."""
    return browser_service(max_image_pixels=100_000)


def test_a_file_that_is_no_image_is_told(
    server: RunningServer, open_page: OpenPage, page_log: PageLog, tmp_path: Path
) -> None:
    """What was open before stays, and so does work on it."""
    page_log.expect("status of 4")
    page = open_page(server.urls["service"])
    screen = Screen(page, server.urls["service"])
    cup = first_object(screen)
    wrong = tmp_path / "notes.png"
    wrong.write_text("no image at all")
    page.locator("#file").set_input_files(wrong)
    screen.expect_notice("picture", "image")
    screen.expect_mask(cup)
    page.get_by_role("button", name="Dismiss").click()
    screen.expect_no_notice("picture")
    screen.press("n")
    screen.click(*SPOON)
    screen.expect_mask(cup | screen.best(screen.asked_at(*SPOON)))


def test_the_masks_that_travel_are_read_as_they_were_written(
    server: RunningServer, open_page: OpenPage, traffic: Callable[[Page], Traffic]
) -> None:
    """The answer on the socket itself, beside that of the API."""
    page = open_page(server.urls["service"])
    screen, seen = Screen(page, server.urls["service"]), traffic(page)
    screen.open_sample()
    screen.actual_size()
    screen.move(*SPOON)
    body = screen.asked_at(*SPOON)
    wait_until(page, lambda: seen.frames_received)
    result = json.loads(seen.frames_received[0])["result"]
    for row, (mask, score) in zip(result["masks"], screen.answers(body), strict=True):
        np.testing.assert_array_equal(clean_mask(decode(row), CLEANED), mask)  # as the page does it
        assert row["score"] == pytest.approx(score)

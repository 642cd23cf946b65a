"""Asking about the image on the page: see ask_helpers.py for who answers."""

from __future__ import annotations

import base64
import http.server
import queue
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.ask_helpers import (
    ENTITIES,
    SPOON_BOX,
    TEXT,
    Canned,
    answer_of,
    ask,
    entity,
    event,
    piece,
)
from tests.e2e.browser import PageLog, serious_findings, wait_until
from tests.e2e.page_helpers import CUP_BOX, Screen

pytestmark = pytest.mark.triton

#: Seconds for which a busy server wants to be left alone.
WAIT = 60
PHONE = {"width": 390, "height": 844, "touch": True, "scale": 2}


def messages_of(body: dict[str, Any]) -> list[tuple[str, str]]:
    """(role, text), without the image."""
    said = [(message["role"], message["content"]) for message in body["messages"]]
    return [(role, content if isinstance(content, str) else content[-1]["text"]) for role, content in said]


def test_an_answer_points_at_things_and_a_click_segments_them(
    open_screen: Callable[..., Screen], canned: Canned
) -> None:
    screen = open_screen()
    page = screen.page
    screen.actual_size()
    canned.answers = [answer_of(TEXT, ENTITIES), answer_of("Nothing.")]
    turn = ask(page, "What is\nthere?")
    turn.get_by_text("12 tokens").wait_for()
    assert turn.locator(".answer").inner_text() == TEXT
    assert turn.locator("mark").all_inner_texts() == ["A cup", "a spoon", "a table"]

    (body,) = canned.asked
    assert (body["model"], body["stream"], body["stream_options"]) == ("grounds", True, {"include_usage": True})
    url = body["messages"][0]["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.partition("base64,")[2]) == screen.api.get("/samples/coffee").content

    # The edges are on the screen, at any zoom, and stand out with their words.
    screen.frames(2)
    assert screen.is_drawn("marks", CUP_BOX[0], 150)
    screen.press("+")
    screen.frames(2)
    assert screen.is_drawn("marks", CUP_BOX[0], 150)
    assert not screen.is_drawn("marks", CUP_BOX[0] + 15, 150)
    before = screen.still("marks")
    turn.locator("mark", has_text="spoon").hover()
    wait_until(page, lambda: screen.fingerprint("marks") != before)
    page.get_by_label("Boxes on the image").uncheck()
    screen.expect_empty("marks")
    page.get_by_label("Boxes on the image").check()
    screen.actual_size()

    # A click on an edge is a box, as if it had been drawn; one in the middle stays a click.
    screen.click(CUP_BOX[0], 150)
    mask = screen.best(screen.question(box=list(CUP_BOX), multimask=False))
    screen.expect_mask(mask, exact=True)
    assert screen.names() == ["A cup"]
    screen.click(CUP_BOX[0], 160)
    assert screen.names() == ["A cup"], "it is there already"
    screen.press("Control+z")
    assert screen.rows.count() == 0
    screen.expect_empty()
    screen.press("Control+Shift+z")
    screen.expect_mask(mask)

    # Boxes go with the next question.
    ask(page, "And now?").get_by_text("Nothing.").wait_for()
    assert page.locator(".turn .chip, .turn mark").count() == 0
    page.get_by_label("Boxes on the image").wait_for(state="hidden")
    screen.press("n")
    screen.expect_empty("marks")


def test_the_keyboard_alone(open_screen: Callable[..., Screen], canned: Canned) -> None:
    """Tabs, an example, Shift+Enter, and a box from its button; what is found twice has numbers."""
    screen = open_screen()
    page = screen.page
    canned.answers = [answer_of(TEXT, [entity("a spoon", SPOON_BOX, [*map(float, CUP_BOX)])])]
    page.get_by_role("tab", name="Ask").press("ArrowLeft")
    page.locator("#new-object").wait_for()
    page.locator("#ask").wait_for(state="hidden")
    page.get_by_role("tab", name="Objects").press("ArrowRight")
    field = page.get_by_role("textbox", name="Question")
    field.press("Shift+Enter")
    field.press_sequentially("b")
    assert field.input_value() == "\nb", "neither sent, nor the brush"
    page.get_by_role("button", name="What is in this image?").press("Enter")
    button = page.get_by_role("button", name="a spoon 1")
    button.press("Enter")
    body = screen.question(box=[300, 255, 440, 330], multimask=False)
    screen.expect_mask(screen.best(body))
    assert page.evaluate("document.activeElement.textContent") == "a spoon 1", "the focus stays"
    page.get_by_role("button", name="a spoon 2").wait_for()
    assert messages_of(canned.asked[0]) == [("user", "What is in this image?")]


def test_who_chats_is_told_what_was_said_and_the_choice_is_kept(
    open_screen: Callable[..., Screen], canned: Canned
) -> None:
    screen = open_screen()
    page = screen.page
    canned.answers = [answer_of(f"Answer {number}.") for number in range(4)]
    for question in ("One?", "Two?"):
        ask(page, question).get_by_text("tokens").wait_for()
    assert messages_of(canned.asked[1]) == [("user", "Two?")]
    page.get_by_label("Who answers").select_option("chats")
    ask(page, "Three?").get_by_text("tokens").wait_for()
    said = [("user", "One?"), ("assistant", "Answer 0."), ("user", "Two?"), ("assistant", "Answer 1.")]
    assert messages_of(canned.asked[2]) == [*said, ("user", "Three?")]
    page.get_by_role("button", name="Clear").click()
    ask(page, "Four?").get_by_text("tokens").wait_for()
    assert messages_of(canned.asked[3]) == [("user", "Four?")]
    assert page.locator(".turn").count() == 1

    page.reload()
    page.get_by_role("tab", name="Ask").click()
    assert page.locator("#ask-model").input_value() == "chats"
    canned.models = []
    page.reload()
    page.locator("html[data-ready]").wait_for()
    page.locator("#panel-title").wait_for()
    assert page.get_by_role("tab").count() == 0, "without models it is the page that it was"


@pytest.fixture
def wire() -> Iterator[tuple[str, queue.Queue[bytes], threading.Event]]:
    """An address that streams what is put into the queue, until b""; and whether the page has hung up."""
    pieces: queue.Queue[bytes] = queue.Queue()
    hung_up = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                while True:
                    try:
                        sent = pieces.get(timeout=0.05)
                    except queue.Empty:
                        sent = b": still here\n\n"  # or nobody would notice who hangs up
                    if not sent:
                        return
                    self.wfile.write(sent)
                    self.wfile.flush()
            except OSError:
                hung_up.set()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as stub:
        thread = threading.Thread(target=stub.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{stub.server_port}/", pieces, hung_up
        pieces.put(b"")
        stub.shutdown()
        thread.join()


def test_words_come_as_they_are_said_and_stop_keeps_them(
    open_screen: Callable[..., Screen], wire: tuple[str, queue.Queue[bytes], threading.Event]
) -> None:
    screen = open_screen()
    page = screen.page
    address, pieces, hung_up = wire
    page.route("**/v1/chat/completions", lambda route: route.continue_(url=address))
    turn = ask(page, "Say it slowly")
    page.locator("#ask-status", has_text=re.compile(r"waiting for grounds, [1-9]\d* s")).wait_for()
    cup = piece("One ☕ and").replace(b"\\u2615", "☕".encode())
    cut = cup.index("☕".encode()) + 1
    pieces.put(cup[:cut])
    pieces.put(cup[cut:])
    turn.locator(".answer", has_text="One ☕ and").wait_for()
    assert page.locator("#ask-status").inner_text() == ""
    assert page.locator("#ask-log").get_attribute("aria-busy") == "true"
    field = page.get_by_role("textbox", name="Question")
    field.fill("Another?")
    field.press("Enter")
    assert page.locator(".turn").count() == 1, "one at a time"
    assert field.input_value() == "Another?"
    page.get_by_role("button", name="Stop").click()
    turn.get_by_text("stopped", exact=True).wait_for()
    assert turn.locator(".answer").inner_text() == "One ☕ and"
    wait_until(page, hung_up.is_set)
    assert page.locator("#ask-log").get_attribute("aria-busy") == "false"

    # Another image ends all that was said about this one.
    hung_up.clear()
    turn = ask(page, "Once more")
    pieces.put(piece("Well"))
    turn.locator(".answer", has_text="Well").wait_for()
    page.get_by_role("button", name="Samples").click()
    screen.open_sample("coins")
    wait_until(page, hung_up.is_set)
    assert page.locator(".turn").count() == 0
    page.get_by_role("button", name="Ask", exact=True).wait_for()


def test_what_goes_wrong_is_said_and_can_be_tried_again(
    open_screen: Callable[..., Screen], canned: Canned, page_log: PageLog
) -> None:
    page_log.expect("status of (503|400)")
    screen = open_screen()
    page = screen.page
    page.clock.install()
    loading = "One that points is loading, 12 s so far: ask again in a moment"
    failed = "the model ran out of memory: ask for less"
    busy = {"error": {"code": "unavailable", "message": loading, "type": "x", "param": None}}
    refused = {"error": {"code": "invalid_input", "message": "the question is none", "type": "x", "param": None}}
    canned.answers = [
        (503, {"Retry-After": str(WAIT)}, busy),
        piece("It is ") + event({"error": {"message": failed}}),
        piece("It is "),
        answer_of("A cup."),
        (400, {}, refused),
        answer_of("Yes."),
    ]
    turn = ask(page, "What?")
    turn.get_by_text(loading).wait_for()
    wait = turn.get_by_role("button", name="Retry in")
    assert wait.get_attribute("aria-disabled") == "true"
    wait.press("Enter")
    assert len(canned.asked) == 1, "the server wants to be left alone"
    page.clock.fast_forward(1000 * WAIT)
    again = turn.get_by_role("button", name="Retry", exact=True)
    again.click()
    turn.get_by_text(failed).wait_for()
    assert turn.locator(".answer").inner_text() == "It is "
    again.click()
    turn.get_by_text("The answer was cut off.").wait_for()
    again.click()
    turn.locator(".answer", has_text="A cup.").wait_for()
    assert page.locator(".turn").count() == 1
    assert len(canned.asked) == 4
    ask(page, "?!").get_by_text("the question is none").wait_for()
    ask(page, "Is it?").get_by_text("Yes.").wait_for()
    assert page.get_by_role("button", name="Retry").count() == 0, "only the newest can be asked again"
    assert page.locator(".notice").count() == 0


@pytest.mark.part("page")
@pytest.mark.parametrize("options", [{}, {"dark": True}, PHONE], ids=["light", "dark", "phone"])
def test_it_can_be_read_and_reached(
    open_screen: Callable[..., Screen], canned: Canned, axe: str, options: dict[str, Any]
) -> None:
    screen = open_screen(**options)
    page = screen.page
    assert serious_findings(page, axe) == []
    canned.answers = [answer_of(TEXT, ENTITIES)]
    turn = ask(page, "What?")
    turn.get_by_text("12 tokens").wait_for()
    assert serious_findings(page, axe) == []
    for name in ("#ask-send", "#tab-ask", "#new-object", "#ask-model"):
        box = page.locator(name).bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= page.viewport_size["width"]  # type: ignore[index]
        assert box["y"] + box["height"] <= page.viewport_size["height"]  # type: ignore[index]
    if not options.get("touch"):
        return
    turn.get_by_role("button", name="a spoon").tap()
    page.locator("#panel.open").wait_for(state="detached")
    screen.expect_mask(screen.best(screen.question(box=[300, 255, 440, 330], multimask=False)))
    view = screen.view
    page.touchscreen.tap(*view.place(CUP_BOX[0], 150))
    screen.question(box=list(CUP_BOX), multimask=False)

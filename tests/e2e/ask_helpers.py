"""Models and answers that are canned: the browser's requests to /v1/models and /v1/chat/completions never reach the
service, so that tests of asking are about the page alone. Masks of boxes come from the server, as everywhere."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.e2e.page_helpers import CUP_BOX

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

GROUNDS = {"id": "grounds", "object": "model", "title": "One that points", "chats": False, "grounds": True}
CHATS = {"id": "chats", "object": "model", "title": "One that chats", "chats": True, "grounds": False}
POINTS = {**CHATS, "id": "points", "title": "One that can point", "tasks": ["point", "ground"]}
TEXT = "☕ A cup with a spoon on a table."
SPOON_BOX = [300.2, 254.8, 440.0, 330.0]


def entity(phrase: str, *boxes: list[float]) -> dict[str, Any]:
    return {"phrase": phrase, "start": TEXT.index(phrase), "end": TEXT.index(phrase) + len(phrase), "boxes": boxes}


#: The table's box is around all the others.
ENTITIES = [entity("A cup", [*map(float, CUP_BOX)]), entity("a spoon", SPOON_BOX), entity("a table", [20, 4, 590, 396])]


def event(data: dict[str, Any] | str) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def piece(text: str, finish: str | None = None, **more: Any) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": finish}]})


def answer_of(text: str, entities: list[dict[str, Any]] | None = None) -> bytes:
    last = piece("", "stop", **({"entities": entities} if entities else {}))
    usage = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 12}})
    return piece(text[:3]) + piece(text[3:]) + last + usage + event("[DONE]")


class Canned:
    """Models, and the answers to come, in the place of the service's.

    Attributes:
        models: rows of /v1/models.
        answers: what the next requests get: bytes of events, or (status, headers, body).
        asked: bodies of the requests so far.
    """

    def __init__(self) -> None:
        self.models = [GROUNDS, CHATS]
        self.answers: list[bytes | tuple[int, dict[str, str], dict[str, Any]]] = []
        self.asked: list[dict[str, Any]] = []

    def take_over(self, page: Page) -> None:
        page.route("**/v1/models", lambda route: route.fulfill(json={"object": "list", "data": self.models}))
        page.route("**/v1/chat/completions", self._answer)

    def _answer(self, route: Route) -> None:
        self.asked.append(json.loads(route.request.post_data or ""))
        answer = self.answers.pop(0)
        if isinstance(answer, bytes):
            route.fulfill(content_type="text/event-stream", body=answer)
        else:
            status, headers, body = answer
            route.fulfill(status=status, headers=headers, json=body)


def ask(page: Page, question: str) -> Locator:
    """Its row in the log."""
    page.get_by_role("textbox", name="Question").fill(question)
    page.keyboard.press("Enter")
    return page.locator(".turn", has_text=question).last

from __future__ import annotations

import base64

import pytest
from starlette.datastructures import Headers

from tests.unit.service.helpers import CLICK, Fake, ask, refusal
from triton_sam.service.admission.authentication import is_allowed_origin, websocket_token

TOKEN = {"token": "a very secret word"}
RIGHT = {"Authorization": "Bearer a very secret word"}
PAGE = "https://page.example"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic a very secret word"},
        {"Authorization": "a very secret word"},
        {"Authorization": "Bearer ä".encode()},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/segment"), ("GET", "/metrics"), ("GET", "/nothing")])
def test_without_the_right_token(method: str, path: str, headers: dict[str, str]) -> None:
    fake = Fake()
    answer = ask(method, path, fake, settings=TOKEN, headers=headers)
    assert "secret" not in refusal(answer, 401, "not_authorised")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert fake.transport.calls == []


def test_with_the_right_token() -> None:
    assert ask("POST", "/v1/segment", settings=TOKEN, json=CLICK, headers=RIGHT).status_code == 200
    lower = {"authorization": "bearer a very secret word"}
    assert ask("GET", "/models", settings=TOKEN, headers=lower).status_code == 200


@pytest.mark.parametrize("path", ["/health", "/docs", "/redoc", "/openapi.json", "/samples", "/samples/cells"])
def test_open_paths(path: str) -> None:
    assert ask("GET", path, settings=TOKEN).status_code == 200
    assert ask("GET", f"http://test/{path}", settings=TOKEN).status_code == 200


@pytest.mark.parametrize("path", ["/", "/favicon.ico", "/app/nothing.js", "/app/lib/nothing.js", "/samples/nothing"])
def test_the_page_asks_for_the_token_itself(path: str) -> None:
    assert ask("GET", path, settings=TOKEN).status_code in (200, 404)
    assert ask("POST", path, settings=TOKEN).status_code == 405


@pytest.mark.parametrize("path", ["/app", "/apple", "/samplesx", "/v1/limits", "/v1/preview", "/app/../v1/limits"])
def test_paths_that_look_like_the_pages(path: str) -> None:
    answer = ask("GET", f"http://test{path}", settings=TOKEN)
    refusal(answer, 401, "not_authorised")


def test_a_way_out_of_the_pages_folder_leads_nowhere() -> None:
    """The dots are the path's own here: no client has taken them out."""
    refusal(ask("GET", "http://test/app/%2e%2e/v1/limits", settings=TOKEN), 404, "not_found")


def test_the_token_is_in_the_document() -> None:
    document = ask("GET", "/openapi.json", settings=TOKEN).json()
    assert document["security"] == [{"token": []}]
    assert "security" not in ask("GET", "/openapi.json").json()


def test_a_sockets_token() -> None:
    assert websocket_token(Headers(RIGHT), []) == "a very secret word"
    assert websocket_token(Headers(), ["triton-sam", "bearer.word"]) == "word"
    assert websocket_token(Headers(), ["triton-sam"]) == ""


@pytest.mark.parametrize("token", ["word", "ab/cd+ef==", "a, b @ c", "x", "xy", "xyz"])
def test_a_token_of_characters_that_subprotocols_must_not_have(token: str) -> None:
    encoded = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    assert websocket_token(Headers(), ["triton-sam", f"bearer64.{encoded}"]) == token


@pytest.mark.parametrize("text", ["", "a", "é", "%%%", "_w", "/w8"])
def test_an_encoded_token_that_is_none(text: str) -> None:
    assert websocket_token(Headers(), [f"bearer64.{text}"]) in ("", "i", "\x0f")


@pytest.mark.parametrize(
    ("origin", "origins", "welcome"),
    [
        (None, [], True),
        ("http://here:8080", [], True),
        ("http://HERE:8080", [], True),
        ("http://here:9999", [], False),
        (PAGE, [], False),
        (PAGE, [PAGE], True),
        (PAGE, ["*"], True),
        ("https://PAGE.example/", [PAGE], True),
        (PAGE, [PAGE.upper()], True),
        ("//here:8080", [], False),
        ("file://here:8080", [], False),
        ("null", [], False),
        ("http://[", [], False),
        ("", [], False),
    ],
)
def test_origins_of_sockets(origin: str | None, origins: list[str], welcome: bool) -> None:
    headers = {"host": "here:8080"} | ({} if origin is None else {"origin": origin})
    assert is_allowed_origin(Headers(headers), origins) is welcome


def test_pages_that_may_use_the_service() -> None:
    settings = {"cors_origins": PAGE, **TOKEN}
    preflight = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,x-image-key,x-session-id",
    }
    answer = ask("OPTIONS", "/v1/segment", settings=settings, headers=preflight)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    refused = ask("POST", "/v1/segment", settings=settings, headers={"Origin": PAGE})
    refusal(refused, 401, "not_authorised")  # but the page may read why
    assert refused.headers["access-control-allow-origin"] == PAGE
    elsewhere = ask("GET", "/health", settings=settings, headers={"Origin": "https://other.example"})
    assert "access-control-allow-origin" not in elsewhere.headers


def test_without_pages_there_is_no_cors() -> None:
    assert "access-control-allow-origin" not in ask("GET", "/health", headers={"Origin": PAGE}).headers


@pytest.mark.parametrize("path", ["//v1/segment", "/v1//segment", "///v1////segment"])
def test_doubled_slashes(path: str) -> None:
    fake = Fake()
    assert ask("POST", f"http://test{path}", fake, json=CLICK).status_code == 200
    assert len(fake.transport.calls) == 1


@pytest.mark.parametrize("sane", ["abc-123", "A.b_c", "x" * 128])
def test_request_ids_are_echoed(sane: str) -> None:
    assert ask("GET", "/health", headers={"X-Request-ID": sane}).headers["x-request-id"] == sane


@pytest.mark.parametrize("odd", ["", "a b", "x" * 129, "<script>"])
def test_or_made(odd: str) -> None:
    made = ask("GET", "/nothing", headers={"X-Request-ID": odd}).headers["x-request-id"]
    assert made != odd
    assert len(made) == 32

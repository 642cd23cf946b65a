from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam import logs
from triton_sam.logs import REQUEST_ID, REQUESTS_LOG, JsonFormatter, TextFormatter, about
from triton_sam.settings import Settings


@pytest.fixture
def logger() -> Iterator[tuple[logging.Logger, io.StringIO]]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter(model="sam2"))
    found = logging.getLogger("triton_sam.tests.logs")
    found.addHandler(handler)
    found.setLevel(logging.DEBUG)
    yield found, stream
    found.removeHandler(handler)


def record(message: str, **extra: object) -> logging.LogRecord:
    return logging.getLogger("a.b").makeRecord("a.b", logging.WARNING, __file__, 1, message, (), None, extra=extra)


def test_a_line_of_json(logger: tuple[logging.Logger, io.StringIO]) -> None:
    log, stream = logger
    log.warning("two\nlines of %s", "text", extra=about("mine"))
    try:
        raise ValueError("why")
    except ValueError:
        log.exception("it failed", extra={"fields": {"status": 500}})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "warning",
        "logger": "triton_sam.tests.logs",
        "message": "two\nlines of text",
        "request_id": "mine",
        "model": "sam2",
    }
    assert (second["request_id"], second["status"]) == (None, 500)
    assert second["exception"].endswith("ValueError: why")


def test_the_request_of_the_moment_and_those_that_are_named() -> None:
    formatter = TextFormatter("%(levelname)s %(message)s")
    assert formatter.format(record("hello")) == "WARNING hello"
    before = REQUEST_ID.set("now")
    try:
        assert formatter.format(record("hello")) == "WARNING hello [request now]"
        assert formatter.format(record("hello", **about("a", "", None, "b"))) == "WARNING hello [request a,b]"
    finally:
        REQUEST_ID.reset(before)
    assert about("", None) == {}


@given(st.text(max_size=400))
def test_whatever_an_id_is_a_line_stays_one(request_id: str) -> None:
    line = TextFormatter("%(message)s").format(record("hello", request_id=request_id))
    assert len(line.splitlines()) == 1
    assert line.isascii()
    assert len(JsonFormatter().format(record("hello", request_id=request_id)).splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "is_on"),
    [
        ({}, False),
        ({"log_format": "json"}, True),
        ({"log_requests": "on"}, True),
        ({"log_format": "json", "log_requests": "off"}, False),
    ],
)
def test_when_there_is_a_line_for_each_request(options: dict[str, str], is_on: bool) -> None:
    root, requests = logging.getLogger(), logging.getLogger(REQUESTS_LOG)
    before, level = list(root.handlers), requests.level
    formatters = {handler: handler.formatter for handler in before}
    try:
        root.handlers = [logging.StreamHandler(io.StringIO())]
        logs.set_up(Settings(**options))  # type: ignore[arg-type]
        assert requests.isEnabledFor(logging.INFO) is is_on
        kind = JsonFormatter if options.get("log_format") == "json" else TextFormatter
        assert [type(handler.formatter) for handler in root.handlers] == [kind]
    finally:
        root.handlers = before
        for handler, formatter in formatters.items():
            handler.setFormatter(formatter)
        requests.setLevel(level)


def test_a_client_that_asks_wrongly_in_a_loop_does_not_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 5.0
    monkeypatch.setattr(logs.time, "monotonic", lambda: now)
    limit = logs.LogRateLimit(per_second=3)
    assert [limit.allow() for _ in range(5)] == [True, True, True, False, False]
    now = 6.0
    assert limit.allow()

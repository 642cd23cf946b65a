"""Tokens files: their format, the errors of invalid ones, and changes while the service runs."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from pathlib import Path

import httpx
import pytest

from tests.unit.service.helpers import CLICK, Fake, client_of, refusal
from tests.unit.service.test_rate_limits import Clock
from triton_sam.errors import SetupError
from triton_sam.service.api_tokens import TokenStore, digest_of, read_tokens
from triton_sam.service.rate_limits import Rate
from triton_sam.settings import Settings

ALICE, BOB = "alices-own-long-word", "bobs-own-longer-word"
HASHED = f"sha256:{hashlib.sha256(BOB.encode()).hexdigest()}"


def written(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, f"# who\n\nalice  {ALICE}  600\nbob\t{HASHED} 60 5 \r\ncarol {ALICE}x\ndave {ALICE}y -\n")
    alice, bob, carol, dave = read_tokens(path)
    assert (alice.name, alice.digest, alice.rate) == ("alice", digest_of(ALICE), Rate(600, 100))
    assert (bob.name, bob.digest, bob.rate) == ("bob", digest_of(BOB), Rate(60, 5))
    assert carol.rate is None
    assert dave.rate is None


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("alice", 1, "1 words"),
        (f"alice {ALICE} 1 2 3", 1, "5 words"),
        (f"\n\nal:ice {ALICE}", 3, "letters, digits"),
        (f"anonymous {ALICE}", 1, "anonymous"),
        ("alice short", 1, "at least 16"),
        ("alice größer-als-sechzehn-zeichen", 1, "ASCII"),
        ("alice sha256:abc", 1, "64 hexadecimal"),
        (f"alice sha256:{'z' * 64}", 1, "64 hexadecimal"),
        (f"alice {ALICE} many", 1, "numbers"),
        (f"alice {ALICE} 0", 1, "above 0"),
        (f"alice {ALICE} nan", 1, "above 0"),
        (f"alice {ALICE} inf", 1, "above 0"),
        (f"alice {ALICE} 60 0", 1, "at least 1"),
        (f"alice {ALICE}\nalice {BOB}", 2, "name appears twice"),
        (f"alice {BOB}\nbob {HASHED}", 2, "token appears twice"),
    ],
)
def test_the_error_of_a_wrong_line_has_no_secret(tmp_path: Path, text: str, line: int, what: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(SetupError, match=what) as caught:
        read_tokens(path)
    assert f"TRITON_SAM_TOKENS_FILE {path}, line {line}: " in str(caught.value)
    assert not any(secret in str(caught.value) for secret in (ALICE, BOB, HASHED, "zzz"))


def test_too_many_tokens(tmp_path: Path) -> None:
    lines = [f"name{number} {number:020d}" for number in range(1001)]
    assert len(read_tokens(written(tmp_path, "\n".join(lines[:1000])))) == 1000
    with pytest.raises(SetupError, match="line 1001: there are more than 1,000"):
        read_tokens(written(tmp_path, "\n".join(lines)))


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot be read: No such file"):
        TokenStore(Settings(tokens_file=tmp_path / "missing"))
    with pytest.raises(SetupError, match="cannot be read: Is a directory"):
        read_tokens(tmp_path)
    path = tmp_path / "bytes"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SetupError, match="is not a UTF-8 text file"):
        read_tokens(path)
    path.write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(SetupError, match="right file"):
        read_tokens(path)


def test_a_file_that_others_may_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    TokenStore(Settings(tokens_file=written(tmp_path, f"alice {ALICE}", 0o640)))
    assert caplog.text == ""
    TokenStore(Settings(tokens_file=written(tmp_path, f"alice {ALICE}", 0o644)))
    assert "chmod o-r" in caplog.text
    assert ALICE not in caplog.text


def test_both_kinds_of_tokens(tmp_path: Path) -> None:
    path = written(tmp_path, f"alice {ALICE}")
    store = TokenStore(Settings(token="the single long word", tokens_file=path))  # type: ignore[arg-type]
    found = [store.find(word) for word in ("the single long word", ALICE, "", "wrong", "\udcff")]
    assert [caller and caller.name for caller in found] == ["default", "alice", None, None, None]
    with pytest.raises(SetupError, match="rename it"):
        TokenStore(Settings(token="a-very-long-word", tokens_file=written(tmp_path, f"default {ALICE}")))  # type: ignore[arg-type]


def test_an_empty_file_accepts_no_token(tmp_path: Path) -> None:
    store = TokenStore(Settings(tokens_file=written(tmp_path, "")))
    assert store.needs_token
    assert store.find("") is None


def test_a_file_that_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    path = written(tmp_path, f"alice {ALICE}")
    store = TokenStore(Settings(tokens_file=path), clock)
    alice = store.find(ALICE)
    assert alice is not None
    written(tmp_path, f"bob {BOB} 60\n")
    assert store.find(ALICE) is not None  # not looked at again in the same second
    clock.now += 1.1
    assert store.find(ALICE) is None
    assert store.find(BOB) is not None
    assert store.revalidate(alice) is None
    written(tmp_path, "bob\n")
    for _ in range(3):
        clock.now += 1.1
        assert store.find(BOB) is not None
    assert caplog.text.count("the API tokens are unchanged") == 1
    path.unlink()
    clock.now += 1.1
    assert store.find(BOB) is not None
    assert BOB not in caplog.text


def test_rates_over_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, f"alice {ALICE} 1 2\nbob {HASHED}\n")
    caplog.set_level(logging.INFO, "triton_sam.service.requests")

    async def run() -> tuple[list[httpx.Response], str]:
        fake = Fake()
        async with client_of(fake, tokens_file=path) as client:
            alice, bob = ({"Authorization": f"Bearer {word}"} for word in (ALICE, BOB))
            asked = [(alice, 200), (alice, 200), (alice, 429), (bob, 200), (alice, 429), ({}, 401)]
            answers = [await client.post("/v1/segment", json=CLICK, headers=headers) for headers, _ in asked]
            assert [answer.status_code for answer in answers] == [status for _, status in asked]
            assert len(fake.transport.calls) == 3
            assert (await client.get("/health", headers=alice)).json()["restarts"] == 0  # health is never refused
            assert (await client.get("/health")).json() == {"state": "ready"}
            return answers, (await client.get("/metrics", headers=alice)).text

    answers, metrics = asyncio.run(run())
    message = refusal(answers[2], 429, "rate_limited")
    assert "1 requests per minute" in message
    assert 50 < int(answers[2].headers["retry-after"]) <= 60
    refusal(answers[5], 401, "not_authorised")
    line = 'triton_sam_service_callers_total{caller="%s",kind="request",outcome="%s"} %s'
    for caller, outcome, count in (("alice", "taken", 2.0), ("alice", "limited", 2.0), ("bob", "taken", 1.0)):
        assert line % (caller, outcome, count) in metrics
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("requests")]
    assert [line.partition(" by ")[2].partition(",")[0] for line in lines[:6]] == [
        "alice",
        "alice",
        "alice",
        "bob",
        "alice",
        "anonymous",
    ]
    assert not any(secret in caplog.text + metrics for secret in (ALICE, BOB))


def test_a_rate_for_callers_without_a_token() -> None:
    async def run() -> list[int]:
        async with client_of(Fake(), rate=60, rate_burst=2) as client:
            first = [(await client.post("/v1/segment", json=CLICK)).status_code for _ in range(3)]
            page = [(await client.get(path)).status_code for path in ("/", "/health", "/metrics", "/samples") * 5]
            assert set(page) == {200}
            return first

    assert asyncio.run(run()) == [200, 200, 429]


def test_guesses_count() -> None:
    async def run() -> list[int]:
        async with client_of(Fake(), token="a very secret word", rate=60, rate_burst=3) as client:
            guesses = [{"Authorization": f"Bearer guess{number}"} for number in range(5)]
            statuses = [(await client.get("/models", headers=guess)).status_code for guess in guesses]
            right = {"Authorization": "Bearer a very secret word"}  # a valid token is still accepted
            return [*statuses, (await client.get("/models", headers=right)).status_code]

    assert asyncio.run(run()) == [401, 401, 401, 429, 429, 200]

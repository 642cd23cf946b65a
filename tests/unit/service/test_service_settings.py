from __future__ import annotations

import pytest

from triton_sam.settings import MIB, Settings


def test_defaults() -> None:
    settings = Settings()
    assert settings.token is None
    assert settings.cors_origins == ()
    assert settings.max_body_bytes == 96 * MIB
    assert settings.service_requests == 256
    assert settings.service_sockets == 256
    assert settings.service_connections == 2048
    assert settings.service_seconds == 120.0
    assert settings.body_seconds == 30.0


def test_the_token_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_TOKEN", "a very secret word")
    settings = Settings()
    assert settings.token is not None
    assert settings.token.get_secret_value() == "a very secret word"
    assert "a very secret word" not in repr(settings)


def test_an_empty_token_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_TOKEN", "")
    assert Settings().token is None


def test_blanks_are_no_token_and_no_open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_TOKEN", "  ")
    with pytest.raises(ValueError, match="token is blank"):
        Settings()


@pytest.mark.parametrize(
    ("text", "origins"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://a.example", ("https://a.example",)),
        ("HTTPS://A.example", ("https://a.example",)),
        (" https://a.example/ , http://b:80,", ("https://a.example", "http://b:80")),
    ],
)
def test_origins(text: str, origins: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_CORS_ORIGINS", text)
    assert Settings().cors_origins == origins
    assert Settings(cors_origins=origins).cors_origins == origins

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from triton_sam.settings import Settings, get_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("TRITON_") or name.upper() == "URL":
            monkeypatch.delenv(name)


def test_defaults() -> None:
    settings = Settings()
    assert settings.url == "localhost:8000"
    assert settings.max_image_pixels == 100_000_000
    assert settings.max_image_bytes == 64 * 1024 * 1024
    assert settings.home.is_absolute()
    assert settings.repository == settings.home / "model_repository"


@pytest.mark.parametrize(
    "name",
    [
        "max_image_bytes",
        "max_image_pixels",
        "max_points",
        "max_objects",
        "max_prompt_bytes",
        "cache_bytes",
        "encode_queue",
        "click_queue",
        "click_batch",
        "threads",
    ],
)
def test_every_number_can_be_set_with_the_prefix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert getattr(Settings(), name) != 17
    monkeypatch.setenv(f"TRITON_SAM_{name.upper()}", "17")
    assert getattr(Settings(), name) == 17


def test_without_the_prefix_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_POINTS", "17")
    monkeypatch.setenv("HOME_", "nowhere")
    assert Settings().max_points == 256


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_SAM_HOME", str(tmp_path))
    assert Settings().home == tmp_path
    assert Settings().repository == tmp_path / "model_repository"


@pytest.mark.parametrize("name", ["TRITON_SAM_URL", "TRITON_URL"])
def test_both_names_of_the_address(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "grpc://elsewhere:8001")
    assert Settings().url == "grpc://elsewhere:8001"


def test_our_own_name_of_the_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_URL", "general:8000")
    monkeypatch.setenv("TRITON_SAM_URL", "ours:8000")
    assert Settings().url == "ours:8000"


def test_a_foreign_variable_called_url_is_not_our_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("URL", "https://somebody-elses-web-site.example")
    assert Settings().url == "localhost:8000"


def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_URL", "environment:8000")
    monkeypatch.setenv("TRITON_SAM_MAX_POINTS", "17")
    settings = Settings(url="argument:8000", max_points=18)
    assert settings.url == "argument:8000"
    assert settings.max_points == 18


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_IMAGE_BYTES", "0"),
        ("MAX_IMAGE_PIXELS", "-1"),
        ("CACHE_BYTES", "much"),
        ("THREADS", "-1"),
        ("CLICK_BATCH", "0"),
    ],
)
def test_senseless_values_are_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"TRITON_SAM_{name}", value)
    with pytest.raises(ValidationError, match=name.lower()):
        Settings()


@pytest.mark.parametrize("name", ["HOME", "URL", "CLICK_QUEUE", "TLS_KEY", "TRITONSERVER", "CACHE_BYTES"])
def test_an_empty_variable_is_not_set(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = Settings()
    monkeypatch.setenv(f"TRITON_SAM_{name}", "")
    assert Settings() == without


def test_unknown_variables_of_ours_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_SAM_FLIGHT_DIR", "/somewhere")
    assert Settings().max_points == 256


def test_the_settings_of_a_process_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    get_settings.cache_clear()
    try:
        first = get_settings()
        monkeypatch.setenv("TRITON_SAM_MAX_POINTS", "17")
        assert get_settings() is first
        assert get_settings().max_points == 256
    finally:
        get_settings.cache_clear()

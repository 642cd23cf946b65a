"""Small engines on one thread."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.one_thread import one_thread


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield

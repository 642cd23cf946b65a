"""Fixtures of the export tests: one small network of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.unit.export.families import EACH_FAMILY
from tests.unit.one_thread import one_thread

if TYPE_CHECKING:
    from tests.unit.export.small import Small, SmallFactory


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="session", params=EACH_FAMILY)
def family(request: pytest.FixtureRequest, small: SmallFactory) -> Small:
    """One small network of each kind; only two of them in the tests for every commit."""
    return small(request.param)


@pytest.fixture(scope="session")
def vit(small: SmallFactory) -> Small:
    """The smallest network."""
    return small("sam1:vit_b")

"""What several unit tests share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import hypothesis_profiles
from tests.unit.helpers import PROXY_VARIABLES, FileServer

if TYPE_CHECKING:
    from tests.unit.export.small import Small, SmallFactory
    from triton_sam.specs import Architecture

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


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallFactory:
    """Small networks by the ids of their models, each built and exported once; torch is imported by those who ask for
    one. Networks that differ by their training alone are one."""
    from tests.unit.export.small import make_small, same_network, small_spec

    made: dict[Architecture, Small] = {}

    def make(model_id: str) -> Small:
        key = same_network(small_spec(model_id).architecture)
        if key not in made:
            made[key] = make_small(model_id, tmp_path_factory.mktemp("small"))
        return made[key]

    return make

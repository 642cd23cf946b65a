"""Small networks, each built and exported once; torch is imported by those who ask for one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.unit.export.families import EACH_FAMILY

if TYPE_CHECKING:
    from tests.unit.export.small import Small, SmallFactory
    from triton_sam.specs import Architecture


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """These networks are so small that threads cost more than they give, above all on a busy machine."""
    if find_spec("torch") is None:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallFactory:
    """Small networks by the ids of their models; those that differ by their training alone are one."""
    from tests.unit.export.small import make_small, same_network, small_spec

    made: dict[Architecture, Small] = {}

    def make(model_id: str) -> Small:
        key = same_network(small_spec(model_id).architecture)
        if key not in made:
            made[key] = make_small(model_id, tmp_path_factory.mktemp("small"))
        return made[key]

    return make


@pytest.fixture(scope="session", params=EACH_FAMILY)
def family(request: pytest.FixtureRequest, small: SmallFactory) -> Small:
    """One small network of each kind; for every commit only two of them."""
    return small(request.param)


@pytest.fixture(scope="session")
def vit(small: SmallFactory) -> Small:
    """The smallest of all."""
    return small("sam1:vit_b")

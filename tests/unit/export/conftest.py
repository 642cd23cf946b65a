"""Small networks, each built and exported once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.unit.export.small import FAMILIES, Small, SmallFactory, make_small, same_network, small_spec
from triton_sam.specs import Architecture


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """These networks are so small that threads cost more than they give, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallFactory:
    """Small networks by the ids of their models; those that differ by their training alone are one."""
    made: dict[Architecture, Small] = {}

    def make(model_id: str) -> Small:
        key = same_network(small_spec(model_id).architecture)
        if key not in made:
            made[key] = make_small(model_id, tmp_path_factory.mktemp("small"))
        return made[key]

    return make


@pytest.fixture(scope="session", params=FAMILIES)
def family(request: pytest.FixtureRequest, small: SmallFactory) -> Small:
    """One small network of each kind."""
    return small(request.param)


@pytest.fixture(scope="session")
def vit(small: SmallFactory) -> Small:
    """The smallest of all."""
    return small("sam1:vit_b")

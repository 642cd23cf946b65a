"""Fixtures for the tests of whole systems: what ``triton-sam setup`` writes is served, with the quicker graphs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ServerFactory, server_factory
from triton_sam.serving import Running
from triton_sam.specs import ModelSpec


@pytest.fixture(scope="session")
def repository(repository_for_cpus: Path) -> Path:
    return repository_for_cpus


@pytest.fixture(scope="session")
def start_server(repository: Path, spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> ServerFactory:
    return server_factory(repository, spec, tmp_path_factory)


@pytest.fixture(scope="session")
def server(start_server: ServerFactory) -> Iterator[Running]:
    with start_server(raw=True) as running:
        yield running

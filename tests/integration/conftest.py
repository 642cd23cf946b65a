"""Fixtures of the integration tests: exports of networks with random weights, made once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.exported import exports  # noqa: F401
from tests.integration.vlm_serving import (  # noqa: F401
    grounded_folder,
    says,
    vlm_folders,
    vlm_server,
)
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import GRAPHS_FILE, graphs_to_json

if TYPE_CHECKING:
    from tests.unit.export.small import Small, SmallFactory

ExportTrial = Callable[[str], Path]
#: Triton processes of a model in the part ``devices``, with a worker behind them.
_MANY_PROCESSES = 4


@pytest.fixture(
    scope="module",
    params=[1, pytest.param(_MANY_PROCESSES, marks=pytest.mark.part("devices"))],
    ids=lambda count: f"{count}-processes",
)
def processes(request: pytest.FixtureRequest) -> int:
    """How many Triton processes a model has: for tests of what must be the same with one and with several."""
    return int(request.param)


@pytest.fixture(scope="session")
def export_trial(tmp_path_factory: pytest.TempPathFactory) -> ExportTrial:
    """Model id -> the folder of an export: the family's network with few blocks, at its full image size.

    The exporter's parity check is left out: it takes most of an export's time, and the tests compare what is served
    with the graphs.
    """
    # Imported here, because tests that need no torch are collected without it.
    from triton_sam.export.random_weights import randomise, shrunk
    from triton_sam.export.run import write_graphs
    from triton_sam.networks.segmenters import build

    folders: dict[str, Path] = {}

    def export(model_id: str) -> Path:
        if model_id not in folders:
            spec = shrunk(get_spec(model_id))
            network = build(spec.architecture, spec.side)
            randomise(network, seed=len(folders))
            folder = tmp_path_factory.mktemp("trial")
            write_graphs(network, spec, spec.graphs, folder)
            (folder / GRAPHS_FILE).write_text(graphs_to_json(spec.graphs))
            folders[model_id] = folder
        return folders[model_id]

    return export


@pytest.fixture(scope="session")
def small_exports(tmp_path_factory: pytest.TempPathFactory) -> SmallFactory:
    """Model id -> an export of a small network of its kind and a small image size, which encodes in milliseconds."""
    from tests.unit.export.small import make_small

    made: dict[str, Small] = {}

    def export(model_id: str) -> Small:
        if model_id not in made:
            folder = tmp_path_factory.mktemp("small")
            made[model_id] = make_small(model_id, folder)
            (folder / GRAPHS_FILE).write_text(graphs_to_json(made[model_id].spec.graphs))
        return made[model_id]

    return export

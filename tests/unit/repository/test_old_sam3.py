"""Repositories with SAM 3 as versions before words wrote it: another id, and graphs for clicks alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repository_helpers import Weights, content_below, write_models
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import BACKBONE_FEATURES, CONCEPT_FILES, CONCEPT_GRAPHS
from triton_sam.repository.segmenters import (
    find_name,
    find_segmenters,
    is_current,
    parameters_at,
    refresh,
    remove_models,
)

SPEC = get_spec("sam3:full")
OLD = "sam3:tracker"


@pytest.fixture(params=["sam3", "sam3_tracker"])
def name(request: pytest.FixtureRequest, weights: Weights, repository: Path) -> str:
    """The name of a segmenter with the old id: its family's, or its own."""
    name: str = request.param
    write_models(SPEC, *weights.make("tracker"), repository, name=name)
    for config in repository.glob("*/config.pbtxt"):
        config.write_text(config.read_text().replace(SPEC.id, OLD))
    assert parameters_at(repository, name)["model_id"] == OLD
    return name


def graphs_in(content: dict[str, bytes]) -> dict[str, bytes]:
    return {path: data for path, data in content.items() if not path.endswith(".pbtxt")}


def test_it_is_found_and_takes_clicks(name: str, repository: Path) -> None:
    (found,) = find_segmenters(repository).items()
    assert found[0] == name == find_name(SPEC, repository)
    assert found[1].id == SPEC.id
    assert found[1].concepts is None
    assert found[1].prompts == {"points", "boxes", "masks", "everything"}
    assert BACKBONE_FEATURES not in dict(found[1].encoder.outputs)


def test_it_gets_the_new_id_and_keeps_its_graphs_and_its_name(name: str, repository: Path) -> None:
    before = content_below(repository)
    assert not is_current(SPEC, repository)
    assert refresh(SPEC, repository)
    assert is_current(SPEC, repository)
    assert parameters_at(repository, name)["model_id"] == SPEC.id
    assert list(find_segmenters(repository)) == [name]
    assert graphs_in(content_below(repository)) == graphs_in(before)


def test_it_is_set_up_again_with_words_under_its_name(name: str, weights: Weights, repository: Path) -> None:
    parts = {}
    for part in (*CONCEPT_GRAPHS, *CONCEPT_FILES):
        parts[part] = weights.folder / part
        parts[part].write_text("{}")
    write_models(SPEC, *weights.make("whole"), repository, extras=parts)
    assert list(find_segmenters(repository)) == [name]
    (served,) = find_segmenters(repository).values()
    assert served.concepts is not None
    assert "text" in served.prompts


def test_it_is_removed_by_the_new_id(name: str, repository: Path) -> None:
    remove_models(SPEC, repository)
    assert find_segmenters(repository) == {}
    assert list(repository.iterdir()) == []

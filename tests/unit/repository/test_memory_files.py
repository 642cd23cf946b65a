"""The files of a memory in a repository, and what a served model says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.repository_helpers import Weights, parsed, write_models
from triton_sam.models.catalog import get_spec
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import MEMORY_FILE, MEMORY_GRAPHS, NETWORK_FILE
from triton_sam.models.weights import WeightStore
from triton_sam.repository import setup
from triton_sam.repository.segmenters import find_segmenters, is_current, parameters_at, refresh
from triton_sam.repository.setup import EngineChoice, SetupRequest, set_up

SPEC = get_spec("sam2.1:tiny")


@pytest.fixture
def memory(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / name for name in (*MEMORY_GRAPHS, MEMORY_FILE)}
    for name, path in files.items():
        path.write_text(name)
    return files


def tensors_of(repository: Path) -> tuple[set[str], set[str]]:
    config = parsed((repository / "sam2" / "config.pbtxt").read_text())
    assert all(entry.optional for entry in config.input)
    return {entry.name for entry in config.input}, {entry.name for entry in config.output}


def test_a_model_with_a_memory_takes_videos(weights: Weights, memory: dict[str, Path], repository: Path) -> None:
    write_models(SPEC, *weights.make(), repository, extras=memory)
    assert all((repository / "sam2" / "1" / name).is_file() for name in memory)
    assert find_segmenters(repository)["sam2"].memory == MEMORY_TRAITS["sam2.1"]
    assert all("video_state" in names for names in tensors_of(repository))
    assert (parameters_at(repository, "sam2") or {})["memory"] == "sam2.1", "for clients that choose a model"
    assert is_current(SPEC, repository)
    assert refresh(SPEC, repository)
    assert find_segmenters(repository)["sam2"].memory == MEMORY_TRAITS["sam2.1"]


def test_other_weights_without_a_memory_take_its_place(
    weights: Weights, memory: dict[str, Path], repository: Path
) -> None:
    graphs = weights.make()
    write_models(SPEC, *graphs, repository, extras=memory)
    write_models(SPEC, *graphs, repository)
    assert not (repository / "sam2" / "2" / MEMORY_FILE).exists()
    assert find_segmenters(repository)["sam2"].memory is None
    assert all("video_state" not in names for names in tensors_of(repository))
    assert "memory" not in (parameters_at(repository, "sam2") or {})
    assert is_current(SPEC, repository)


@pytest.mark.parametrize("has_memory", [True, False])
def test_set_up_for_torch_says_whether_there_is_a_memory(
    has_memory: bool, tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tmp_path / "cache" / NETWORK_FILE
    network.parent.mkdir()
    network.write_text("weights")
    for name in MEMORY_GRAPHS:  # of an export of the same model
        (network.parent / name).write_text("graph")
    if has_memory:
        (network.parent / MEMORY_FILE).write_text("{}")
    monkeypatch.setattr(setup, "write_network", lambda *_: network)
    lines: list[str] = []
    store = WeightStore(tmp_path / "home")
    set_up(SetupRequest(SPEC, store, repository, engine=EngineChoice.TORCH_ONLY, say=lines.append))
    said = "sam2.1:tiny takes images but no videos: these weights have no memory, as Meta's checkpoints have"
    assert lines == ([] if has_memory else [said])
    there = {path.name for path in (repository / "sam2" / "1").iterdir()}
    assert there == {NETWORK_FILE, "model.py", "graphs.json", *([MEMORY_FILE] if has_memory else [])}

"""From a checkpoint that finds concepts to a repository that does: exports, their check, and the tokenizer."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.concept_models import SIDE, small_concept_network, small_concept_spec, write_small_tokenizer
from triton_sam.errors import WeightsError
from triton_sam.export.parity_concepts import OUTPUTS, check_concepts
from triton_sam.export.parity_scenes import drawing
from triton_sam.export.random_weights import save_as_folder
from triton_sam.export.run import ExportOptions, export_checkpoint, write_graphs
from triton_sam.models.specs import (
    CONCEPT_FILES,
    CONCEPT_GRAPHS,
    CONCEPTS_FILE,
    DETECTOR_FILE,
    NETWORK_FILE,
    TOKENIZER_FILE,
    EngineChoice,
    Precision,
    exported_graphs,
)
from triton_sam.models.weights import WeightStore
from triton_sam.networks.segmenters import build
from triton_sam.repository.export_cache import ExportRequest
from triton_sam.repository.segmenters import find_segmenters
from triton_sam.repository.setup import SetupRequest, set_up

pytestmark = pytest.mark.torch

SPEC = small_concept_spec()
SetUp = Callable[..., Path]


@pytest.fixture(scope="module")
def network() -> Any:
    return small_concept_network()


@pytest.fixture(scope="module")
def checkpoint(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tokenizer beside it."""
    folder = save_as_folder(network, tmp_path_factory.mktemp("checkpoint"))
    write_small_tokenizer(folder)
    return folder


@pytest.mark.parametrize("precision", [Precision.FP32, pytest.param(Precision.FP16, marks=pytest.mark.part("exports"))])
def test_an_export_has_it_and_equals_torch(precision: Precision, checkpoint: Path, tmp_path: Path) -> None:
    exported = export_checkpoint(SPEC, checkpoint, tmp_path / "out", ExportOptions(SIDE, precision=precision))
    for name in (*CONCEPT_GRAPHS, CONCEPTS_FILE):
        assert (exported.folder / name).stat().st_size == exported.report["files"][name]
    parity = exported.report["concept_parity"]
    assert parity["passed"]
    assert parity["precision"] == precision.value
    assert {(entry["output"], entry["prompt"]) for entry in parity["comparisons"]} == {
        ("backbone_features", ""),
        ("text_features", "words"),
        *((name, case) for name in OUTPUTS for case in ("words", "words and exemplars")),
    }
    rows = {row["output"]: row for row in exported.report["summary"]}
    assert set(OUTPUTS) < set(rows)
    assert all(row["share"] <= (1e-3 if precision is Precision.FP32 else 0.1) for row in rows.values())


def test_a_graph_of_other_weights_is_found(network: Any, tmp_path: Path) -> None:
    write_graphs(network, SPEC, SPEC.graphs, tmp_path)
    other = small_concept_network(seed=1)
    for name in ("vision_encoder", "text_encoder"):  # the same up to the detector
        owner, source = (other, network) if name == "vision_encoder" else (other.concepts, network.concepts)
        getattr(owner, name).load_state_dict(getattr(source, name).state_dict())
    other.concepts.text_projection.load_state_dict(network.concepts.text_projection.state_dict())
    right = check_concepts(network, SPEC, SPEC.graphs, tmp_path, drawing(SIDE, 0), seed=0)
    assert right.passed, right.reason
    wrong = check_concepts(other, SPEC, SPEC.graphs, tmp_path, drawing(SIDE, 0), seed=0)
    assert not wrong.passed
    assert wrong.reason.startswith("pred_logits on the drawn image words differs by")


# into a repository


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def into_repository(tmp_path: Path, said: list[str]) -> SetUp:
    def run(checkpoint: Path, engine: EngineChoice = EngineChoice.ONNX) -> Path:
        home = tmp_path / "home"
        request = SetupRequest(
            SPEC,
            WeightStore(home),
            home / "models",
            export=ExportRequest(checkpoint, SIDE),
            engine=engine,
            say=said.append,
        )
        names = set_up(request)
        return home / "models" / names[0] / "1"

    return run


@pytest.mark.parametrize("engine", [EngineChoice.ONNX, EngineChoice.TORCH_ONLY])
def test_a_checkpoint_with_its_tokenizer_takes_words(
    engine: EngineChoice, checkpoint: Path, into_repository: SetUp, said: list[str]
) -> None:
    version = into_repository(checkpoint, engine)
    (served,) = find_segmenters(version.parents[1]).values()
    assert served.concepts is not None
    assert (served.concepts.side, served.concepts.queries) == (SIDE // 14, 20)
    assert "text" in served.prompts
    assert (version / TOKENIZER_FILE).read_bytes() == (checkpoint / TOKENIZER_FILE).read_bytes()
    assert (version / DETECTOR_FILE).is_file() == (engine is EngineChoice.ONNX)
    assert (version / NETWORK_FILE).is_file() == (engine is EngineChoice.TORCH_ONLY)
    assert not [line for line in said if "no words" in line]


def test_without_a_tokenizer_beside_it_the_published_one_is_taken(
    checkpoint: Path, into_repository: SetUp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, kept = tmp_path / "alone", write_small_tokenizer(tmp_path)
    shutil.copytree(checkpoint, alone)
    (alone / TOKENIZER_FILE).unlink()
    monkeypatch.setattr(WeightStore, "pull_tokenizer", lambda *_: kept)
    version = into_repository(alone, EngineChoice.TORCH_ONLY)
    assert (version / TOKENIZER_FILE).read_bytes() == kept.read_bytes()


def test_without_any_tokenizer_it_takes_clicks_and_says_why(
    checkpoint: Path, into_repository: SetUp, said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Path:
        raise WeightsError("tokenizer.json could not be downloaded")

    monkeypatch.setattr(WeightStore, "pull_tokenizer", fail)
    alone = tmp_path / "alone"
    shutil.copytree(checkpoint, alone)
    (alone / TOKENIZER_FILE).unlink()
    version = into_repository(alone, EngineChoice.TORCH_ONLY)
    (served,) = find_segmenters(version.parents[1]).values()
    assert served.concepts is None
    assert "text" not in served.prompts
    assert said[-1] == (
        "sam3:full takes points and boxes but no words, for want of a tokenizer: tokenizer.json could not be "
        "downloaded; put tokenizer.json beside the checkpoint and name that with --checkpoint"
    )


def test_a_checkpoint_of_the_tracker_alone_takes_clicks(
    into_repository: SetUp, said: list[str], tmp_path: Path
) -> None:
    plain = dataclasses.replace(SPEC.architecture, concepts=None)
    version = into_repository(save_as_folder(build(plain, SIDE), tmp_path / "tracker"), EngineChoice.TORCH_ONLY)
    (served,) = find_segmenters(version.parents[1]).values()
    assert served.concepts is None
    assert served.graphs == exported_graphs(plain, SIDE)
    assert not any((version / name).exists() for name in CONCEPT_FILES)
    assert "sam3:full takes points and boxes but no words: these weights have no detector" in said

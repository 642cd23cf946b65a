from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import onnxruntime
import pytest
from google.protobuf import text_format

from tests.unit.ready_made import small_ready_made, write_small_ready_made
from tests.unit.repository_helpers import (
    Weights,
    content_below,
    parsed,
    write_models,
)
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import CPU_DECODER_FILE, OLD_EIGHT_BIT_ENCODER_FILE, graphs_to_json
from triton_sam.repository.model_folders import versions
from triton_sam.repository.segmenters import (
    choose_name,
    find_segmenters,
    has_file,
    is_current,
    is_exported,
    refresh,
)
from triton_sam.repository.segmenters import write_models as write_as_they_are

SPEC = get_spec(DEFAULT_MODEL)
LARGE = get_spec("sam2.1:large")
SMALL = get_spec("sam2.1:small")
EXPORTED_TINY = dataclasses.replace(SPEC, graphs=get_spec("sam2.1:tiny").graphs)


def change_config(repository: Path, name: str) -> None:
    config = repository / name / "config.pbtxt"
    config.write_text(config.read_text() + 'default_model_filename: "of another release"\n')


@pytest.mark.parametrize("name", ["sam2", "sam2_encoder", "sam2_decoder"])
def test_a_config_of_another_release_is_written_anew_from_what_is_there(
    name: str, weights: Weights, repository: Path
) -> None:
    exported = weights.make("fine-tuned", data=True)
    write_models(EXPORTED_TINY, *exported, repository)
    before = content_below(repository)
    shutil.rmtree(exported[0].parent)
    change_config(repository, name)
    assert not is_current(SPEC, repository)
    assert refresh(SPEC, repository)
    assert is_current(SPEC, repository)
    assert content_below(repository) == before


def test_an_export_in_place_of_ready_made_graphs_is_current(weights: Weights, repository: Path) -> None:
    write_models(EXPORTED_TINY, *weights.make("fine-tuned"), repository)
    assert is_current(SPEC, repository)


def test_ready_made_graphs_of_another_release_are_not_current(graphs: tuple[Path, Path], repository: Path) -> None:
    older = dataclasses.replace(SPEC, graphs=dataclasses.replace(SPEC.graphs, side=512))
    write_models(older, *graphs, repository)
    assert is_current(older, repository)
    assert not is_current(SPEC, repository)
    assert not refresh(SPEC, repository)
    write_models(SPEC, *graphs, repository)
    assert is_current(SPEC, repository)
    assert versions(repository / "sam2") == [1, 2]


def test_a_repository_of_an_older_release(tmp_path: Path, repository: Path) -> None:
    """Its plain graphs have the names of the ready-made ones and do not say whose they are; it has no graphs.json, and
    an encoder in 8 bits that nobody asked for."""
    spec = small_ready_made()
    graphs = write_small_ready_made(tmp_path / "weights")
    plain = {CPU_DECODER_FILE: graphs[1], OLD_EIGHT_BIT_ENCODER_FILE: graphs[0]}
    write_as_they_are(spec, *graphs, repository, extras=plain)
    for name in ("sam2_encoder", "sam2_decoder"):
        config = parsed((repository / name / "config.pbtxt").read_text())
        config.parameters.clear()
        (repository / name / "config.pbtxt").write_text(text_format.MessageToString(config))
    assert not is_current(spec, repository)
    assert refresh(spec, repository)
    assert is_current(spec, repository)
    assert not is_exported(spec, repository)
    assert (repository / "sam2/2/graphs.json").read_text() == graphs_to_json(spec.graphs)
    assert (repository / "sam2/2/encoder.onnx").read_bytes() == graphs[0].read_bytes()
    assert has_file(spec, repository, CPU_DECODER_FILE)
    assert has_file(spec, repository, OLD_EIGHT_BIT_ENCODER_FILE)
    config = parsed((repository / "sam2_encoder/config.pbtxt").read_text())
    assert "image_embeddings" in {output.name for output in config.output}
    made = onnxruntime.InferenceSession(str(repository / "sam2_encoder/2/model.onnx"))
    assert "image_embeddings" in {output.name for output in made.get_outputs()}
    assert refresh(spec, repository)
    assert versions(repository / "sam2") == [1, 2], "the same files are not another version"


def test_a_repository_without_descriptions(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    (repository / "sam2/1/graphs.json").unlink()
    assert find_segmenters(repository) == {"sam2": SPEC}


def test_ready_made_graphs_that_cannot_be_read_are_set_up_again(
    graphs: tuple[Path, Path], repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_as_they_are(SPEC, *graphs, repository)
    assert not refresh(SPEC, repository)
    assert "sam2:tiny is set up again" in caplog.text


def test_what_is_not_whole_is_not_current(graphs: tuple[Path, Path], repository: Path) -> None:
    assert not is_current(SPEC, repository)
    assert not refresh(SPEC, repository)
    write_models(SPEC, *graphs, repository)
    (repository / "sam2/1/decoder.onnx").unlink()
    assert not is_current(SPEC, repository)
    assert not refresh(SPEC, repository)


def test_damaged_graphs_are_left_out_with_a_warning(
    graphs: tuple[Path, Path], repository: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_models(SPEC, *graphs, repository)
    (repository / "sam2/1/graphs.json").write_text("{")
    assert find_segmenters(repository) == {}
    assert "graphs.json is damaged" in caplog.text
    assert not is_current(SPEC, repository)
    assert choose_name(SPEC, repository) == "sam2"

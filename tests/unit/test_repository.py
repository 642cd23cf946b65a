from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_sam.catalog import CATALOG, DEFAULT_MODEL, EncoderGraph, ModelSpec, get_spec
from triton_sam.errors import SetupError
from triton_sam.repository import (
    config_text,
    decoder_config,
    encoder_config,
    find_segmenters,
    raw_names,
    segmenter_config,
    segmenter_name,
    write_models,
)

SPEC = get_spec(DEFAULT_MODEL)
BUILDERS = (segmenter_config, encoder_config, decoder_config)
each_spec = pytest.mark.parametrize("spec", CATALOG.values(), ids=list(CATALOG))


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def dims(tensors: Any) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.dims) for tensor in tensors}


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def graphs(tmp_path: Path) -> tuple[Path, Path]:
    encoder, decoder = tmp_path / "weights" / "e.onnx", tmp_path / "weights" / "d.onnx"
    encoder.parent.mkdir()
    encoder.write_bytes(b"the encoder")
    decoder.write_bytes(b"the decoder")
    return encoder, decoder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "home" / "model_repository"


@each_spec
def test_every_config_is_bounded_and_has_one_instance(spec: ModelSpec) -> None:
    for build in BUILDERS:
        text = config_text(build(spec))
        config = parsed(text)
        assert config == build(spec)
        policy = config.dynamic_batching.default_queue_policy
        assert config.HasField("dynamic_batching")
        assert policy.max_queue_size > 0
        assert policy.default_timeout_microseconds >= 1_000_000
        assert policy.timeout_action == policy.REJECT
        assert [(group.count, group.kind) for group in config.instance_group] == [
            (1, model_config_pb2.ModelInstanceGroup.KIND_CPU)
        ]
        assert config.max_batch_size == 0
        assert not config.runtime, "a config with a runtime does not load on the embedded server"


@each_spec
def test_the_segmenter(spec: ModelSpec) -> None:
    config = segmenter_config(spec)
    assert config.name == segmenter_name(spec) == spec.family
    assert config.backend == "python"
    assert all(tensor.optional for tensor in config.input)
    side = spec.decoder.mask_side
    embedding = list(dict(spec.encoder.outputs)[spec.encoder.embedding])
    assert dims(config.input) == {
        "image": [-1],
        "image_b64": [1],
        "image_key": [1],
        "embedding": embedding,
        "prompt_json": [1],
    }
    assert dims(config.output) == {
        "result_json": [1],
        "image_key": [1],
        "masks": [-1, -1, -1],
        "scores": [-1, -1],
        "low_res_logits": [-1, -1, side, side],
        "embedding": embedding,
    }
    types = {tensor.name: tensor.data_type for tensor in config.input}
    assert types["image"] == model_config_pb2.TYPE_UINT8
    assert types["prompt_json"] == types["image_key"] == types["image_b64"] == model_config_pb2.TYPE_STRING
    assert types["embedding"] == model_config_pb2.TYPE_FP32
    assert config.parameters["model_id"].string_value == spec.id


@each_spec
def test_the_plain_graphs(spec: ModelSpec) -> None:
    encoder, decoder = encoder_config(spec), decoder_config(spec)
    assert (encoder.name, decoder.name) == raw_names(spec)
    assert raw_names(spec) == (f"{spec.family}_encoder", f"{spec.family}_decoder")
    assert encoder.backend == decoder.backend == "onnxruntime"
    assert dims(encoder.input) == {spec.encoder.image: [1, 3, spec.side, spec.side]}
    outputs = {name: list(shape) for name, shape in spec.encoder.outputs}
    assert dims(encoder.output) == outputs
    side, count = spec.decoder.mask_side, spec.decoder.masks_per_prompt
    assert dims(decoder.input) == outputs | {
        spec.decoder.points: [-1, -1, 2],
        spec.decoder.labels: [-1, -1],
        spec.decoder.mask: [-1, 1, side, side],
        spec.decoder.mask_flag: [1],
    }
    assert dims(decoder.output) == {
        spec.decoder.masks: [-1, count, side, side],
        spec.decoder.scores: [-1, count],
    }
    for tensor in (*encoder.input, *encoder.output, *decoder.input, *decoder.output):
        assert tensor.data_type == model_config_pb2.TYPE_FP32


def test_configs_follow_the_spec_and_not_the_model_name() -> None:
    graph = EncoderGraph("pixel_values", None, None, "deep", (("deep", (1, 256, 72, 72)),))
    spec = dataclasses.replace(SPEC, family="other", side=1008, encoder=graph)
    assert dims(encoder_config(spec).input) == {"pixel_values": [1, 3, 1008, 1008]}
    assert dims(segmenter_config(spec).output)["embedding"] == [1, 256, 72, 72]
    assert segmenter_config(spec).name == "other"


def test_write_models(graphs: tuple[Path, Path], repository: Path) -> None:
    names = write_models(SPEC, *graphs, repository)
    assert names == ["sam2", "sam2_encoder", "sam2_decoder"]
    assert files_below(repository) == {
        "sam2/config.pbtxt",
        "sam2/1/model.py",
        "sam2/1/encoder.onnx",
        "sam2/1/decoder.onnx",
        "sam2_encoder/config.pbtxt",
        "sam2_encoder/1/model.onnx",
        "sam2_decoder/config.pbtxt",
        "sam2_decoder/1/model.onnx",
    }
    assert (repository / "sam2/1/encoder.onnx").read_bytes() == b"the encoder"
    assert (repository / "sam2/1/decoder.onnx").read_bytes() == b"the decoder"
    assert (repository / "sam2_encoder/1/model.onnx").read_bytes() == b"the encoder"
    assert (repository / "sam2_decoder/1/model.onnx").read_bytes() == b"the decoder"
    for name in names:
        assert parsed((repository / name / "config.pbtxt").read_text()).name == name
    source = (repository / "sam2/1/model.py").read_text()
    assert "from triton_sam.backend.segmenter import TritonPythonModel" in source
    compile(source, "model.py", "exec")
    assert [path.name for path in repository.parent.iterdir()] == [repository.name]


def test_a_repository_stands_without_the_weights(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    for graph in graphs:
        graph.unlink()
    assert (repository / "sam2/1/encoder.onnx").read_bytes() == b"the encoder"


def test_files_are_copied_where_they_cannot_be_linked(
    graphs: tuple[Path, Path], repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another file system")

    monkeypatch.setattr(os, "link", refuse)
    write_models(SPEC, *graphs, repository)
    copied = repository / "sam2/1/encoder.onnx"
    assert copied.read_bytes() == b"the encoder"
    assert not copied.is_symlink()


def test_writing_again_replaces_and_leaves_nothing_behind(
    graphs: tuple[Path, Path], repository: Path, tmp_path: Path
) -> None:
    write_models(SPEC, *graphs, repository)
    before = files_below(repository)
    (repository / "sam2/1/stale.txt").write_text("of an older version")
    newer = tmp_path / "weights" / "newer.onnx"
    newer.write_bytes(b"a newer encoder")
    write_models(SPEC, newer, graphs[1], repository)
    assert files_below(repository) == before
    assert (repository / "sam2/1/encoder.onnx").read_bytes() == b"a newer encoder"
    assert (repository / "sam2_encoder/1/model.onnx").read_bytes() == b"a newer encoder"
    assert [path.name for path in repository.parent.iterdir()] == [repository.name]
    assert graphs[0].read_bytes() == b"the encoder"


def test_other_models_of_the_repository_are_left_alone(graphs: tuple[Path, Path], repository: Path) -> None:
    mine = repository / "my_model" / "config.pbtxt"
    mine.parent.mkdir(parents=True)
    mine.write_text('name: "my_model"')
    write_models(SPEC, *graphs, repository)
    assert mine.read_text() == 'name: "my_model"'


def test_a_failure_keeps_the_old_model_and_leaves_nothing_behind(
    graphs: tuple[Path, Path], repository: Path, tmp_path: Path
) -> None:
    write_models(SPEC, *graphs, repository)
    before = files_below(repository)
    with pytest.raises(SetupError, match="cannot write the model sam2"):
        write_models(SPEC, tmp_path / "missing.onnx", graphs[1], repository)
    assert files_below(repository) == before
    assert (repository / "sam2/1/encoder.onnx").read_bytes() == b"the encoder"
    assert [path.name for path in repository.parent.iterdir()] == [repository.name]


def test_a_repository_that_cannot_be_made(graphs: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SetupError, match="cannot write the model sam2"):
        write_models(SPEC, *graphs, tmp_path / "file" / "repository")


def test_find_segmenters(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    assert find_segmenters(repository) == {"sam2": SPEC}


@pytest.mark.parametrize(
    "config",
    [
        None,
        b"",
        b"this is no config {",
        b'name: "x" no_such_field: 1',
        b"\xff\xfe\x00\x01 binary",
        b'name: "x" backend: "python"',
        b'name: "x" parameters { key: "model_id" value { string_value: "sam9:unknown" } }',
    ],
    ids=["none", "empty", "broken", "unknown field", "binary", "foreign", "unknown model"],
)
def test_stray_folders_and_broken_configs_are_ignored(
    config: bytes | None, graphs: tuple[Path, Path], repository: Path
) -> None:
    write_models(SPEC, *graphs, repository)
    stray = repository / "a_stray_folder"
    stray.mkdir()
    if config is not None:
        (stray / "config.pbtxt").write_bytes(config)
    (repository / "a_stray_file").write_text("x")
    assert find_segmenters(repository) == {"sam2": SPEC}


def test_a_config_that_is_a_folder_is_ignored(repository: Path) -> None:
    (repository / "odd" / "config.pbtxt").mkdir(parents=True)
    assert find_segmenters(repository) == {}


def test_a_renamed_folder_is_found_under_its_folder_name(graphs: tuple[Path, Path], repository: Path) -> None:
    write_models(SPEC, *graphs, repository)
    (repository / "sam2").rename(repository / "renamed")
    assert list(find_segmenters(repository)) == ["renamed"]


def test_no_repository_has_no_segmenters(repository: Path) -> None:
    assert find_segmenters(repository) == {}

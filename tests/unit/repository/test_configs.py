from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_sam.errors import SetupError
from triton_sam.models.catalog import CATALOG, DEFAULT_MODEL, get_spec
from triton_sam.models.specs import DecoderGraph, EncoderGraph, Graphs, ModelSpec
from triton_sam.repository.configs import (
    config_text,
    decoder_config,
    encoder_config,
    parameters_of,
    load_json,
    plain_config,
    raw_names,
    renamed,
    segmenter_config,
)

SPEC = get_spec(DEFAULT_MODEL)
EXPORTED = get_spec("sam2.1:large")
BUILDERS = (segmenter_config, encoder_config, decoder_config)
each_spec = pytest.mark.parametrize("spec", CATALOG.values(), ids=list(CATALOG))


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def dims(tensors: Any) -> dict[str, list[int]]:
    return {tensor.name: list(tensor.dims) for tensor in tensors}


def optional(config: Any) -> set[str]:
    return {tensor.name for tensor in config.input if tensor.optional}


@each_spec
def test_every_config_is_bounded_and_has_one_instance(spec: ModelSpec) -> None:
    for build in BUILDERS:
        text = config_text(build(spec, "a_name"))
        config = parsed(text)
        assert config == build(spec, "a_name")
        assert config.name == "a_name"
        if build is segmenter_config:
            assert not config.HasField("dynamic_batching"), "ADR 8"
        else:
            policy = config.dynamic_batching.default_queue_policy
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
    config = segmenter_config(spec, spec.variant_name)
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


def test_plain_graphs_for_one_image() -> None:
    encoder, decoder = encoder_config(SPEC, "e"), decoder_config(SPEC, "d")
    assert encoder.backend == decoder.backend == "onnxruntime"
    features = {
        "image_embed": [1, 256, 64, 64],
        "high_res_feats_0": [1, 32, 256, 256],
        "high_res_feats_1": [1, 64, 128, 128],
    }
    assert dims(encoder.input) == {"image": [1, 3, 1024, 1024]}
    assert dims(encoder.output) == features
    assert dims(decoder.input) == features | {
        "point_coords": [-1, -1, 2],
        "point_labels": [-1, -1],
        "mask_input": [-1, 1, 256, 256],
        "has_mask_input": [1],
    }
    assert dims(decoder.output) == {"masks": [-1, 3, 256, 256], "iou_predictions": [-1, 3]}
    assert optional(encoder) == optional(decoder) == set()


def test_plain_graphs_with_a_batch_and_optional_inputs() -> None:
    encoder, decoder = encoder_config(EXPORTED, "e"), decoder_config(EXPORTED, "d")
    features = {
        "image_embeddings": [-1, 256, 64, 64],
        "high_res_feats_0": [-1, 32, 256, 256],
        "high_res_feats_1": [-1, 64, 128, 128],
    }
    assert dims(encoder.input) == {"image": [-1, 3, 1024, 1024]}
    assert dims(encoder.output) == features
    assert dims(decoder.input) == features | {
        "point_coords": [-1, -1, 2],
        "point_labels": [-1, -1],
        "mask_input": [-1, 1, 256, 256],
        "has_mask_input": [-1],
        "multimask_output": [1],
    }
    assert dims(decoder.output) == {"masks": [-1, -1, 256, 256], "iou_predictions": [-1, -1]}
    assert optional(encoder) == set()
    assert optional(decoder) == set(EXPORTED.decoder.optional)
    assert {"image_embeddings", "point_coords", "point_labels"} & optional(decoder) == set()


@each_spec
def test_plain_graphs_are_float32_and_say_whose_they_are(spec: ModelSpec) -> None:
    for config in (encoder_config(spec, "e"), decoder_config(spec, "d")):
        assert all(tensor.data_type == model_config_pb2.TYPE_FP32 for tensor in (*config.input, *config.output))
        assert parameters_of(config_text(config)) == {"graph_of": spec.id}


def test_configs_follow_the_graphs_and_not_the_model_name() -> None:
    encoder = EncoderGraph("pixel_values", None, None, "deep", (("deep", (1, 256, 72, 72)),))
    spec = dataclasses.replace(SPEC, graphs=Graphs(1008, encoder, DecoderGraph(mask_side=288)))
    assert dims(encoder_config(spec, "e").input) == {"pixel_values": [1, 3, 1008, 1008]}
    assert dims(segmenter_config(spec, "s").output)["embedding"] == [1, 256, 72, 72]
    assert dims(segmenter_config(spec, "s").output)["low_res_logits"] == [-1, -1, 288, 288]


def test_a_plain_model_takes_priorities() -> None:
    config = plain_config(
        "tool_encoder",
        [("image", "TYPE_FP32", [-1, 3, 8, 8])],
        [("features", "TYPE_FP32", [-1, 4])],
        profile="tool",
    )
    assert (config.dynamic_batching.priority_levels, config.dynamic_batching.default_priority_level) == (2, 2)
    assert config.dynamic_batching.default_queue_policy.max_queue_size > 0
    assert parameters_of(config_text(config)) == {"profile": "tool"}
    assert optional(config) == set()


def test_raw_names() -> None:
    assert raw_names("sam2.1_large") == ("sam2.1_large_encoder", "sam2.1_large_decoder")


def test_a_new_name() -> None:
    text = renamed(config_text(segmenter_config(SPEC, "sam2")), "sam2_tiny")
    assert text == config_text(segmenter_config(SPEC, "sam2_tiny"))
    with pytest.raises(SetupError, match="sam2_tiny"):
        renamed("this is no config {", "sam2_tiny")


def test_a_pinned_version() -> None:
    text = config_text(segmenter_config(SPEC, "sam2"))
    sent = json.loads(load_json(text, 7))
    assert sent["version_policy"] == {"specific": {"versions": ["7"]}}
    assert sent["parameters"]["model_id"] == {"string_value": SPEC.id}
    with pytest.raises(SetupError, match="set the model up again"):
        load_json("this is no config {", 7)


@pytest.mark.parametrize("text", ["this is no config {", 'name: "x" no_such_field: 1'])
def test_what_is_no_config_has_no_parameters(text: str) -> None:
    assert parameters_of(text) is None
    assert parameters_of("") == {}

"""Triton configs of a model, as protobufs and as text. Nothing here touches a disk.

Every config is parsed back with Triton's own protobuf before it is used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from triton_sam.errors import SetupError
from triton_sam.models.specs import ModelSpec, Role

#: (name, Triton data type, dims) of one tensor.
Tensor = tuple[str, str, Sequence[int]]

#: Config parameters that mark our folders.
MODEL_ID = "model_id"  # a segmenter; the value is its catalogue row
MEMORY = "memory"  # a segmenter that takes videos; the value is its memory's generation
CONCEPTS = "concepts"  # a segmenter that takes text and exemplars; the value is how many tokens a text may have
GRAPH_OF = "graph_of"  # a plain graph; the value is its catalogue row
PROFILE = "profile"  # a plain graph for another tool; the value is the profile
_PRIORITY_LEVELS = 2
_QUEUE_SIZE = 1024
_QUEUE_SECONDS = 60
ANY = -1


def raw_names(segmenter: str) -> tuple[str, str]:
    """The Triton names of the plain encoder and decoder beside a segmenter."""
    return f"{segmenter}_{Role.ENCODER.value}", f"{segmenter}_{Role.DECODER.value}"


def segmenter_config(spec: ModelSpec, name: str) -> Any:
    """The segmenter's config; every input is optional, and ``backend/segmenter.py`` checks their combination."""
    side = spec.decoder.mask_side
    embedding = dict(spec.encoder.outputs)[spec.encoder.embedding]
    inputs: list[Tensor] = [
        ("image", "TYPE_UINT8", [ANY]),
        ("image_b64", "TYPE_STRING", [1]),
        ("image_key", "TYPE_STRING", [1]),
        ("embedding", "TYPE_FP32", embedding),
        ("prompt_json", "TYPE_STRING", [1]),
    ]
    outputs: list[Tensor] = [
        ("result_json", "TYPE_STRING", [1]),
        ("image_key", "TYPE_STRING", [1]),
        ("masks", "TYPE_UINT8", [ANY, ANY, ANY]),
        ("scores", "TYPE_FP32", [ANY, ANY]),
        ("low_res_logits", "TYPE_FP32", [ANY, ANY, side, side]),
        ("embedding", "TYPE_FP32", embedding),
    ]
    parameters = {MODEL_ID: spec.id}
    if spec.memory is not None:
        parameters[MEMORY] = spec.architecture.generation
        inputs.append(("video_state", "TYPE_UINT8", [ANY]))
        outputs.append(("video_state", "TYPE_UINT8", [ANY]))
    if spec.concepts is not None:
        parameters[CONCEPTS] = str(spec.concepts.tokens)
    # No dynamic_batching: with deferred responses Triton's batcher misses the end of its requests and checks again only
    # every 500 ms (ADR 8). The segmenter's own queues are bounded.
    return model_config(name, "python", inputs, outputs, parameters, optional=[tensor[0] for tensor in inputs])


def encoder_config(spec: ModelSpec, name: str) -> Any:
    """The plain encoder as its graph declares it."""
    rows = ANY if spec.encoder.batched else 1
    return _queued_config(
        name,
        "onnxruntime",
        inputs=[(spec.encoder.image, "TYPE_FP32", [rows, 3, spec.side, spec.side])],
        outputs=[(tensor, "TYPE_FP32", [rows, *shape[1:]]) for tensor, shape in spec.encoder.outputs],
        parameters={GRAPH_OF: spec.id},
    )


def decoder_config(spec: ModelSpec, name: str) -> Any:
    """The plain decoder as its graph declares it."""
    graph = spec.decoder
    side, rows = graph.mask_side, ANY if graph.batched else 1
    count = graph.masks_per_prompt if graph.multimask is None else ANY
    inputs: list[Tensor] = [
        *((tensor, "TYPE_FP32", [rows, *shape[1:]]) for tensor, shape in spec.encoder.outputs),
        (graph.points, "TYPE_FP32", [ANY, ANY, 2]),
        (graph.labels, "TYPE_FP32", [ANY, ANY]),
        (graph.mask, "TYPE_FP32", [ANY, 1, side, side]),
        (graph.mask_flag, "TYPE_FP32", [rows]),
    ]
    if graph.multimask is not None:
        inputs.append((graph.multimask, "TYPE_FP32", [1]))
    outputs: list[Tensor] = [
        (graph.masks, "TYPE_FP32", [ANY, count, side, side]),
        (graph.scores, "TYPE_FP32", [ANY, count]),
    ]
    return _queued_config(name, "onnxruntime", inputs, outputs, {GRAPH_OF: spec.id}, graph.optional)


def plain_config(name: str, inputs: Iterable[Tensor], outputs: Iterable[Tensor], *, profile: str) -> Any:
    """A plain graph for another tool, whose requests may carry a priority: 1 goes first, 0 means the default."""
    config = _queued_config(name, "onnxruntime", inputs, outputs, {PROFILE: profile})
    config.dynamic_batching.priority_levels = _PRIORITY_LEVELS
    config.dynamic_batching.default_priority_level = _PRIORITY_LEVELS  # the lowest
    return config


def model_config(
    name: str,
    backend: str,
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    parameters: Mapping[str, str],
    optional: Iterable[str] = (),
) -> Any:
    """A config with what all models share: one instance, and no batch axis for Triton."""
    config = model_config_pb2.ModelConfig(name=name, backend=backend, max_batch_size=0)
    optional = frozenset(optional)
    for tensor, data_type, dims in inputs:
        config.input.add(name=tensor, data_type=data_type, dims=list(dims), optional=tensor in optional)
    for tensor, data_type, dims in outputs:
        config.output.add(name=tensor, data_type=data_type, dims=list(dims))
    config.instance_group.add(count=1, kind="KIND_CPU")
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def _queued_config(*arguments: Any, **named: Any) -> Any:
    """:func:`model_config` with a bounded queue in Triton that has a timeout."""
    config = model_config(*arguments, **named)
    policy = config.dynamic_batching.default_queue_policy
    policy.timeout_action = policy.REJECT
    policy.default_timeout_microseconds = _QUEUE_SECONDS * 1_000_000
    policy.max_queue_size = _QUEUE_SIZE
    return config


def config_text(config: Any) -> str:
    """The config as the text of ``config.pbtxt``; SetupError if the text does not parse to the same config."""
    text: str = text_format.MessageToString(config)
    if text_format.Parse(text, model_config_pb2.ModelConfig()) != config:
        raise SetupError(f"the config of {config.name} cannot be written as text: please report this")
    return text


def parameters_of(text: str) -> dict[str, str] | None:
    """The parameters of a config's text; None if it cannot be parsed."""
    config = _parse(text)
    return None if config is None else {name: entry.string_value for name, entry in config.parameters.items()}


def renamed(text: str, name: str) -> str:
    """A config's text under another name; SetupError if it cannot be parsed."""
    config = _parse(text)
    if config is None:
        raise SetupError(f"the config of the model to rename to {name} cannot be read: set that model up again")
    config.name = name
    return config_text(config)


def load_json(text: str, version: int | None = None, processes: int | None = None) -> str:
    """A config's text as JSON for a load request.

    Args:
        version: the only one to load, instead of the newest.
        processes: of the model, instead of the config's own number.
    """
    config = _parse(text)
    if config is None:
        raise SetupError("the config of the previous version cannot be read: set the model up again")
    if version is not None:
        config.version_policy.Clear()
        config.version_policy.specific.versions.append(version)
    if processes is not None:
        del config.instance_group[:]
        config.instance_group.add(count=processes, kind="KIND_CPU")
    return json.dumps(json_format.MessageToDict(config, preserving_proto_field_name=True))


def _parse(text: str) -> Any | None:
    try:
        return text_format.Parse(text, model_config_pb2.ModelConfig())
    except (text_format.ParseError, ValueError):
        return None

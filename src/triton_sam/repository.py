"""ModelSpec -> Triton model repository. Written from the catalogue, never by hand.

For each model three folders: the segmenter (``sam2``) and the plain graphs (``sam2_encoder``, ``sam2_decoder``),
which also run in NVIDIA's container. Every config is parsed back with Triton's own protobuf before it is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from triton_sam.catalog import CATALOG, ModelSpec, Role
from triton_sam.errors import SetupError

_SEGMENTER_SOURCE = '''"""Written by `triton-sam setup`; the code lives in the triton_sam package."""

from triton_sam.backend.segmenter import TritonPythonModel  # noqa: F401
'''
_QUEUE_SIZE = 1024
_QUEUE_SECONDS = 60
_DEFAULT_VERSION = "1"

_Dims = tuple[str, str, Iterable[int]]


def segmenter_name(spec: ModelSpec) -> str:
    """The Triton name of the main door."""
    return spec.family


def raw_names(spec: ModelSpec) -> tuple[str, str]:
    """The Triton names of the plain encoder and decoder."""
    return f"{spec.family}_{Role.ENCODER.value}", f"{spec.family}_{Role.DECODER.value}"


def segmenter_config(spec: ModelSpec) -> Any:
    """The segmenter's config; every input is optional, and ``backend/segmenter.py`` says which go together."""
    side = spec.decoder.mask_side
    embedding = dict(spec.encoder.outputs)[spec.encoder.embedding]
    config = _config(
        segmenter_name(spec),
        "python",
        inputs=[
            ("image", "TYPE_UINT8", [-1]),
            ("image_b64", "TYPE_STRING", [1]),
            ("image_key", "TYPE_STRING", [1]),
            ("embedding", "TYPE_FP32", embedding),
            ("prompt_json", "TYPE_STRING", [1]),
        ],
        outputs=[
            ("result_json", "TYPE_STRING", [1]),
            ("image_key", "TYPE_STRING", [1]),
            ("masks", "TYPE_UINT8", [-1, -1, -1]),
            ("scores", "TYPE_FP32", [-1, -1]),
            ("low_res_logits", "TYPE_FP32", [-1, -1, side, side]),
            ("embedding", "TYPE_FP32", embedding),
        ],
    )
    for entry in config.input:
        entry.optional = True
    parameters = {"model_id": spec.id, "encoder": "encoder.onnx", "decoder": "decoder.onnx"}
    for name, value in parameters.items():
        config.parameters[name].string_value = value
    return config


def encoder_config(spec: ModelSpec) -> Any:
    """The plain encoder as its graph declares it."""
    return _config(
        raw_names(spec)[0],
        "onnxruntime",
        inputs=[(spec.encoder.image, "TYPE_FP32", [1, 3, spec.side, spec.side])],
        outputs=[(name, "TYPE_FP32", shape) for name, shape in spec.encoder.outputs],
    )


def decoder_config(spec: ModelSpec) -> Any:
    """The plain decoder as its graph declares it."""
    names = spec.decoder
    side = names.mask_side
    return _config(
        raw_names(spec)[1],
        "onnxruntime",
        inputs=[
            *((name, "TYPE_FP32", shape) for name, shape in spec.encoder.outputs),
            (names.points, "TYPE_FP32", [-1, -1, 2]),
            (names.labels, "TYPE_FP32", [-1, -1]),
            (names.mask, "TYPE_FP32", [-1, 1, side, side]),
            (names.mask_flag, "TYPE_FP32", [1]),
        ],
        outputs=[
            (names.masks, "TYPE_FP32", [-1, names.masks_per_prompt, side, side]),
            (names.scores, "TYPE_FP32", [-1, names.masks_per_prompt]),
        ],
    )


def _config(name: str, backend: str, inputs: Iterable[_Dims], outputs: Iterable[_Dims]) -> Any:
    """What all models share: one instance, no batch axis of Triton's, a bounded queue with a time-out."""
    config = model_config_pb2.ModelConfig(name=name, backend=backend, max_batch_size=0)
    for tensor, data_type, dims in inputs:
        config.input.add(name=tensor, data_type=data_type, dims=list(dims))
    for tensor, data_type, dims in outputs:
        config.output.add(name=tensor, data_type=data_type, dims=list(dims))
    config.instance_group.add(count=1, kind="KIND_CPU")
    policy = config.dynamic_batching.default_queue_policy
    policy.timeout_action = policy.REJECT
    policy.default_timeout_microseconds = _QUEUE_SECONDS * 1_000_000
    policy.max_queue_size = _QUEUE_SIZE
    return config


def config_text(config: Any) -> str:
    """The config as ``config.pbtxt`` has it; SetupError where it does not survive being read back."""
    text: str = text_format.MessageToString(config)
    if text_format.Parse(text, model_config_pb2.ModelConfig()) != config:
        raise SetupError(f"the config of {config.name} does not survive being written: please report this")
    return text


def write_models(spec: ModelSpec, encoder: Path, decoder: Path, repository: Path) -> list[str]:
    """Writes a model's three folders and returns their names.

    Args:
        encoder, decoder: ONNX files; they are linked into the repository, or copied between file systems.
    """
    segmenter_files: Mapping[str, Path | str] = {
        "model.py": _SEGMENTER_SOURCE,
        "encoder.onnx": encoder,
        "decoder.onnx": decoder,
    }
    models = [
        (segmenter_config(spec), segmenter_files),
        (encoder_config(spec), {"model.onnx": encoder}),
        (decoder_config(spec), {"model.onnx": decoder}),
    ]
    for config, files in models:
        _write_model(config, files, repository)
    return [config.name for config, _ in models]


def _write_model(config: Any, files: Mapping[str, Path | str], repository: Path) -> None:
    """Builds the folder beside the repository and moves it in, so that a server never sees half a model."""
    target = repository / config.name
    building = repository.parent / f".{repository.name}-{config.name}-{os.getpid()}"
    shutil.rmtree(building, ignore_errors=True)
    version = building / _DEFAULT_VERSION
    try:
        version.mkdir(parents=True)
        repository.mkdir(parents=True, exist_ok=True)
        (building / "config.pbtxt").write_text(config_text(config))
        for name, content in files.items():
            if isinstance(content, str):
                (version / name).write_text(content)
            else:
                _link_or_copy(content, version / name)
        shutil.rmtree(target, ignore_errors=True)
        building.replace(target)
    except OSError as error:
        raise SetupError(f"cannot write the model {config.name} to {repository}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows it, else a copy: a repository must stand on its own."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def is_current(spec: ModelSpec, repository: Path) -> bool:
    """Whether the repository holds the model as this version would write it."""
    configs = (segmenter_config(spec), encoder_config(spec), decoder_config(spec))
    try:
        return all((repository / config.name / "config.pbtxt").read_text() == config_text(config) for config in configs)
    except (OSError, UnicodeDecodeError):
        return False


def find_segmenters(repository: Path) -> dict[str, ModelSpec]:
    """Triton name -> catalogue row of the segmenters that stand in a repository."""
    found = {}
    for config_file in sorted(repository.glob("*/config.pbtxt")):
        try:
            config = text_format.Parse(config_file.read_text(), model_config_pb2.ModelConfig())
        except (OSError, UnicodeDecodeError, text_format.ParseError):
            continue
        model_id = config.parameters["model_id"].string_value if "model_id" in config.parameters else ""
        if model_id in CATALOG:
            found[config_file.parent.name] = CATALOG[model_id]
    return found

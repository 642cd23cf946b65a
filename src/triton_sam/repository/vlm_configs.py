"""Configs of the two Triton models of a vision-language model. Nothing here touches a disk."""

from __future__ import annotations

from typing import Any

from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.repository.configs import ANY, Tensor, model_config

#: Config parameters that mark our folders.
VLM_ID = "vlm_id"  # the value is the catalogue row
ROLE = "role"
CHECKPOINT = "checkpoint"  # a user's own folder; empty for the catalogue's
#: Values of ROLE in repositories on users' disks: the streaming model, and the one with one response per request.
STREAMING, SINGLE_RESPONSE = "engine", "door"

_INPUTS: tuple[Tensor, ...] = (
    ("image", "TYPE_UINT8", [ANY]),
    ("image_b64", "TYPE_STRING", [1]),
    ("prompt", "TYPE_STRING", [1]),
    ("messages_json", "TYPE_STRING", [1]),
    ("task", "TYPE_STRING", [1]),
    ("max_new_tokens", "TYPE_INT32", [1]),
    ("temperature", "TYPE_FP32", [1]),
    ("top_p", "TYPE_FP32", [1]),
    ("seed", "TYPE_INT64", [1]),
    ("stop", "TYPE_STRING", [ANY]),
)
_OUTPUTS: tuple[Tensor, ...] = (
    ("generated_text", "TYPE_STRING", [1]),
    ("finish_reason", "TYPE_STRING", [1]),
    ("usage_json", "TYPE_STRING", [1]),
    ("regions_json", "TYPE_STRING", [1]),
)
_ENTITIES: Tensor = ("entities_json", "TYPE_STRING", [1])


def streaming_config(spec: VlmSpec, checkpoint: str = "") -> Any:
    """The model that runs the network and streams answers; ``backend/vlm.py`` checks the combination of inputs."""
    config = _config(spec, spec.stream_name, STREAMING, checkpoint)
    config.model_transaction_policy.decoupled = True
    return config


def single_response_config(spec: VlmSpec, checkpoint: str = "") -> Any:
    """The model that sends one response for each request."""
    return _config(spec, spec.name, SINGLE_RESPONSE, checkpoint)


def _config(spec: VlmSpec, name: str, role: str, checkpoint: str) -> Any:
    """Both have the same tensors. KIND_CPU is right on a GPU too: torch chooses the device, not Triton.

    No dynamic_batching: the streaming model makes its own batches and has its own bounded queue.
    """
    outputs = (*_OUTPUTS, _ENTITIES) if spec.grounds else _OUTPUTS
    parameters = {VLM_ID: spec.id, ROLE: role, CHECKPOINT: checkpoint}
    return model_config(name, "python", _INPUTS, outputs, parameters, optional=[tensor[0] for tensor in _INPUTS])

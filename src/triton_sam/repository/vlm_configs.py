"""VlmSpec -> the configs of its two Triton models. Nothing here touches a disk."""

from __future__ import annotations

from typing import Any

from triton_sam.models.vlm_specs import VlmSpec
from triton_sam.repository.configs import ANY, Tensor, model_config

#: Parameters by which our folders are known again.
VLM_ID = "vlm_id"  # of this catalogue row
ROLE = "role"
CHECKPOINT = "checkpoint"  # a user's own folder; empty for the catalogue's
ENGINE, DOOR = "engine", "door"

_INPUTS: tuple[Tensor, ...] = (
    ("image", "TYPE_UINT8", [ANY]),
    ("image_b64", "TYPE_STRING", [1]),
    ("prompt", "TYPE_STRING", [1]),
    ("messages_json", "TYPE_STRING", [1]),
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
)
_ENTITIES: Tensor = ("entities_json", "TYPE_STRING", [1])


def engine_config(spec: VlmSpec, checkpoint: str = "") -> Any:
    """The model that runs the network and answers piece by piece; ``backend/vlm.py`` says which inputs go together."""
    config = _config(spec, spec.stream_name, ENGINE, checkpoint)
    config.model_transaction_policy.decoupled = True
    return config


def door_config(spec: VlmSpec, checkpoint: str = "") -> Any:
    """The model that gives one answer to one request."""
    return _config(spec, spec.name, DOOR, checkpoint)


def _config(spec: VlmSpec, name: str, role: str, checkpoint: str) -> Any:
    """Both have the same tensors. KIND_CPU is right on a GPU too: torch chooses the device, not Triton.

    No dynamic_batching: the engine makes its own batches and has a bounded queue of its own.
    """
    outputs = (*_OUTPUTS, _ENTITIES) if spec.grounds else _OUTPUTS
    parameters = {VLM_ID: spec.id, ROLE: role, CHECKPOINT: checkpoint}
    return model_config(name, "python", _INPUTS, outputs, parameters, optional=[tensor[0] for tensor in _INPUTS])

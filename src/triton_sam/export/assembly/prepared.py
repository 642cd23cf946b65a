"""What an export computes from weights before it writes them into graphs, in numpy.

The definitions are those of :mod:`triton_sam.networks.memory_steps` and of the wrappers around networks.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from triton_sam.export.assembly.positions import decoder_positions, image_positions, image_waves, memory_waves, turns
from triton_sam.export.assembly.tensor_files import Array, Weights

_TRUNK = "vision_encoder.backbone."
_TOKENS = tuple(f"mask_decoder.{name}.weight" for name in ("obj_score_token", "iou_token", "mask_tokens"))
_QUERIES = "concepts.detr_decoder.query_embed.weight"
_AGES = "memory_temporal_positional_encoding"


def with_prepared(weights: Weights, grid: int) -> dict[str, Array]:
    """The weights of a network, and under further names what is computed from them.

    Args:
        grid: side of the embedding, cells.
    """
    made: dict[str, Array] = dict(weights)
    made["output tokens"] = np.concatenate([weights[name] for name in _TOKENS])
    made["decoder positions"] = decoder_positions(weights["shared_image_embedding.positional_embedding"], grid)
    if f"{_TRUNK}pos_embed" in weights:  # SAM 2, with a memory
        _add_memory(made, weights, grid)
    if _QUERIES in weights:
        _add_concepts(made, weights)
    return made


def _add_concepts(made: dict[str, Array], weights: Weights) -> None:
    """What the detector begins with, and the positions of the image encoder's patches."""
    made["patch positions"] = np.ascontiguousarray(weights[f"{_TRUNK}embeddings.position_embeddings"][0].T)
    places = weights["concepts.detr_decoder.reference_points.weight"].astype(np.float64)
    made["first boxes"] = (1 / (1 + np.exp(-places))).astype(np.float32)
    made["first queries"] = np.concatenate([weights["concepts.detr_decoder.presence_token.weight"], weights[_QUERIES]])


def _add_memory(made: dict[str, Array], weights: Weights, grid: int) -> None:
    made["image positions"] = image_positions(
        weights[f"{_TRUNK}pos_embed"], weights[f"{_TRUNK}pos_embed_window"], 4 * grid
    )
    width, narrow = weights["memory_attention.layer_norm.weight"].size, weights[_AGES].shape[-1]
    made["places"], made["memory places"] = image_waves(grid, width), memory_waves(grid, narrow)
    made["cosines"], made["sines"] = turns(grid, width)
    # Row 0 is that of conditioning frames, and row n that of n frames ago.
    made["ages"] = np.roll(weights[_AGES].reshape(-1, narrow), 1, axis=0)
    layer = 0
    while f"memory_attention.layers.{layer}.linear1.weight" in weights:
        made.update(_attentions(weights, f"memory_attention.layers.{layer}."))
        layer += 1


def _attentions(weights: Weights, layer: str) -> Iterator[tuple[str, Array]]:
    """Projections of a layer: to queries and keys by halves, those of values and results in one."""
    for part in ("self_attn", "cross_attn_image"):
        name = f"{layer}{part}."
        for kind, scaled in (("q_proj", True), ("k_proj", False)):
            for entry in ("weight", "bias"):
                array = weights[f"{name}{kind}.{entry}"]
                scale = np.float32(len(array) ** -0.5 if scaled else 1)
                order = np.arange(len(array)).reshape(-1, 2).T.ravel()
                yield f"{name}{kind}.{entry} in halves", array[order] * scale
        value, result = (weights[f"{name}{kind}.weight"].astype(np.float64) for kind in ("v_proj", "o_proj"))
        bias = weights[f"{name}v_proj.bias"].astype(np.float64)
        yield f"{name}v_proj and o_proj.weight", (result @ value).astype(np.float32)
        yield f"{name}v_proj and o_proj.bias", (result @ bias + weights[f"{name}o_proj.bias"]).astype(np.float32)

"""Small random networks that remember, and a video for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Sam2VideoConfig, Sam2VideoModel, Sam3TrackerVideoConfig, Sam3TrackerVideoModel

from tests.oracles import video as oracle
from tests.unit.export.small import small_spec
from triton_sam.export.random_weights import randomise
from triton_sam.models.architecture import Backbone
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.models.specs import ModelSpec, exported_graphs
from triton_sam.networks import segmenters

#: By model: what its published predictor does.
DEFINITIONS = {"sam2:tiny": oracle.SAM2, "sam2.1:tiny": oracle.SAM2_1, "sam3:full": oracle.SAM3}
#: By model: the seed of a network whose objects are there in most frames but not in empty ones, once so much is added
#: to its score of being there; and the brightness of empty frames.
_SEEDS = {"sam2:tiny": (1, 0.5, -3), "sam2.1:tiny": (4, 1.0, -3), "sam3:full": (3, 0.4, 3)}


#: How much more positions in time count than in other random weights.
_TIME = 8.0
#: Half of what images need at least: a grid of 8 x 8, where everything that videos add is a sixteenth of the work.
SIDES = {Backbone.HIERA: 128, Backbone.PERCEPTION: 112}


def allow_small_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(segmenters._SIDE_STEP, Backbone.HIERA, 16)


@dataclass(frozen=True, eq=False)
class VideoModel:
    """A network for the package and the same for the oracle.

    Attributes:
        spec: with its memory.
        weights: of the package's network, by name.
        reference: transformers' video model.
    """

    spec: ModelSpec
    weights: Mapping[str, torch.Tensor]
    reference: Any
    definition: oracle.Definition

    @cached_property
    def network(self) -> Any:
        """As exports take it."""
        network = segmenters.build(self.spec.architecture, self.spec.side, self.spec.memory)
        network.load_state_dict(self.weights)
        return network


def make_video_model(model_id: str) -> VideoModel:
    """Under :func:`allow_small_sides`."""
    spec, definition = small_spec(model_id), DEFINITIONS[model_id]
    architecture, traits = spec.architecture, MEMORY_TRAITS[spec.architecture.generation]
    side = SIDES[architecture.backbone]
    spec = dataclasses.replace(spec, graphs=exported_graphs(architecture, side), memory=traits)
    seed, shift, _ = _SEEDS[model_id]
    reference = _reference(spec, definition, seed)
    for layer in reference.memory_attention.layers:
        # Else what one number's rounding to bfloat16 decides grows to a thousandth of the logits' deviation. A mistake
        # in what is remembered is still a hundred times that.
        layer.cross_attn_image.q_proj.weight *= 0.3
    # Else a wrong age or distance changes hardly more than rounding does.
    reference.memory_temporal_positional_encoding *= _TIME
    if definition.pointer_positions:
        reference.temporal_positional_encoding_projection_layer.weight *= _TIME
    reference.mask_decoder.pred_obj_score_head.proj_out.bias += shift
    found = reference.state_dict()
    names = segmenters.build(architecture, side, traits).state_dict()
    return VideoModel(spec, {name: found[name].clone() for name in names}, reference, definition)


def _reference(spec: ModelSpec, definition: oracle.Definition, seed: int) -> Any:
    image = segmenters.build(spec.architecture, spec.side)
    grid = spec.decoder.mask_side // 4
    options: dict[str, Any] = {
        "vision_config": image.config.vision_config,
        "prompt_encoder_config": {"image_size": spec.side},
        "image_size": spec.side,
        "memory_attention_rope_feat_sizes": [grid, grid],
        "enable_temporal_pos_encoding_for_object_pointers": definition.pointer_positions,
        "enable_occlusion_spatial_embedding": definition.marks_occlusion,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)  # for buffers, which transformers itself fills
        if spec.architecture.backbone is Backbone.PERCEPTION:
            network: Any = Sam3TrackerVideoModel(Sam3TrackerVideoConfig(**options))
        else:
            network = Sam2VideoModel(Sam2VideoConfig(**options))
    network.eval().requires_grad_(False)
    randomise(network, seed)
    shared = network.shared_image_embedding.positional_embedding
    network.prompt_encoder.shared_embedding.positional_embedding.copy_(shared)
    return network


def clip(model_id: str, side: int, frames: int, empty: range, seed: int = 0) -> list[torch.Tensor]:
    """[1,3,side,side] normalised, of each frame: blobs that move over a ground, or nothing."""
    brightness = _SEEDS[model_id][2]
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / side
    ground = torch.nn.functional.interpolate(
        torch.as_tensor(rng.normal(size=(1, 3, 6, 6)), dtype=torch.float32), (side, side), mode="bicubic"
    )
    colours, centres, ways = rng.normal(size=(3, 3)) * 2, rng.uniform(0.2, 0.8, (3, 2)), rng.normal(size=(3, 2)) / 60
    pictures = []
    for frame in range(frames):
        picture = ground + 0.1 * torch.as_tensor(rng.normal(size=(1, 3, side, side)), dtype=torch.float32)
        for colour, centre, way in zip(colours, centres, ways, strict=True):
            across, down = 0.5 + 0.4 * np.sin(np.pi * (centre + way * frame))
            blob = np.exp(-((x - across) ** 2 + (y - down) ** 2) / 0.01)
            picture = picture + torch.as_tensor(colour[:, None, None] * blob, dtype=torch.float32)
        pictures.append(torch.full_like(picture, brightness) if frame in empty else picture)
    return pictures

"""What tracking computes with a network's memory, against transformers' video networks and Meta's definition."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.unit.export.small import small_spec
from triton_sam.export.memory_wrappers import VideoDecoder
from triton_sam.export.random_weights import randomise
from triton_sam.models.memory_traits import MEMORY_TRAITS
from triton_sam.networks.memory_steps import ConditionOnMemory, EncodeMemory
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch

#: Model -> the side of a small input.
SIDES = {"sam2:tiny": 256, "sam2.1:tiny": 256, "sam3:full": 224}
GRID = 16
EACH = pytest.mark.parametrize("model_id", SIDES)


@functools.cache
def network_of(model_id: str) -> Any:
    architecture = small_spec(model_id).architecture
    network = build(architecture, SIDES[model_id], MEMORY_TRAITS[architecture.generation])
    randomise(network)
    network.no_memory_embedding.normal_()
    return network


@functools.cache
def theirs(model_id: str) -> Any:
    """transformers' video network with the same weights; SAM 3's computes all of this with the same modules."""
    from transformers import Sam2VideoConfig, Sam2VideoModel

    ours, later = network_of(model_id), model_id != "sam2:tiny"
    widths = [8, 16, 32, 64]
    backbone = {"hidden_size": 8, "num_attention_heads": 1, "blocks_per_stage": [1] * 4, "embed_dim_per_stage": widths}
    config = Sam2VideoConfig(
        vision_config={  # not used here, so as small as may be
            "backbone_config": backbone
            | {"num_attention_heads_per_stage": [1] * 4, "model_type": "sam2_hiera_det_model"},
            "backbone_channel_list": widths[::-1],
            "model_type": "sam2_vision_model",
        },
        memory_attention_rope_feat_sizes=[GRID, GRID],
        enable_occlusion_spatial_embedding=later,
        enable_temporal_pos_encoding_for_object_pointers=later,
        prompt_encoder_config={"image_size": 16 * GRID},
        image_size=16 * GRID,
    )
    with torch.random.fork_rng():
        network = Sam2VideoModel(config).eval().requires_grad_(False)
    state = {name: one for name, one in ours.state_dict().items() if not name.startswith("vision_encoder.")}
    missing, unknown = network.load_state_dict(state, strict=False)
    assert unknown == []
    assert {name.partition(".")[0] for name in missing} <= {"vision_encoder", "no_memory_positional_encoding"}
    network.backbone_feature_sizes = [[4 * GRID] * 2, [2 * GRID] * 2, [GRID] * 2]
    return network


def rows(model_id: str) -> tuple[ConditionOnMemory, dict[str, Tensor]]:
    """The step, and two objects: one with three memories and pointers, one with fewer and empty slots in between."""
    generator = torch.Generator().manual_seed(1)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    network = network_of(model_id)
    traits = MEMORY_TRAITS[small_spec(model_id).architecture.generation]
    return ConditionOnMemory(network, traits, GRID), {
        "image_embeddings": some(1, 256, GRID, GRID),
        "memories": some(2, 3, 64, GRID, GRID),
        "memory_ages": torch.tensor([[0, 6, 1], [0, -1, 3]]),
        "pointers": some(2, 3, 256),
        "distances": torch.tensor([[0.2, -0.4, 1.0], [-1e9, 0.3, -1e9]]),
    }


def conditioned_by_transformers(model_id: str, given: dict[str, Tensor], row: int) -> Tensor:
    network = theirs(model_id)
    embedding = given["image_embeddings"] - network.no_memory_embedding.reshape(1, 256, 1, 1)
    positions = network.memory_encoder.position_encoding
    tokens, places = [], []
    for features, age in zip(given["memories"][row], given["memory_ages"][row].tolist(), strict=True):
        if age >= 0:
            tokens.append(features.flatten(1).T)
            in_time = network.memory_temporal_positional_encoding[age - 1, 0]  # conditioning frames have the last
            places.append(positions((1, 64, GRID, GRID), "cpu", torch.float32)[0].flatten(1).T + in_time)
    count = 0
    for pointer, distance in zip(given["pointers"][row], given["distances"][row], strict=True):
        if distance > -1e8:
            tokens.append(pointer.reshape(4, 64))
            places.append(torch.zeros(4, 64))
            if model_id != "sam2:tiny":
                frequencies = 10000 ** (2 * (torch.arange(128) // 2) / 128)
                wave = torch.cat([(distance / frequencies).sin(), (distance / frequencies).cos()])
                places[-1] = network.temporal_positional_encoding_projection_layer(wave).expand(4, -1)
            count += 4
    found: Tensor = network.memory_attention(
        current_vision_features=embedding.flatten(2).permute(2, 0, 1),
        current_vision_position_embeddings=_image_places().flatten(2).permute(2, 0, 1),
        memory=torch.cat(tokens)[:, None],
        memory_posision_embeddings=torch.cat(places)[:, None],
        num_object_pointer_tokens=count,
    )
    return found.reshape(GRID**2, 256).T.reshape(256, GRID, GRID)


def _image_places() -> Tensor:
    from transformers.models.sam2.modeling_sam2 import Sam2SinePositionEmbedding

    places: Tensor = Sam2SinePositionEmbedding(num_position_features=128, normalize=True)(
        (1, 256, GRID, GRID), "cpu", torch.float32
    )
    return places


@EACH
def test_an_embedding_conditioned_on_memories(model_id: str) -> None:
    step, given = rows(model_id)
    found = step(*given.values())
    for row in range(2):
        torch.testing.assert_close(found[row], conditioned_by_transformers(model_id, given, row), rtol=0, atol=2e-5)
    assert (found[0] - found[1]).abs().max() > 0.1


def test_empty_slots_change_nothing_even_if_they_are_alike_none() -> None:
    """Keys far from all others do not push the rest out of the softmax."""
    step, given = rows("sam2.1:tiny")
    alone = {name: tensor[1:] for name, tensor in given.items() if name != "image_embeddings"}
    few = [alone["memories"][:, [0, 2]], alone["memory_ages"][:, [0, 2]]]
    few += [alone["pointers"][:, 1:2], alone["distances"][:, 1:2]]
    given["memories"][1, 1] = 1e4
    given["pointers"][1, 0] = -1e4
    found = step(*given.values())[1:]
    torch.testing.assert_close(found, step(given["image_embeddings"], *few), rtol=0, atol=1e-5)


@EACH
def test_a_mask_becomes_a_memory(model_id: str) -> None:
    """Meta's order: sigmoid or sign at the image's size; for SAM 3, the resize to the encoder's size comes after it."""
    network, side = network_of(model_id), SIDES[model_id]
    traits = MEMORY_TRAITS[small_spec(model_id).architecture.generation]
    features, low = torch.randn(1, 256, GRID, GRID), torch.randn(2, 1, 4 * GRID, 4 * GRID) * 3
    scores, hard = torch.tensor([[2.0], [-2.0]]), torch.tensor([1.0, 0.0])
    found = EncodeMemory(network, traits, side, GRID)(
        features + network.no_memory_embedding.reshape(1, 256, 1, 1), low, hard, scores
    )
    logits = functional.interpolate(low, (side, side), mode="bilinear", align_corners=False)
    masks = torch.cat([(logits[:1] > 0).float(), logits[1:].sigmoid()]) * 20 - 10
    if traits.mask_after_sigmoid:
        masks = functional.interpolate(masks, [16 * GRID] * 2, mode="bilinear", align_corners=False, antialias=True)
    wanted, _ = theirs(model_id).memory_encoder(features.expand(2, -1, -1, -1), masks)
    if traits.marks_occlusion:
        wanted[1] += network.occlusion_spatial_embedding_parameter.reshape(64, 1, 1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5)


@pytest.mark.parametrize("multimask", [True, False])
@pytest.mark.parametrize("there", [True, False])
def test_the_mask_and_the_pointer_of_an_object(multimask: bool, there: bool) -> None:
    network, reference = network_of("sam2.1:tiny"), theirs("sam2.1:tiny")
    for one in (network, reference):
        one.mask_decoder.pred_obj_score_head.proj_out.bias.fill_(50.0 if there else -50.0)
    generator = torch.Generator().manual_seed(2)
    levels = [torch.randn(1, c, s * GRID, s * GRID, generator=generator) for c, s in ((32, 4), (64, 2), (256, 1))]
    points = torch.rand(1, 1, 3, 2, generator=generator) * 16 * GRID
    wanted = reference._single_frame_forward(
        input_points=points,
        input_labels=torch.ones(1, 1, 3, dtype=torch.int64),
        image_embeddings=levels,
        multimask_output=multimask,
    )
    flags = torch.zeros(1), torch.tensor([float(multimask)])
    mask, score, object_score, pointer = VideoDecoder(network, small_spec("sam2.1:tiny").architecture)(
        levels[2], *levels[:2], points[0], torch.ones(1, 3), torch.zeros(1, 1, 4 * GRID, 4 * GRID), *flags
    )
    torch.testing.assert_close(mask, wanted.pred_masks, rtol=0, atol=2e-5)
    torch.testing.assert_close(score, wanted.iou_scores[0].max(dim=1, keepdim=True).values)
    torch.testing.assert_close(object_score, wanted.object_score_logits[0])
    torch.testing.assert_close(pointer, wanted.object_pointer[0], rtol=0, atol=1e-5)
    assert bool((mask == -1024).all()) is not there


def test_rows_choose_for_themselves() -> None:
    network = network_of("sam2.1:tiny")
    decoder = VideoDecoder(network, small_spec("sam2.1:tiny").architecture)
    levels = [torch.randn(1, c, s * GRID, s * GRID) for c, s in ((256, 1), (32, 4), (64, 2))]
    prompt = torch.rand(2, 1, 2) * 16 * GRID, torch.ones(2, 1), torch.zeros(1, 1, 4 * GRID, 4 * GRID), torch.zeros(1)
    mixed = decoder(*levels, *prompt, torch.tensor([1.0, 0.0]))
    for row, flag in enumerate((1.0, 0.0)):
        alone = decoder(*levels, *prompt, torch.tensor([flag]))
        for both, one in zip(mixed, alone, strict=True):
            assert torch.equal(both[row], one[row])

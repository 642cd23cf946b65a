"""The clips that a trained memory is judged by, its network in training, and what is committed of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file
from training.memory.clips import FRAMES, HEIGHT, WIDTH, evaluation_clip
from training.memory.judge import jaccard, mean_jaccard
from training.memory.network import (
    GRID,
    SIDE,
    TRAITS,
    Frame,
    Memory,
    MemoryModel,
    is_memory,
    learns,
    lost,
)
from training.memory.scenes import CUT, PHOTOGRAPH, Bank, Composer
from training.memory.steps import inner_points, track_scene

from triton_sam.export.memory_wrappers import VideoDecoder
from triton_sam.models.catalog import get_spec
from triton_sam.networks.memory_steps import ConditionOnMemory, EncodeMemory
from triton_sam.networks.segmenters import build

pytestmark = pytest.mark.torch

_ROWS = 2
_MODEL = Path(__file__).parents[3] / "training" / "memory" / "model" / "memory.safetensors"
_MASKS = arrays(np.bool_, (3, 4))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    random = build(get_spec("sam2:tiny").architecture, SIDE)
    model = MemoryModel(random.state_dict())
    with torch.no_grad():
        for name, parameter in model.network.named_parameters():
            if learns(name):
                parameter.normal_(0, 0.05)
    return model


@pytest.fixture(scope="module")
def frame():
    torch.manual_seed(1)
    sizes = (256, GRID), (32, 4 * GRID), (64, 2 * GRID)
    return Frame(*(torch.randn(_ROWS, channels, side, side) for channels, side in sizes))


@pytest.fixture(scope="module")
def kept():
    torch.manual_seed(2)
    return [Memory(torch.randn(_ROWS, TRAITS.width, GRID, GRID), torch.randn(_ROWS, 256)) for _ in range(3)]


def test_a_clip_of_an_object_that_is_hidden():
    clip, again = (evaluation_clip(0) for _ in range(2))
    assert (clip.frames == again.frames).all()
    assert (clip.masks == again.masks).all()
    assert clip.frames.shape == (FRAMES, HEIGHT, WIDTH, 3)
    assert clip.hidden
    visible = clip.masks.any(axis=(1, 2))
    assert visible[0]
    assert visible[-1]
    assert (~visible).sum() >= 5
    kept = np.repeat(clip.masks[:1], FRAMES, axis=0)
    assert mean_jaccard(kept, clip.masks) < 0.3
    x, y = clip.click()
    assert clip.masks[0, int(y), int(x)]


@given(_MASKS, _MASKS)
def test_jaccard(first, second):
    found = jaccard(first, second)
    assert 0 <= found <= 1
    assert found == jaccard(second, first)
    assert (found == 1) == (first == second).all()


def test_it_computes_what_the_exported_graphs_compute(model, frame, kept):
    ages, distances = [0, 2, 1], torch.rand(_ROWS, 3)
    there = torch.tensor([True, False])
    logits = 5 * torch.randn(_ROWS, 4 * GRID, 4 * GRID)
    with torch.no_grad():
        found = model.track(frame, kept, ages, kept, distances)
        seen = ConditionOnMemory(model.network, TRAITS, GRID)(
            frame.coarse,
            torch.stack([one.features for one in kept], 1),
            torch.tensor([ages] * _ROWS),
            torch.stack([one.pointer for one in kept], 1),
            distances,
        )
        decode = VideoDecoder(model.network, get_spec("sam2:tiny").architecture)
        nothing = torch.zeros(_ROWS, 0, 2), torch.zeros(_ROWS, 0), torch.zeros(1, 1, 4 * GRID, 4 * GRID), torch.zeros(1)
        masks, _, appearances, pointers = decode(seen, frame.finest, frame.finer, *nothing, torch.ones(_ROWS))
        encode = EncodeMemory(model.network, TRAITS, SIDE, GRID)
        for hard in (False, True):
            remembered = model.remember(frame, logits, hard=hard, there=there)
            flags = torch.full((_ROWS,), float(hard)), torch.where(there, 1.0, -1.0)[:, None]
            torch.testing.assert_close(remembered, encode(frame.coarse, logits[:, None], *flags), rtol=1e-3, atol=1e-4)
    seen_there = found.appearance > 0
    torch.testing.assert_close(found.appearance[:, None], appearances, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(lost(found.logits, seen_there)[:, None], masks, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.point(found.token, seen_there), pointers, rtol=1e-3, atol=1e-4)


@pytest.mark.part("video")
def test_a_step_of_training_reaches_every_weight_that_learns(model):
    random = torch.Generator().manual_seed(3)
    shapes = torch.zeros(6, 4, CUT, CUT, dtype=torch.uint8)
    shapes[:, :, 30:-30, 30:-30] = 255
    photographs = torch.randint(0, 256, (2, 3, *PHOTOGRAPH), generator=random, dtype=torch.uint8)
    scene = Composer(Bank(photographs, shapes), 5).scene(1, 3)
    assert scene.frames.shape == (1, 3, 3, SIDE, SIDE)
    assert len(scene.prompted)
    figures = track_scene(model, scene, 2, 1.0, random)
    figures.loss.backward()
    without = {name for name, one in model.network.named_parameters() if learns(name) and one.grad is None}
    assert without <= {"no_object_pointer", "occlusion_spatial_embedding_parameter"}
    assert all(one.grad is None for name, one in model.network.named_parameters() if not learns(name))
    model.zero_grad(set_to_none=True)


def test_points_are_inside():
    masks = torch.zeros(2, 1, SIDE, SIDE)
    masks[0, 0, 100:200, 50:90] = 1
    masks[1, 0, 7, 9] = 1
    points = inner_points(masks, torch.Generator().manual_seed(0))[:, 0]
    assert points[1].tolist() == [9.5, 7.5]
    assert 50 < points[0, 0] < 90
    assert 100 < points[0, 1] < 200


def test_the_committed_memory_is_whole():
    weights = load_file(_MODEL)
    network = build(get_spec("sam2:tiny").architecture, SIDE, TRAITS)
    wanted = {name: one.shape for name, one in network.named_parameters() if is_memory(name)}
    assert {name: one.shape for name, one in weights.items()} == wanted
    assert all(one.dtype == torch.float16 and one.isfinite().all() for one in weights.values())
    assert _MODEL.stat().st_size < 16e6

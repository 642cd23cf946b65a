"""What finds concepts equals transformers' ``Sam3Model``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.concept_models import (
    ARCHITECTURE,
    SIDE,
    pictures,
    reference_network,
    reference_roi_align,
    small_concept_network,
    tokens,
    with_roi_align,
)
from triton_sam.networks.concept_layers import PADDING
from triton_sam.networks.roi_align import roi_align

BOXES = torch.tensor([[[0.3, 0.4, 0.3, 0.5], [0.7, 0.6, 0.5, 0.2]], [[0.5, 0.5, 1.0, 1.0], [0.1, 0.2, 0.02, 0.01]]])
LABELS = torch.tensor([[1, 0], [1, 1]])


@pytest.fixture(scope="module")
def network() -> Any:
    return small_concept_network()


@pytest.fixture(scope="module")
def reference(network: Any) -> Any:
    return reference_network(network, ARCHITECTURE, SIDE)


def backbone(network: Any, pixels: Tensor) -> Tensor:
    """[N,C,g,g]."""
    state = network.vision_encoder.backbone((pixels - 0.5) / 0.5).last_hidden_state
    side = pixels.shape[-1] // 14
    found: Tensor = state.transpose(1, 2).unflatten(2, (side, side))
    return found


def assert_equal(given: Tensor, wanted: Tensor, share: float = 1e-3) -> None:
    assert given.shape == wanted.shape
    assert wanted.std() > 1e-3
    assert (given - wanted).abs().max() <= share * wanted.std()


@pytest.mark.parametrize("exemplars", ["none", "all", "padded"])
def test_batch_of_images_with_texts(network: Any, reference: Any, exemplars: str) -> None:
    pixels, (ids, mask) = pictures(2), tokens(["small red circle", "star"])
    boxes, labels = (BOXES, LABELS) if exemplars != "none" else (BOXES[:, :0], LABELS[:, :0])
    if exemplars == "padded":
        labels = labels.clone()
        labels[1, 1] = PADDING
    with torch.no_grad(), with_roi_align():
        wanted = reference(
            pixel_values=(pixels - 0.5) / 0.5,
            input_ids=ids,
            attention_mask=mask,
            input_boxes=boxes,
            input_boxes_labels=labels,
        )
        layers = network.concepts
        text = layers.read(ids, mask)
        found = layers(backbone(network, pixels), text, mask, boxes, labels)
        assert_equal(text[0, :5], reference.get_text_features(ids, mask).pooler_output[0, :5])
    assert_equal(found.logits, wanted.pred_logits)
    assert torch.allclose(found.presence, wanted.presence_logits, atol=1e-4)
    assert_equal(found.boxes, wanted.pred_boxes)
    assert_equal(found.masks, wanted.pred_masks)


def test_a_row_without_exemplars_is_as_if_it_stood_alone(network: Any) -> None:
    (ids, mask), layers = tokens(["red", "blue star"]), network.concepts
    labels = LABELS.clone()
    labels[1] = PADDING
    with torch.no_grad():
        features, text = backbone(network, pictures(1)), layers.read(ids, mask)
        both = layers(features, text, mask, BOXES, labels)
        alone = layers(features, text[1:], mask[1:], BOXES[1:, :0], labels[1:, :0])
    for given, wanted in zip(both, alone, strict=True):
        assert torch.allclose(given[1:], wanted, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(both.logits[:1], alone.logits, atol=1e-2)


@pytest.mark.parametrize("cells", [8, 12, 14, 24])
def test_roi_align_equals_the_operator_of_onnx_runtime(cells: int) -> None:
    generator = torch.Generator().manual_seed(cells)
    features = torch.randn(2, 5, cells, cells, generator=generator)
    corners = torch.rand(2, 40, 2, 2, generator=generator).sort(dim=2).values * cells
    corners[0, 0] = torch.tensor([[0.0, 0.0], [cells, cells]])
    corners[0, 1, 1] = corners[0, 1, 0]  # of no size
    corners[0, 2] = torch.tensor([[0.0, 0.0], [cells + 1e-4, cells + 1e-4]])
    boxes = corners.flatten(2)
    wanted = reference_roi_align(features, boxes.unbind(0), 7).unflatten(0, (2, 40))
    assert torch.allclose(roi_align(features, boxes, 7), wanted, atol=1e-5)
    assert torch.allclose(roi_align(features[:1], boxes[:1], 7), wanted[:1], atol=1e-5)

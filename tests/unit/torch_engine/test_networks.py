"""The rearranged networks against transformers' own, family by family, with random weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.unit.export.families import EACH_FAMILY, WITH_FEATURES
from tests.unit.export.small import small_network, small_spec
from triton_sam.engines.torch.decoder import ABSENT, NOT_A_POINT, RowDecoder
from triton_sam.engines.torch.encoder import RowEncoder
from triton_sam.engines.torch.layout import Layout, to_cells, to_image
from triton_sam.export.wrappers import Decoder, Encoder
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import normalisation

pytestmark = pytest.mark.torch


class Model(NamedTuple):
    spec: ModelSpec
    network: Any
    layout: Layout
    decoder: RowDecoder


@pytest.fixture(scope="module", params=EACH_FAMILY)
def model(request: pytest.FixtureRequest) -> Model:
    spec = small_spec(request.param)
    network = small_network(spec)
    layout = Layout.of(spec)
    return Model(spec, network, layout, RowDecoder(network, spec.architecture, layout))


def some(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def close(value: Tensor, reference: Tensor, share: float = 2e-5) -> None:
    """Equal up to a share of the reference's own spread: random weights give spreads of any size."""
    assert value.shape == reference.shape
    assert float((value - reference).abs().max()) <= share * float(reference.std())


@pytest.mark.parametrize("factor", [1, 2, 4])
def test_cells_and_images_are_each_others_inverse(factor: int) -> None:
    features = some(2, 3, 5 * factor, 5 * factor)
    cells = to_cells(features, 5)
    assert cells.shape == (2, 25 * factor * factor, 3)
    assert torch.equal(to_image(cells.transpose(1, 2), 5), features)
    inside = factor * factor
    assert torch.equal(cells[0, :inside, 0].sort().values, features[0, 0, :factor, :factor].flatten().sort().values)


def test_a_flat_row_holds_what_the_encoder_gave(model: Model) -> None:
    features = {name: some(2, *shape[1:], seed=index) for index, (name, shape) in enumerate(model.spec.encoder.outputs)}
    rows = model.layout.flatten(features)
    assert rows.shape == (2, model.layout.length)
    for name, feature in features.items():
        assert torch.equal(model.layout.image_order(rows[1], name), feature[1:2])


def test_the_encoder(model: Model) -> None:
    pixels = some(2, 3, model.spec.side, model.spec.side)
    mean, std = normalisation(model.spec.architecture)
    with torch.inference_mode():
        expected = Encoder(model.network, model.spec.architecture)(pixels)
        rows, finite = RowEncoder(model.network, model.spec, model.layout)((pixels - mean) / std)
    assert finite.tolist() == [True, True]
    for (name, _), reference in zip(model.spec.encoder.outputs, expected, strict=True):
        for index in range(2):
            close(model.layout.image_order(rows[index], name), reference[index : index + 1])


class Reference(NamedTuple):
    features: dict[str, Tensor]
    rows: Tensor


@pytest.fixture(scope="module")
def images(model: Model) -> Reference:
    features = {
        name: some(3, *shape[1:], seed=index) - 0.5 for index, (name, shape) in enumerate(model.spec.encoder.outputs)
    }
    return Reference(features, model.layout.flatten(features))


def reference_masks(
    model: Model,
    features: dict[str, Tensor],
    which: int,
    points: list[tuple[float, float, int]],
    *,
    multimask: bool,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(logits [M,h,w], scores [M]) of one prompt on one image, by the wrapper that exports use."""
    given = {name: feature[which : which + 1] for name, feature in features.items()}
    embedding = given.pop(model.spec.encoder.embedding)
    fine = [*given.values()] or [torch.zeros(1), torch.zeros(1)]
    side = model.spec.decoder.mask_side
    coords = torch.tensor([[point[:2] for point in points]]).reshape(1, -1, 2)
    labels = torch.tensor([[float(point[2]) for point in points]]).reshape(1, -1)
    sent = torch.zeros(1, 1, side, side) if mask is None else mask
    flags = torch.tensor([float(mask is not None)]), torch.tensor([float(multimask)])
    with torch.inference_mode():
        logits, scores = Decoder(model.network, model.spec.architecture)(embedding, *fine, coords, labels, sent, *flags)
    return logits[0], scores[0]


def slots(points: list[tuple[float, float, int]], padding: int, count: int) -> Tensor:
    """[1,count,3]: the points, what the reference pads with, and slots that are not used."""
    rest = count - len(points) - padding
    return torch.tensor([[*points, *[(0.0, 0.0, NOT_A_POINT)] * padding, *[(7.0, 9.0, ABSENT)] * rest]])


CLICK = [(40.0, 90.0, 1)]
CLICKS = [(40.0, 90.0, 1), (100.5, 20.25, 0), (3.0, 3.0, 1)]
BOX = [(20.0, 30.0, 2), (150.0, 160.0, 3)]


def padding_of(model: Model, points: list[tuple[float, float, int]]) -> int:
    boxed = any(label in (2, 3) for _, _, label in points)
    return 1 if model.spec.id in WITH_FEATURES or not boxed else 0


def test_rows_of_several_images_and_prompts_in_one_batch(model: Model, images: Reference) -> None:
    """Each row as if it were alone: its own image, its own number of points, other rows beside it."""
    prompts = [(2, CLICK), (0, CLICKS), (1, BOX), (0, [*BOX, *CLICK])]
    points = torch.cat([slots(prompt, padding_of(model, prompt), 10) for _, prompt in prompts])
    rows = torch.stack([images.rows[which] for which, _ in prompts])
    with torch.inference_mode():
        masks = model.decoder(rows, points)
    for index, (which, prompt) in enumerate(prompts):
        logits, scores = reference_masks(model, images.features, which, prompt, multimask=True)
        close(masks.logits[index, 1:], logits)
        assert masks.scores[index, 1:].tolist() == pytest.approx(scores.tolist(), abs=1e-5)  # they may all be near 1
        single, score = reference_masks(model, images.features, which, prompt, multimask=False)
        close(masks.best[index][None], single)
        chosen = int(masks.choice[index])
        assert float(masks.scores[index, chosen]) == pytest.approx(float(score[0]), abs=1e-4)
        assert torch.equal(masks.logits[index, chosen], masks.best[index])


def test_a_mask_as_prompt(model: Model, images: Reference) -> None:
    side = model.spec.decoder.mask_side
    mask = 8 * (some(1, 1, side, side, seed=9) - 0.5)
    points = slots(CLICK, padding_of(model, CLICK), 10)
    with torch.inference_mode():
        masks = model.decoder(images.rows[1:2], points, mask)
    logits, _ = reference_masks(model, images.features, 1, CLICK, multimask=True, mask=mask)
    close(masks.logits[0, 1:], logits)
    without, _ = reference_masks(model, images.features, 1, CLICK, multimask=True)
    assert float((without - logits).abs().max()) > 1e-2 * float(logits.std()), "the mask must matter in this test"


@pytest.mark.parametrize("count", [3, 10, 26])
def test_slots_that_are_not_used_change_nothing(model: Model, images: Reference, count: int) -> None:
    with torch.inference_mode():
        few = model.decoder(images.rows[:1], slots(CLICK, 1, 2))
        more = model.decoder(images.rows[:1], slots(CLICK, 1, count))
    close(more.logits, few.logits)
    assert more.scores[0].tolist() == pytest.approx(few.scores[0].tolist(), abs=1e-5)

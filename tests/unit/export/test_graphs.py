from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

from tests.unit.export.families import WITH_FEATURES, WITHOUT_FEATURES, one_or_each
from tests.unit.export.small import Arrays, Small, SmallFactory, assert_close, drawn_pixels
from triton_sam.export import parity_reference
from triton_sam.export.mask_choice import possible_tokens, rule_of
from triton_sam.export.parity_scenes import Case
from triton_sam.models.catalog import CATALOG, get_spec
from triton_sam.networks.segmenters import normalisation

pytestmark = pytest.mark.torch

ONE = np.ones(1, np.float32)
ZERO = np.zeros(1, np.float32)


# against torch


@pytest.mark.parametrize("model_id", one_or_each(tuple(CATALOG)))
def test_every_model_equals_torch(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    report = made.report
    assert report.passed, report.reason
    outputs = [name for name, _ in made.spec.encoder.outputs]
    assert {entry.output for entry in report.comparisons} == {*outputs, "masks", "iou_predictions"}
    # two outputs of seven kinds of prompts, each with one mask and with three
    assert len(report.comparisons) == len(outputs) + 2 * 8 * 2
    for entry in report.comparisons:
        assert entry.max_abs_diff <= 1e-3 * entry.reference_std
        assert entry.reference_std > 0.01  # signals that have died would equal anything


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("multimask", [False, True])
def test_points_equal_torch(count: int, multimask: bool, family: Small) -> None:
    feeds = family.points(3, count, seed=count)
    names = family.spec.decoder
    case = Case("points", torch.from_numpy(feeds[names.points]), torch.from_numpy(feeds[names.labels]))
    levels = {name: torch.from_numpy(level) for name, level in family.embedding().items()}
    coarse = levels.pop(family.spec.encoder.embedding)
    embeddings: Any = [*levels.values(), coarse] if levels else coarse  # from fine to coarse
    with torch.inference_mode():
        masks, scores = parity_reference.candidates(family.network, case, embeddings)
    if multimask:
        feeds["multimask_output"] = ONE
        tokens = [[1, 2, 3]] * 3
    else:  # near a tie, any that rounding may choose
        rule = rule_of(family.network)
        possible = [
            possible_tokens(rule, *row, 1e-4 * float(masks.std()), 1e-4) for row in zip(masks, scores, strict=True)
        ]
        given_masks, _ = family.decode(family.embedding() | feeds)
        tokens = [
            [min(own, key=lambda token: float(np.abs(masks[row, token] - given_masks[row, 0]).max()))]
            for row, own in enumerate(possible)
        ]
    wanted = [np.stack([rows[row, own] for row, own in enumerate(tokens)]) for rows in (masks, scores)]
    given = family.decode(family.embedding() | feeds)
    assert_close(given[0], wanted[0])
    np.testing.assert_allclose(given[1], wanted[1], atol=1e-4)


def test_pixels_are_normalised_inside(family: Small) -> None:
    pixels = drawn_pixels(family.spec.side, seed=1)
    assert 0 <= pixels.min() < 0.3 < 0.7 < pixels.max() <= 1
    half = family.spec.family == "sam3"
    mean = torch.tensor([0.5] * 3 if half else [0.485, 0.456, 0.406]).view(3, 1, 1)
    std = torch.tensor([0.5] * 3 if half else [0.229, 0.224, 0.225]).view(3, 1, 1)
    with torch.inference_mode():
        wanted = family.network.get_image_embeddings((torch.from_numpy(pixels) - mean) / std)
        bare = family.network.get_image_embeddings(torch.from_numpy(pixels))
    if not isinstance(wanted, torch.Tensor):
        wanted, bare = wanted[-1], bare[-1]
    given = family.embedding()[family.spec.encoder.embedding]
    assert_close(given, wanted.numpy())
    assert np.abs(given - bare.numpy()).max() > 0.1 * given.std()


def test_the_padding_colour_becomes_nothing(family: Small) -> None:
    mean, std = normalisation(family.spec.architecture)
    colour = torch.tensor(family.spec.encoder.padding).view(3, 1, 1)
    assert ((colour - mean) / std).abs().max() == 0


def test_an_export_leaves_the_network_as_it_was(family: Small) -> None:
    assert not family.network.training
    assert not any(parameter.requires_grad for parameter in family.network.parameters())


# names and shapes


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_opset(part: str, family: Small) -> None:
    model = onnx.load(str(family.folder / f"{part}.onnx"), load_external_data=False)
    (opset,) = [entry.version for entry in model.opset_import if not entry.domain]
    assert opset in (17, 18)
    assert family.opsets[part] == opset
    assert {entry.domain for entry in model.opset_import} == {""}
    onnx.checker.check_model(model)


def test_names_of_the_encoder(family: Small) -> None:
    spec = family.spec
    (image,) = family.encoder.get_inputs()
    assert (image.name, image.type) == (spec.encoder.image, "tensor(float)")
    assert image.shape[1:] == [3, spec.side, spec.side]
    assert not isinstance(image.shape[0], int)
    outputs = {entry.name: entry for entry in family.encoder.get_outputs()}
    assert list(outputs) == [name for name, _ in spec.encoder.outputs]
    for name, shape in spec.encoder.outputs:
        assert family.embeddings[name].shape == (3, *shape[1:])
        assert outputs[name].type == "tensor(float)"
        assert not isinstance(outputs[name].shape[0], int)


def test_names_of_the_decoder(family: Small) -> None:
    spec = family.spec
    required = [entry.name for entry in family.decoder.get_inputs()]
    optional = [entry.name for entry in family.decoder.get_overridable_initializers()]
    assert set(required) == {spec.encoder.embedding, "point_coords", "point_labels"}
    assert sorted(optional) == sorted(spec.decoder.optional)
    assert {entry.type for entry in family.decoder.get_inputs()} == {"tensor(float)"}
    assert [entry.name for entry in family.decoder.get_outputs()] == ["masks", "iou_predictions"]


@pytest.mark.parametrize("model_id", CATALOG)
def test_a_decoder_takes_what_its_encoder_gives(model_id: str) -> None:
    spec = get_spec(model_id)
    features = [name for name, _ in spec.encoder.outputs if name != spec.encoder.embedding]
    if spec.graphs.exported:
        assert [name for name in spec.decoder.optional if name in features] == features


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_images_in_a_batch_are_independent(rows: int, family: Small) -> None:
    pixels = np.concatenate([drawn_pixels(family.spec.side, seed) for seed in range(10, 10 + rows)])
    together = family.encode(pixels)
    for row in range(rows):
        for name, alone in family.encode(pixels[row : row + 1]).items():
            assert_close(together[name][row : row + 1], alone)
    if rows > 1:
        embedding = together[family.spec.encoder.embedding]
        assert np.abs(embedding[0] - embedding[1]).max() > 0.1 * embedding.std()


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_prompts_in_a_batch_are_independent(rows: int, count: int, family: Small) -> None:
    prompts = family.points(rows, count)
    masks, scores = family.decode(family.embedding() | prompts)
    side = family.spec.decoder.mask_side
    assert masks.shape == (rows, 1, side, side)
    assert scores.shape == (rows, 1)
    assert np.isfinite(masks).all()
    for row in range(rows):
        alone = {name: rows_[row : row + 1] for name, rows_ in prompts.items()}
        one_mask, one_score = family.decode(family.embedding() | alone)
        assert_close(masks[row : row + 1], one_mask)
        np.testing.assert_allclose(scores[row : row + 1], one_score, atol=1e-3)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_one_mask_or_three(count: int, family: Small) -> None:
    feeds = family.embedding() | family.points(2, count)
    side = family.spec.decoder.mask_side
    one, score = family.decode(feeds | {"multimask_output": ZERO})
    three, scores = family.decode(feeds | {"multimask_output": ONE})
    assert (one.shape, score.shape) == ((2, 1, side, side), (2, 1))
    assert (three.shape, scores.shape) == ((2, 3, side, side), (2, 3))
    assert np.abs(three[:, 0] - three[:, 1]).max() > 0.1 * three.std()


# what may be left out


def defaults(made: Small) -> Arrays:
    side = made.spec.decoder.mask_side
    nothing = {"mask_input": np.zeros((1, 1, side, side), np.float32), "has_mask_input": ZERO, "multimask_output": ZERO}
    features = {
        name: np.zeros(shape, np.float32)
        for name, shape in made.spec.encoder.outputs
        if name != made.spec.encoder.embedding
    }
    return nothing | features


def test_every_optional_input_may_be_left_out(family: Small) -> None:
    required = {family.spec.encoder.embedding: family.embedding()[family.spec.encoder.embedding]} | family.points(2, 2)
    given = defaults(family)
    assert set(given) == set(family.spec.decoder.optional)
    bare = family.decode(required)
    explicit = family.decode(required | given)
    assert_close(bare[0], explicit[0], 1e-5)
    np.testing.assert_allclose(bare[1], explicit[1], atol=1e-5)
    for name, value in given.items():
        masks, _ = family.decode(required | {name: value})
        assert_close(masks, explicit[0], 1e-5)


def test_a_mask_without_its_flag_is_ignored(family: Small) -> None:
    feeds = family.embedding() | family.points(1, 1)
    without, _ = family.decode(feeds)
    unflagged, _ = family.decode(feeds | {"mask_input": family.mask()})
    flagged, _ = family.decode(feeds | {"mask_input": family.mask(), "has_mask_input": ONE})
    assert_close(unflagged, without, 1e-5)
    assert np.abs(flagged - without).max() > 0.01 * without.std()


@pytest.mark.parametrize("model_id", one_or_each(WITH_FEATURES))
def test_finer_features_matter(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    feeds = made.embedding() | made.points(1, 1)
    whole, _ = made.decode(feeds)
    features = [name for name, _ in made.spec.encoder.outputs if name != made.spec.encoder.embedding]
    assert len(features) == 2
    for name in features:
        less, _ = made.decode({key: value for key, value in feeds.items() if key != name})
        assert np.abs(less - whole).max() > 0.1 * whole.std()


@pytest.mark.parametrize("model_id", one_or_each(WITHOUT_FEATURES))
def test_networks_without_finer_features_have_no_input_for_them(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    model = onnx.load(str(made.decoder_file))
    assert {entry.name for entry in model.graph.input} == {
        "image_embeddings",
        "point_coords",
        "point_labels",
        "mask_input",
        "has_mask_input",
        "multimask_output",
    }
    assert not [entry.name for entry in model.graph.initializer if "unused" in entry.name]


# rows


@pytest.mark.parametrize("multimask", [False, True])
def test_every_prompt_may_have_an_image_of_its_own(multimask: bool, family: Small) -> None:
    prompts = family.points(3, 2)
    flag = {"multimask_output": ONE} if multimask else {}
    together, scores = family.decode(family.embeddings | prompts | flag)
    for row in range(3):
        alone = {name: value[row : row + 1] for name, value in prompts.items()}
        masks, score = family.decode(family.embedding(row) | alone | flag)
        assert_close(together[row : row + 1], masks)
        np.testing.assert_allclose(scores[row : row + 1], score, atol=1e-3)
    others, _ = family.decode(family.embedding() | prompts | flag)
    assert np.abs(others[1] - together[1]).max() > 0.05 * together.std()


@pytest.mark.parametrize("flags", [(1, 0), (0, 1), (1, 1), (0, 0)])
def test_every_row_has_its_own_mask_and_flag(flags: tuple[int, int], family: Small) -> None:
    prompts, masks = family.points(2, 1), family.mask(rows=2)
    flag = np.array(flags, np.float32)
    together, _ = family.decode(family.embedding() | prompts | {"mask_input": masks, "has_mask_input": flag})
    for row in range(2):
        alone = {name: value[row : row + 1] for name, value in prompts.items()}
        if flags[row]:
            alone |= {"mask_input": masks[row : row + 1], "has_mask_input": ONE}
        wanted, _ = family.decode(family.embedding() | alone)
        assert_close(together[row : row + 1], wanted)


def test_one_mask_may_serve_all_rows(family: Small) -> None:
    prompts, mask = family.points(3, 1), family.mask()
    one, _ = family.decode(family.embedding() | prompts | {"mask_input": mask, "has_mask_input": ONE})
    each = {"mask_input": np.repeat(mask, 3, axis=0), "has_mask_input": np.ones(3, np.float32)}
    three, _ = family.decode(family.embedding() | prompts | each)
    assert_close(one, three, 1e-5)


# "not a point"


def padded(prompts: Arrays) -> Arrays:
    """With one more place that is none, as callers of SAM 1's official graph add it."""
    coords, labels = prompts["point_coords"], prompts["point_labels"]
    nowhere = np.zeros((len(coords), 1, 2), np.float32)
    none = np.full((len(labels), 1), -1, np.float32)
    return {
        "point_coords": np.concatenate([coords, nowhere], axis=1),
        "point_labels": np.concatenate([labels, none], axis=1),
    }


@pytest.mark.parametrize("model_id", one_or_each(WITHOUT_FEATURES))
@pytest.mark.parametrize("count", [1, 2, 5])
def test_sam1_pads_points_where_the_caller_has_not(model_id: str, count: int, small: SmallFactory) -> None:
    made = small(model_id)
    prompts = made.points(2, count)
    automatic, scores = made.decode(made.embedding() | prompts)
    by_the_caller, same_scores = made.decode(made.embedding() | padded(prompts))
    assert_close(automatic, by_the_caller, 1e-5)
    np.testing.assert_allclose(scores, same_scores, atol=1e-5)
    twice, _ = made.decode(made.embedding() | padded(padded(prompts)))
    assert np.abs(twice - automatic).max() > 1e-3 * automatic.std()  # the padding does something


@pytest.mark.parametrize("model_id", one_or_each(WITHOUT_FEATURES))
def test_sam1_does_not_pad_a_box(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    corners = np.array([[[30, 40], [200, 180]]], np.float32)
    box: Arrays = {"point_coords": corners, "point_labels": np.array([[2, 3]], np.float32)}
    automatic, _ = made.decode(made.embedding() | box)
    by_the_caller, _ = made.decode(made.embedding() | padded(box))
    assert np.abs(by_the_caller - automatic).max() > 1e-3 * automatic.std()


@pytest.mark.parametrize("model_id", one_or_each(WITH_FEATURES))
def test_coordinates_of_padding_points_are_ignored(model_id: str, small: SmallFactory) -> None:
    made = small(model_id)
    prompts = padded(made.points(1, 1))
    here, _ = made.decode(made.embedding() | prompts)
    prompts["point_coords"][:, 1] = 77
    there, _ = made.decode(made.embedding() | prompts)
    assert_close(here, there, 1e-5)

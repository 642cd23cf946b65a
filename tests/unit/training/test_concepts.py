"""What ``sam3:shapes`` learns from and is judged by: scenes, questions, pairs of targets and queries, losses."""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from training.concepts import train
from training.concepts.evaluate import judge, judge_clicks
from training.concepts.evaluation_scenes import Asked, Scene, make_scene
from training.concepts.hints import Hints
from training.concepts.inference import TorchSegmenter
from training.concepts.losses import generous_overlap
from training.concepts.matching import STEP, match_many, match_one
from training.concepts.network import PADDING, SIDE, ConceptNetwork, load_weights, network_weights, roi_align
from training.concepts.scenes import Batch, Phrases, Scenes
from training.concepts.words import ANY, COLOURS, SHAPES, VISUAL, Concept, make_tokenizer

from triton_sam.models.bundled import bundled_path

pytestmark = pytest.mark.torch

_SEEDS = st.integers(0, 2**31)


@pytest.fixture(scope="module")
def scenes() -> Scenes:
    return Scenes("cpu", 3, Phrases(torch.device("cpu"), 3, ways=1))


@pytest.fixture(scope="module")
def batch(scenes: Scenes) -> Batch:
    return scenes.batch(2)


# -- pairs of targets and queries --------------------------------------------------------------------------------


@settings(max_examples=20)
@given(_SEEDS, st.integers(1, 4), st.integers(4, 6))
def test_one_query_for_each_target_at_nearly_the_least_cost(seed: int, targets: int, queries: int) -> None:
    random = torch.Generator().manual_seed(seed)
    cost = torch.rand(2, targets, queries, generator=random)
    valid = torch.rand(2, targets, generator=random) < 0.7
    for own, chosen, there in zip(cost, match_one(cost, valid), valid, strict=True):
        assert torch.equal(chosen >= 0, there)
        rows, columns = torch.nonzero(there)[:, 0], chosen[there]
        assert len(columns.unique()) == len(columns)
        least = min(
            sum(float(own[row, column]) for row, column in zip(rows, order, strict=True))
            for order in itertools.permutations(range(queries), len(rows))
        )
        assert own[rows, columns].sum() <= least + STEP * len(rows) + 1e-5


@settings(max_examples=20)
@given(_SEEDS)
def test_several_queries_for_a_target_are_its_best(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    cost = torch.rand(1, 3, 30, generator=random)
    valid = torch.tensor([[True, True, False]])
    (target,) = match_many(cost, valid, 4)
    assert set(target.tolist()) <= {-1, 0, 1}
    for number in (0, 1):
        mine = torch.nonzero(target == number)[:, 0]
        best = cost[0, number].topk(4, largest=False).indices
        assert set(mine.tolist()) <= set(best.tolist())
        taken = [one for one in best.tolist() if one not in mine.tolist()]
        assert all(cost[0, 1 - number, one] <= cost[0, number, one] for one in taken)


def test_overlaps_of_boxes() -> None:
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [1.0, 0.0, 3.0, 2.0], [4.0, 0.0, 5.0, 2.0]])
    generous, overlap = generous_overlap(boxes[:1], boxes)
    assert overlap.tolist() == pytest.approx([1, 1 / 3, 0])
    assert generous.tolist() == pytest.approx([1, 1 / 3, -0.4])


def test_parts_of_a_box_are_means_of_its_cells() -> None:
    """A ramp has its own value everywhere, so the mean over a part is that of its middle."""
    ramp = torch.arange(8.0).expand(1, 1, 8, 8)
    (((row, *_),),) = roi_align(ramp, torch.tensor([[[1.5, 1.0, 5.5, 7.0]]]), 2)[0]
    assert row.tolist() == pytest.approx([2.5 - 0.5 + 0.5, 4.5])


# -- scenes and questions ----------------------------------------------------------------------------------------


def test_boxes_lie_around_masks(batch: Batch) -> None:
    assert batch.there.any(1).all()
    side = batch.masks.shape[-1]
    for masks, boxes, there in zip(batch.masks, batch.boxes, batch.there, strict=True):
        for mask, box in zip(masks[there], boxes[there], strict=True):
            rows, columns = torch.nonzero(mask.any(1))[:, 0], torch.nonzero(mask.any(0))[:, 0]
            around = torch.stack([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]) / side
            assert (around - box).abs().max() <= 1 / side


def test_things_belong_to_a_concept_by_its_words_and_examples(batch: Batch) -> None:
    for scene in range(len(batch.images)):
        attributes = [tuple(one) for one in batch.attributes[scene].tolist()]
        for number, found in enumerate(batch.found[scene]):
            labels = batch.labels[scene, number]
            if batch.described[scene, number] and (labels == PADDING).all():
                concept = Concept(*batch.named[scene, number].tolist())
                wanted = [concept.fits(*one) for one in attributes]
                assert found.tolist() == [a and bool(b) for a, b in zip(wanted, batch.there[scene], strict=True)]
            shown = {attributes[thing][:2] for thing in torch.nonzero(found)[:, 0].tolist()}
            boxes = batch.exemplars[scene, number]
            for box, label in zip(boxes[labels != PADDING], labels[labels != PADDING], strict=True):
                middles = (batch.boxes[scene, :, :2] + batch.boxes[scene, :, 2:]) / 2
                far = (middles - box[:2]).abs().amax(1) + (~batch.there[scene]) * 9
                like = attributes[int(far.argmin())][:2]
                assert (like in shown) == bool(label) or (label == 1 and (labels == 0).any())


def test_phrases_name_their_attributes(scenes: Scenes) -> None:
    tokenizer = make_tokenizer()
    red_star = torch.tensor([SHAPES.index("star"), COLOURS.index("red"), ANY, ANY])
    ids, mask = scenes.phrases.of(red_star, torch.tensor(0.0)).tolist()
    words = tokenizer.decode(ids[: sum(mask)])
    assert "star" in words
    assert "red" in words
    assert tokenizer.decode(scenes.phrases.visual[0].tolist()).split() == [VISUAL]
    assert tokenizer.get_vocab_size() <= 300


# -- learning ----------------------------------------------------------------------------------------------------


def _options(folder: Path, **given: object) -> argparse.Namespace:
    known = {"out": folder, "seconds": 0.0, "scenes": 1, "rate": 5e-4, "begin": None, "state": None, "part": (0.0, 1.0)}
    return argparse.Namespace(**(known | {"plain": True, "ways": 1} | given))


def test_a_step_reaches_every_weight_and_training_goes_on_where_it_ended(tmp_path: Path, batch: Batch) -> None:
    training = train.Training(_options(tmp_path, state=tmp_path / "state"))
    parts = training.losses(batch)
    torch.stack([value for value in parts.values() if value.requires_grad]).sum().backward()
    assert all(torch.isfinite(value) for value in parts.values())
    silent = {
        name
        for name, one in (*training.network.named_parameters(), *training._hints.named_parameters())
        if one.requires_grad and one.grad is None
    }
    assert {name for name in silent if "text_encoder.text_projection" not in name and "no_mask" not in name} == set()
    with torch.no_grad():
        for one in training._mean.parameters():
            one.add_(1e-3)
    training._steps = 7
    training.save_state()
    again = train.Training(_options(tmp_path, state=tmp_path / "state"))
    assert again._steps == 7
    for old, new in zip(training._mean.parameters(), again._mean.parameters(), strict=True):
        assert torch.equal(old, new)


def test_training_begins_with_a_network_and_has_no_hints_then(tmp_path: Path, batch: Batch) -> None:
    begin = bundled_path("concepts/network.safetensors")
    training = train.Training(_options(tmp_path, begin=begin))
    for name, one in network_weights(training.network).items():
        torch.testing.assert_close(one.half(), load_file(begin)[name].half())
    assert not {"shown", "shapes", "covered", "named"} & set(training.losses(batch))


@torch.inference_mode()
def test_words_alone_are_the_same_beside_a_concept_with_examples(batch: Batch) -> None:
    network = ConceptNetwork().eval()
    maps, positions = network.pyramid(network.backbone(batch.images))
    tokens, mask = batch.tokens[:, 0], batch.token_mask[:, 0]
    boxes, labels = torch.full((2, 4, 4), 0.5), torch.full((2, 4), PADDING)
    labels[1, 0] = 1
    text = network.text(tokens)
    padded = network.find(maps[-1], positions, text, mask, boxes, labels)
    alone = network.find(maps[-1], positions, text, mask, boxes[:, :0], labels[:, :0])
    for one, other in ((padded.logits, alone.logits), (padded.boxes, alone.boxes), (padded.presence, alone.presence)):
        torch.testing.assert_close(one[:, 0], other[:, 0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(padded.fused[0], alone.fused[0], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(padded.fused[1], alone.fused[1], atol=1e-3)


def test_weights_come_back(tmp_path: Path) -> None:
    one, other = ConceptNetwork(), ConceptNetwork()
    load_weights(other, network_weights(one))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_what_cells_show_is_told_from_masks(batch: Batch) -> None:
    """The loss falls when the cells of each thing hold its attributes."""
    hints = Hints()
    empty = torch.zeros(len(batch.images), 96, SIDE // 14, SIDE // 14)
    before, _, share = hints.shown(empty, batch)
    assert share.amax() == pytest.approx(1, abs=0.01)
    optimiser = torch.optim.Adam(hints.parameters(), 0.05)
    for _ in range(20):
        loss, right, _ = hints.shown(empty, batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < before
    assert 0 <= right <= 1


# -- judging -----------------------------------------------------------------------------------------------------


def test_a_scene_is_the_same_by_its_number() -> None:
    one, other = make_scene(5), make_scene(5)
    assert np.array_equal(one.picture, other.picture)
    assert one.asked == other.asked


@pytest.fixture(scope="module")
def judged() -> list[Scene]:
    return [make_scene(number) for number in range(4)]


def test_the_truth_is_judged_right(judged: list[Scene]) -> None:
    def truth(picture: np.ndarray, asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        (scene,) = [one for one in judged if one.picture is picture]
        found = [scene.things[number] for number in asked.found]
        masks = np.stack([one.mask for one in found]) if found else np.zeros((0, *picture.shape[:2]), bool)
        return masks, np.ones(len(found)), np.array([one.box for one in found]).reshape(-1, 4)

    told = judge(truth, judged)["all"]
    assert (told["f1"], told["mask_iou"], told["box_iou"], told["answered_with_nothing"]) == (1, 1, 1, 1)


def test_silence_and_a_mask_of_everything_are_judged_wrong(judged: list[Scene]) -> None:
    def silent(picture: np.ndarray, asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.zeros((0, *picture.shape[:2]), bool), np.zeros(0), np.zeros((0, 4))

    def whole(picture: np.ndarray, asked: Asked) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return np.ones((1, *picture.shape[:2]), bool), np.ones(1), np.array([[0, 0, 1, 1]])

    told = judge(silent, judged)["all"]
    assert (told["f1"], told["answered_with_nothing"]) == (0, 1)
    told = judge(whole, judged)["all"]
    assert (told["f1"], told["answered_with_nothing"]) == (0, 0)


def test_the_weights_find_concepts_of_scenes_they_have_not_seen(judged: list[Scene]) -> None:
    """All 300 scenes: training/concepts/model/figures.json."""
    segmenter = TorchSegmenter(Path(train.__file__).parent / "model")
    figures = judge(segmenter, judged)
    assert figures["words"]["f1"] > 0.85
    assert figures["all"]["f1"] > 0.85
    assert figures["all"]["answered_with_nothing"] > 0.9
    assert judge_clicks(segmenter.click, judged)["box_iou"] > 0.85

"""Finding concepts on ONNX Runtime equals transformers' ``Sam3Model``, followed by Meta's choice of instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.concept_models import (
    ARCHITECTURE,
    SIDE,
    WORDS,
    reference_network,
    small_concept_network,
    tokens,
    with_roi_align,
    write_small_model,
)
from triton_sam.core.concepts.request import ConceptPrompt
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Row
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.loading import load_engine
from triton_sam.errors import InvalidInput
from triton_sam.settings import Settings

NONE = np.zeros((0, 4), np.float32)
BOXES = np.array([[20, 30, 120, 90], [100, 10, 190, 60]], np.float32)
WIDTH, HEIGHT = 200, 100


@pytest.fixture(scope="module")
def network() -> Any:
    return small_concept_network()


@pytest.fixture(scope="module")
def folder(network: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("concepts")
    write_small_model(folder, network)
    return folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> Any:
    from tests.concept_models import small_concept_spec
    from triton_sam.repository.model_folders import served_spec

    return load_engine(served_spec(small_concept_spec(), folder), folder, Settings(engine="onnx", device="cpu"))


@pytest.fixture(scope="module")
def reference(network: Any) -> Any:
    return reference_network(network, ARCHITECTURE, SIDE)


def picture(seed: int) -> EncodedImage:
    import io

    noise = np.random.default_rng(seed).integers(0, 256, (8, 12, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR).save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=1 << 20, max_pixels=1 << 20)


def concept(text: str | None, boxes: Any = NONE, labels: Any = ()) -> ConceptPrompt:
    return ConceptPrompt(text, np.asarray(boxes, np.float32), np.asarray(labels, np.int32))


def wanted(reference: Any, pixels: Any, prompt: ConceptPrompt, threshold: float) -> list[tuple[float, Any, Any]]:
    """(score, box in 0..1, low-resolution logits) of each instance, by falling score."""
    ids, mask = tokens([prompt.words])
    corners = torch.from_numpy(prompt.boxes / np.array([WIDTH, HEIGHT, WIDTH, HEIGHT], np.float32))
    low, high = corners[:, :2], corners[:, 2:]
    boxes = torch.cat([(low + high) / 2, high - low], dim=1)[None]
    with torch.no_grad(), with_roi_align():
        found = reference(
            pixel_values=(torch.from_numpy(pixels) - 0.5) / 0.5,
            input_ids=ids,
            attention_mask=mask,
            input_boxes=boxes,
            input_boxes_labels=torch.from_numpy(prompt.labels.astype(np.int64))[None],
        )
    scores = found.pred_logits[0].sigmoid() * found.presence_logits[0].sigmoid()
    order = [index for index in scores.argsort(descending=True, stable=True) if scores[index] > threshold]
    return [(float(scores[i]), found.pred_boxes[0, i].numpy(), found.pred_masks[0, i].numpy()) for i in order]


def assert_same(found: Instances, expected: list[tuple[float, Any, Any]]) -> None:
    assert found.found == len(expected)
    for index in range(len(found.boxes)):
        score, box, logits = expected[index]
        assert abs(found.decoded.scores[index] - score) <= 1e-4
        assert np.abs(found.boxes[index] - np.clip(box, 0, 1) * [WIDTH, HEIGHT, WIDTH, HEIGHT]).max() <= 0.02
        assert found.decoded.logits is not None
        assert np.abs(found.decoded.logits[index] - logits).max() <= 1e-3 * logits.std()


PROMPTS = [
    concept("small red circle"),
    concept(None, BOXES, [1, 0]),
    concept("star", BOXES[:1], [1]),
    concept("blue"),
    concept("red", BOXES, [1, 1]),
]


def test_texts_and_exemplars_in_two_images(engine: Any, reference: Any) -> None:
    prepared = [engine.prepare(picture(seed)) for seed in (1, 2)]
    embeddings = engine.encode(prepared)
    threshold = 0.15
    rows = [ConceptRow(embeddings[index % 2], prompt, threshold, 50) for index, prompt in enumerate(PROMPTS)]
    rows += [ConceptRow(embeddings[0], prompt, threshold, 50) for prompt in PROMPTS]
    found = engine.begin_concepts(rows)()
    assert len(found) == len(rows)
    for row, instances in zip(rows, found, strict=True):
        pixels = prepared[embeddings.index(row.embedding)][1]
        assert_same(instances, wanted(reference, pixels, row.prompt, threshold))
    assert any(0 < len(instances.boxes) < 20 for instances in found)


def test_the_most_instances_are_the_best_ones(engine: Any) -> None:
    (embedding,) = engine.encode([engine.prepare(picture(3))])
    (all_of_them,) = engine.begin_concepts([ConceptRow(embedding, concept("red"), 0.0, 50)])()
    (few,) = engine.begin_concepts([ConceptRow(embedding, concept("red"), 0.0, 3)])()
    assert (all_of_them.found, few.found, len(few.boxes)) == (20, 20, 3)
    assert np.array_equal(few.decoded.scores, all_of_them.decoded.scores[:3])
    assert (np.diff(all_of_them.decoded.scores) <= 0).all()


def test_nothing_above_the_threshold(engine: Any) -> None:
    (embedding,) = engine.encode([engine.prepare(picture(3))])
    (none,) = engine.begin_concepts([ConceptRow(embedding, concept("red"), 1.0, 50)])()
    assert none.found == 0
    assert none.boxes.shape == (0, 4)
    assert none.decoded.logits.shape == (0, SIDE // 14 * 4, SIDE // 14 * 4)


def test_a_text_is_read_once(engine: Any) -> None:
    (embedding,) = engine.encode([engine.prepare(picture(4))])
    row = ConceptRow(embedding, concept("blue small star"), 0.5, 5)
    assert [engine.begin_concepts([row])()[0].text_ms > 0 for _ in range(2)] == [True, False]


def test_clicks_are_as_without_concepts(engine: Any, folder: Path) -> None:
    import dataclasses

    plain = load_engine(dataclasses.replace(engine.spec, concepts=None), folder, Settings(engine="onnx", device="cpu"))
    assert (engine.capacity.concepts, plain.capacity.concepts) == (True, False)
    point = ObjectPrompt(np.array([[50, 40]], np.float32), np.ones(1, np.int32))
    answers = []
    for one in (engine, plain):
        (embedding,) = one.encode([one.prepare(picture(5))])
        answers.append((one.decode([Row(embedding, point)])[0], embedding.nbytes))
    assert np.array_equal(answers[0][0].logits, answers[1][0].logits)
    assert answers[0][1] - answers[1][1] == 4 * 64 * 12 * 12


def test_an_embedding_that_was_sent_has_nothing_for_words(engine: Any) -> None:
    (embedding,) = engine.encode([engine.prepare(picture(6))])
    arrays = {name: embedding.array(name) for name, _ in engine.spec.encoder.outputs}
    sent = engine.adopt(embedding.frame, arrays)
    with pytest.raises(InvalidInput, match="send the image or its key"):
        engine.begin_concepts([ConceptRow(sent, concept("red"), 0.5, 5)])
    assert engine.decode([Row(sent, ObjectPrompt(np.array([[50, 40]], np.float32), np.ones(1, np.int32)))])


def test_a_text_with_too_many_tokens(engine: Any) -> None:
    engine.check_text("red " * 30)
    with pytest.raises(InvalidInput, match="33 tokens, start and end included, and 32 are the most"):
        engine.check_text("red " * 31)


def test_unknown_words_are_read_as_such(engine: Any) -> None:
    assert "mitochondrion" not in WORDS
    engine.check_text("every mitochondrion, please")


@pytest.mark.parametrize("missing", ["concepts.json", "tokenizer.json"])
def test_a_model_without_all_of_it_takes_no_text(missing: str, folder: Path, tmp_path: Path) -> None:
    from tests.concept_models import small_concept_spec
    from triton_sam.repository.model_folders import served_spec

    for file in folder.iterdir():
        if file.name != missing:
            (tmp_path / file.name).symlink_to(file)
    spec = served_spec(small_concept_spec(), tmp_path)
    assert spec.concepts is None
    assert "text" not in spec.prompts
    assert "text" in served_spec(small_concept_spec(), folder).prompts
    assert not load_engine(spec, tmp_path, Settings(engine="onnx", device="cpu")).capacity.concepts

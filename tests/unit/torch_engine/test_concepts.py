"""Finding concepts by the torch engine equals transformers' ``Sam3Model``, followed by Meta's choice of instances."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.concept_models import (
    ARCHITECTURE,
    SIDE,
    reference_network,
    small_concept_network,
    small_concept_spec,
    write_small_tokenizer,
)
from tests.unit.engines.test_onnx import prompt
from tests.unit.engines.test_onnx_concepts import HEIGHT, PROMPTS, WIDTH, assert_same, concept, picture, wanted
from triton_sam.core import masks
from triton_sam.engines.base import Embedding, Row
from triton_sam.engines.concepts import ConceptRow, Instances
from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch import concept_words, concepts
from triton_sam.engines.torch.concept_pyramids import KeptPyramids
from triton_sam.engines.torch.concepts import COUNTS, MOST_EXAMPLES, example_concepts, make_steps
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.engines.torch.perception import PyramidLevel
from triton_sam.errors import InternalError, InvalidInput, SetupError
from triton_sam.models.concept_traits import concept_traits

pytestmark = pytest.mark.torch

SPEC = dataclasses.replace(small_concept_spec(), concepts=concept_traits(ARCHITECTURE, SIDE))
CPU = torch.device("cpu")
EIGHT = np.linspace([2, 3, 60, 40], [90, 40, 190, 95], 8).astype(np.float32)


@pytest.fixture(scope="module")
def network() -> Any:
    return small_concept_network()


@pytest.fixture(scope="module")
def reference(network: Any) -> Any:
    return reference_network(network, ARCHITECTURE, SIDE)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return TextTokenizer(write_small_tokenizer(tmp_path_factory.mktemp("words")), 32)


@pytest.fixture
def engine(network: Any, tokenizer: TextTokenizer) -> TorchEngine:
    return made(network, tokenizer)


def made(network: Any, tokenizer: TextTokenizer, **options: Any) -> TorchEngine:
    engine = TorchEngine(SPEC, copy.deepcopy(network), TorchOptions(CPU, **options), tokenizer)
    engine.warm_up()
    return engine


def images(engine: TorchEngine, *seeds: int) -> tuple[list[Embedding], list[Any]]:
    """Embeddings, and the pixels [1,3,S,S] in [0,1] that they are made of."""
    prepared = [engine.prepare(picture(seed)) for seed in seeds]
    found = [embedding for one in prepared for embedding in engine.encode([one])]
    return found, [one.pixels[None].float().numpy() / 2 + 0.5 for one in prepared]


def close(found: Instances, expected: Instances) -> None:
    assert found.found == expected.found
    assert found.presence == pytest.approx(expected.presence, abs=1e-5)
    assert np.abs(found.decoded.scores - expected.decoded.scores).max(initial=0) <= 1e-5
    assert found.decoded.logits is not None
    assert expected.decoded.logits is not None
    off = np.abs(found.decoded.logits - expected.decoded.logits).max(initial=0)
    assert off <= 1e-3 * (expected.decoded.logits.std() if expected.decoded.logits.size else 1)


def test_texts_and_examples_of_two_images_equal_the_reference(engine: TorchEngine, reference: Any) -> None:
    """Texts, examples, both, several texts, with more examples than are captured, and more rows than fit one run."""
    embeddings, pixels = images(engine, 1, 2)
    prompts = [*PROMPTS, concept("star", EIGHT, [1, 0] * 4), concept("small blue star")]
    rows = [ConceptRow(embeddings[index % 2], each, 0.0, 50) for index, each in enumerate(prompts)]
    rows += [ConceptRow(embeddings[0], each, 0.0, 50) for each in prompts]
    found = engine.begin_concepts(rows)()
    assert len(found) == len(rows) == 14
    for row, instances in zip(rows, found, strict=True):
        expected = wanted(reference, pixels[embeddings.index(row.embedding)], row.prompt, 0.0)
        assert len(expected) == instances.found == 20
        assert_same(instances, expected)
    scores = found[0].decoded.scores
    between = float(scores[7] + scores[8]) / 2
    (some,) = engine.begin_concepts([dataclasses.replace(rows[0], threshold=between)])()
    assert (some.found, len(some.boxes)) == (8, 8)


def test_pyramids_that_are_kept_change_nothing(
    network: Any, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU keeps them: three images in turn, of which two have room."""
    plain = made(network, tokenizer)
    monkeypatch.setattr(concepts, "KeptPyramids", lambda pyramid, most: KeptPyramids(pyramid, 2))
    engine = made(network, tokenizer)
    assert engine.concepts is not None
    runs: list[Tensor] = []
    engine.concepts.image.register_forward_pre_hook(lambda step, given: runs.extend(given))
    embeddings, _ = images(engine, 1, 2, 3)
    for index in (0, 1, 0, 1, 2, 1, 0):
        row = ConceptRow(embeddings[index], concept("red"), 0.0, 6)
        close(engine.begin_concepts([row])()[0], plain.begin_concepts([row])()[0])
    assert len(runs) == 4


def test_masks_are_those_that_the_host_would_make(engine: TorchEngine) -> None:
    (embedding,), _ = images(engine, 3)
    row = ConceptRow(embedding, concept("red"), 0.0, 6, logits=True, pixels=True)
    (found,) = engine.begin_concepts([row])()
    assert found.decoded.packed is not None
    assert found.decoded.logits is not None
    assert found.decoded.packed.shape == (6, HEIGHT, -(-WIDTH // 8))
    unpacked = masks.unpack_bits(found.decoded.packed, WIDTH)
    expected = np.stack([masks.full_size(logits, embedding.frame) for logits in found.decoded.logits])
    assert (unpacked != expected).mean() < 1e-4
    assert 0.01 < expected.mean() < 0.99, "a mask of nothing or everything would prove nothing"


def test_the_most_instances_are_the_best_ones(engine: TorchEngine) -> None:
    (embedding,), _ = images(engine, 3)
    every, few = (engine.begin_concepts([ConceptRow(embedding, concept("red"), 0.0, most)])()[0] for most in (50, 3))
    assert (every.found, few.found, len(few.boxes)) == (20, 20, 3)
    assert np.array_equal(few.decoded.scores, every.decoded.scores[:3])
    assert (np.diff(every.decoded.scores) <= 0).all()


def test_nothing_above_the_threshold(engine: TorchEngine) -> None:
    (embedding,), _ = images(engine, 3)
    row = ConceptRow(embedding, concept("red"), 1.0, 50, logits=True, pixels=True, columns=True)
    (none,) = engine.begin_concepts([row])()
    decoded = none.decoded
    assert none.found == 0
    assert none.boxes.shape == (0, 4)
    assert decoded.logits is not None
    assert decoded.packed is not None
    assert decoded.columns is not None
    side = SIDE // 14 * 4
    shapes = (decoded.logits.shape, decoded.packed.shape, decoded.columns.shape)
    assert shapes == ((0, side, side), (0, HEIGHT, WIDTH // 8), (0, WIDTH, -(-HEIGHT // 8)))


def test_results_that_are_taken_late_or_never(engine: TorchEngine) -> None:
    """The next run overwrites what masks are made of: what was begun before is finished first."""
    embeddings, _ = images(engine, 1, 2)
    rows = [ConceptRow(embeddings[index % 2], each, 0.0, 5, pixels=True) for index, each in enumerate(PROMPTS)]
    alone = [engine.begin_concepts([row])()[0] for row in rows]
    begun = [engine.begin_concepts([row]) for row in rows]
    engine.begin_concepts(rows)  # nobody takes it
    for finish, expected in reversed(list(zip(begun, alone, strict=True))):
        (found,) = finish()
        close(found, expected)
        assert np.array_equal(found.decoded.packed, expected.decoded.packed)  # type: ignore[arg-type]


def test_a_failure_is_told_to_who_asked(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    (embedding,), _ = images(engine, 1)
    row = ConceptRow(embedding, concept("red"), 0.0, 5)
    finish = engine.begin_concepts([row])
    with monkeypatch.context() as patched:
        patched.setattr(concepts, "select", lambda *_: 1 / 0)
        other = engine.begin_concepts([row])
    with pytest.raises(ZeroDivisionError):
        finish()
    assert other()[0].found


def test_a_text_is_read_once(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    (embedding,), _ = images(engine, 4)
    texts = ["blue", "red", "star", "circle", "small", "red star"]
    rows = [ConceptRow(embedding, concept(text), 0.5, 5) for text in [*texts, "blue"]]
    assert [found.text_ms > 0 for found in engine.begin_concepts(rows)()] == [True] * 6 + [False]
    assert [found.text_ms > 0 for found in engine.begin_concepts(rows)()] == [False] * 7
    monkeypatch.setattr(concept_words, "_KEPT", 2)
    engine.begin_concepts([ConceptRow(embedding, concept("circle red"), 0.5, 5)])()
    again = [rows[1], ConceptRow(embedding, concept("circle red"), 0.5, 5)]
    assert [found.text_ms > 0 for found in engine.begin_concepts(again)()] == [True, False]


def test_clicks_are_as_without_concepts(network: Any, engine: TorchEngine) -> None:
    spec = dataclasses.replace(SPEC, concepts=None)
    plain = TorchEngine(spec, copy.deepcopy(network), TorchOptions(CPU))
    plain.warm_up()
    assert (engine.capacity.concepts, plain.capacity.concepts) == (True, False)
    found = []
    for one in (engine, plain):
        (embedding,), _ = images(one, 5)
        (answer,) = one.decode([Row(embedding, prompt([[50, 40]]))])
        found.append((answer.logits, embedding.nbytes, one.bytes_each))
        assert embedding.nbytes == one.bytes_each
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1] - found[1][1] == 4 * 64 * 12 * 12


def test_what_the_detector_reads_can_be_fetched(engine: TorchEngine, network: Any) -> None:
    (embedding,), (pixels,) = images(engine, 5)
    with torch.inference_mode():
        state = network.vision_encoder.backbone(torch.from_numpy(pixels) * 2 - 1).last_hidden_state
    array = embedding.array("backbone_features")
    assert array.shape == (1, 64, 12, 12)
    assert np.abs(array - state.transpose(1, 2).reshape(1, 64, 12, 12).numpy()).max() <= 1e-4 * array.std()


def test_an_embedding_that_was_sent_has_nothing_for_words(engine: TorchEngine) -> None:
    (embedding,), _ = images(engine, 6)
    sent = engine.adopt(embedding.frame, {name: embedding.array(name) for name, _ in SPEC.encoder.outputs})
    with pytest.raises(InvalidInput, match="send the image or its key"):
        engine.begin_concepts([ConceptRow(sent, concept("red"), 0.5, 5)])
    assert engine.decode([Row(sent, prompt([[50, 40]]))])


def test_a_text_with_too_many_tokens(engine: TorchEngine) -> None:
    engine.check_text("red " * 30)
    with pytest.raises(InvalidInput, match="33 tokens"):
        engine.check_text("red " * 31)


def test_bfloat16_is_near(network: Any, tokenizer: TextTokenizer, engine: TorchEngine) -> None:
    near = made(network, tokenizer, dtype=torch.bfloat16)
    found = []
    for one in (engine, near):
        (embedding,), _ = images(one, 7)
        (instances,) = one.begin_concepts([ConceptRow(embedding, concept("red star", EIGHT[:2], [1, 0]), 0.0, 20)])()
        found.append(instances)
    exact, rounded = found
    assert np.corrcoef(exact.decoded.scores, rounded.decoded.scores)[0, 1] > 0.99
    assert abs(exact.presence - rounded.presence) < 0.02
    (embedding,), _ = images(near, 7)
    assert embedding.nbytes == near.bytes_each


def test_numbers_out_of_range_are_told(network: Any, tokenizer: TextTokenizer) -> None:
    broken = copy.deepcopy(network)
    broken.concepts.text_projection.bias.data += float("inf")
    engine = TorchEngine(SPEC, broken, TorchOptions(CPU), tokenizer)
    (embedding,), _ = images(engine_ready(engine), 1)
    with pytest.raises(InternalError, match="TRITON_SAM_TORCH_DTYPE=float32"):
        engine.begin_concepts([ConceptRow(embedding, concept("red"), 0.5, 5)])()


def engine_ready(engine: TorchEngine) -> TorchEngine:
    for _ in engine.images.warm_up():
        pass
    return engine


# -- compiled code -------------------------------------------------------------------------------------------


class Loaded:
    """Stands for compiled code: the module itself, counted, or something wrong."""

    def __init__(self, factor: float = 1.0) -> None:
        self.calls = 0
        self._factor = factor

    def load(self, folder: Path, module: nn.Module, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            self.calls += 1
            first, *others = module(*inputs)
            return (first * self._factor, *others)

        return run


def switches(engine: TorchEngine) -> list[Callable[[], object]]:
    finder, nowhere = engine.concepts, Path()
    assert finder is not None
    return [
        lambda: finder.use_compiled_text(1, nowhere),
        lambda: finder.use_compiled_image(nowhere),
        *(lambda count=count: finder.use_compiled(count, 0, nowhere) for count in COUNTS),  # type: ignore[misc]
        lambda: finder.use_compiled(2, MOST_EXAMPLES, nowhere),
    ]


def test_compiled_code_gives_the_same(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded()
    for module in (concepts, concept_words):
        monkeypatch.setattr(module, "load_compiled", loaded.load)
    (embedding, other), _ = images(engine, 1, 2)
    rows = [ConceptRow(embedding, concept(text), 0.0, 5) for text in ("red", "blue", "star")]
    rows += [ConceptRow(other, concept("red", EIGHT[:3], [1, 1, 1]), 0.0, 5)] * 2
    before = engine.begin_concepts(rows)()
    for use in switches(engine):
        use()
    tried = loaded.calls
    assert tried == 6
    for found, expected in zip(engine.begin_concepts(rows)(), before, strict=True):
        close(found, expected)
    # Two images, three concepts of one, two with examples of the other; the texts are known.
    assert loaded.calls - tried == 4
    engine.begin_concepts([ConceptRow(other, concept("circle"), 0.0, 5)])()
    assert loaded.calls - tried == 6, "a new text, and its detector; the image is there"


def test_code_that_gives_something_else_is_not_used(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Loaded(factor=2)
    for module in (concepts, concept_words):
        monkeypatch.setattr(module, "load_compiled", loaded.load)
    for use in switches(engine):
        with pytest.raises(SetupError, match="compiled"):
            use()
    tried = loaded.calls
    (embedding,), _ = images(engine, 1)
    engine.begin_concepts([ConceptRow(embedding, concept("red"), 0.0, 5)])()
    assert loaded.calls == tried


@pytest.mark.part("exports")
def test_steps_can_be_exported_as_the_compiler_does(network: Any) -> None:
    text, image, detector = make_steps(SPEC, copy.deepcopy(network), CPU, torch.bfloat16)
    given: list[tuple[nn.Module, tuple[Tensor, ...]]] = [
        (text, text.inputs(4, CPU)),
        (image, image.inputs(CPU)),
        *((detector, example_concepts(detector, image, 2, examples, 32)) for examples in (0, MOST_EXAMPLES)),
    ]
    for module, inputs in given:
        with torch.no_grad():
            exported = torch.export.export(module, inputs, strict=False)
            for found, expected in zip(exported.module()(*inputs), module(*inputs), strict=True):
                assert torch.allclose(found, expected, atol=1e-3, rtol=1e-3, equal_nan=False)


def test_a_level_of_the_pyramid_is_the_references_with_what_follows(network: Any) -> None:
    neck, decoder = network.vision_encoder.neck, network.mask_decoder
    state = torch.randn(2, 64, 12, 12, generator=torch.Generator().manual_seed(0))
    nothing = network.no_memory_embedding.reshape(1, -1, 1, 1)
    expected = [
        decoder.conv_s0(neck.fpn_layers[0](state)),
        decoder.conv_s1(neck.fpn_layers[1](state)),
        neck.fpn_layers[2](state) + nothing,
    ]
    levels = [
        PyramidLevel(neck.fpn_layers[0], then=decoder.conv_s0),
        PyramidLevel(neck.fpn_layers[1], then=decoder.conv_s1),
        PyramidLevel(neck.fpn_layers[2], added=network.no_memory_embedding),
    ]
    for level, wished in zip(levels, expected, strict=True):
        found = level(state.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        assert (found - wished).abs().max() <= 1e-4 * wished.std()

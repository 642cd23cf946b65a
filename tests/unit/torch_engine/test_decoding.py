"""Rows through the decoder: what is handed out, and what stays in place for the next run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.engines.test_onnx import prompt
from tests.unit.export.small import small_network, small_spec
from tests.unit.torch_engine.test_engine import CPU, photograph
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.masks import unpack_bits
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.engines.inputs import listed_points, model_points
from triton_sam.engines.torch import fetching
from triton_sam.engines.torch.decoder import ABSENT, NOT_A_POINT
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.graphs import Steps
from triton_sam.engines.torch.slots import fill_slots, row_points

pytestmark = pytest.mark.torch

CLICK = prompt([[30, 40]])
PROMPTS = [CLICK, prompt([[30, 40], [7, 9]], [1, 0]), prompt(box=[5, 6, 70, 60]), prompt([[9, 8]], box=[5, 6, 70, 60])]
MANY = prompt([[float(3 * index), float(2 * index)] for index in range(40)])


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    spec = small_spec("sam2.1:tiny")
    engine = TorchEngine(spec, small_network(spec), CPU)
    engine.warm_up()
    return engine


@pytest.fixture(scope="module")
def images(engine: TorchEngine) -> list[Embedding]:
    """Two of one size and one of another."""
    sizes = ((120, 80), (120, 80), (75, 91))
    return [engine.encode([engine.prepare(photograph(size, seed))])[0] for seed, size in enumerate(sizes)]


def same(one: Decoded, other: Decoded, exactly: bool = True) -> None:
    assert np.allclose(one.scores, other.scores, atol=0 if exactly else 1e-5, rtol=0)
    for mine, its in (
        (one.logits, other.logits),
        (one.packed, other.packed),
        (one.columns, other.columns),
    ):
        assert (mine is None) == (its is None)
        if mine is not None and its is not None:
            assert mine.shape == its.shape
            assert np.mean(~np.isclose(mine, its, atol=0 if exactly else 1e-3)) < (1e-9 if exactly else 1e-3)


def kept(answer: Decoded) -> Decoded:
    arrays = (None if array is None else array.copy() for array in (answer.logits, answer.packed))
    return Decoded(answer.scores.copy(), *arrays)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [CLICK, MANY], ids=["captured", "too long to capture"])
@pytest.mark.parametrize("multimask", [False, True])
def test_an_answer_is_not_overwritten_by_the_next(
    engine: TorchEngine, images: list[Embedding], kind: ObjectPrompt, multimask: bool
) -> None:
    (answer,) = engine.decode([Row(images[0], kind, multimask, logits=True, pixels=True)])
    before = kept(answer)
    (other,) = engine.decode([Row(images[1], prompt([[100, 9]]), multimask, logits=True, pixels=True)])
    same(answer, before)
    assert not np.array_equal(answer.scores, other.scores)
    assert answer.packed is not None
    assert not np.array_equal(answer.packed, other.packed)


def test_rows_of_many_kinds_are_each_as_alone(engine: TorchEngine, images: list[Embedding]) -> None:
    """Rows of one kind that lie apart, of several frames, and some that want no pixels or no logits."""
    rows = [
        Row(images[index % 3], PROMPTS[index % 4], index % 5 == 0, logits=index % 2 == 0, pixels=index % 7 != 0)
        for index in range(21)
    ]
    for row, answer in zip(rows, engine.decode(rows), strict=True):
        same(answer, engine.decode([row])[0], exactly=False)
        assert (answer.logits is not None, answer.packed is not None) == (row.logits, row.pixels)
        assert len(answer.scores) == (3 if row.multimask else 1)


def test_rows_of_one_kind_are_each_as_alone(engine: TorchEngine, images: list[Embedding]) -> None:
    rows = [Row(images[index % 2], PROMPTS[index % 4], logits=False, pixels=True) for index in range(5)]
    for row, answer in zip(rows, engine.decode(rows), strict=True):
        same(answer, engine.decode([row])[0], exactly=False)


def test_rows_that_are_begun_before_others_are_taken_are_each_as_alone(
    engine: TorchEngine, images: list[Embedding]
) -> None:
    rows = [Row(images[index % 2], PROMPTS[index % 4], logits=False, pixels=True) for index in range(7)]
    batches = [rows[:3], rows[3:5], rows[5:6], rows[4:]]
    first, second = engine.begin(batches[0]), engine.begin(batches[1])
    results = [first()]
    third = engine.begin(batches[2])
    results += [second(), third(), engine.begin(batches[3])()]
    for batch, answers in zip(batches, results, strict=True):
        for row, answer in zip(batch, answers, strict=True):
            same(answer, engine.decode([row])[0], exactly=False)


def test_what_the_kernel_packs_is_what_is_handed_out(
    engine: TorchEngine, images: list[Embedding], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row(images[0], CLICK, logits=False, pixels=True)
    (expected,) = engine.decode([row])
    asked = []

    def pack(logits: torch.Tensor, frame: Frame, take: object, *, columns: bool) -> Any:
        assert not columns
        asked.append(tuple(logits.shape[:2]))
        return None if len(asked) > 1 else np.full((1, 1, frame.height, 15), 7, np.uint8)

    monkeypatch.setattr(engine.rows._fetcher, "_by_kernel", True)
    monkeypatch.setattr(fetching, "packed_by_kernel", pack)
    (by_kernel,), (by_steps,) = engine.decode([row]), engine.decode([row])
    assert by_kernel.packed is not None
    assert by_kernel.packed.shape == (1, 80, 15)
    assert (by_kernel.packed == 7).all()
    same(by_steps, expected)
    assert asked == [(1, 1), (1, 1)]


def columns_of(answer: Decoded, frame: Frame) -> Any:
    """The rows of an answer as columns."""
    assert answer.packed is not None
    full = unpack_bits(answer.packed, frame.width)
    padded = np.pad(full, ((0, 0), (0, -frame.height % 8), (0, 0)), mode="edge")
    return np.packbits(padded.swapaxes(1, 2), axis=2)


@pytest.mark.parametrize("multimask", [False, True])
def test_rows_columns_or_both(
    engine: TorchEngine, images: list[Embedding], multimask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.rows._fetcher, "_packs_columns", True)
    frame = images[2].frame
    rows = [Row(images[2], CLICK, multimask, False, *wanted) for wanted in ((True, True), (True, False), (False, True))]
    both, by_rows, by_columns = (engine.decode([row])[0] for row in rows)
    assert both.columns is not None
    assert both.columns.shape == (len(both.scores), frame.width, -(-frame.height // 8))
    assert np.array_equal(both.columns, columns_of(both, frame))
    same(by_rows, Decoded(both.scores, None, both.packed))
    same(by_columns, Decoded(both.scores, None, None, both.columns))
    for row, answer in zip(rows, engine.decode(rows), strict=True):
        assert (answer.packed is not None, answer.columns is not None) == (row.pixels, row.columns)
        same(answer, engine.decode([row])[0], exactly=False)


def test_rows_of_many_kinds_with_columns_are_each_as_alone(
    engine: TorchEngine, images: list[Embedding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.rows._fetcher, "_packs_columns", True)
    rows = [
        Row(images[index % 3], PROMPTS[index % 4], index % 5 == 0, False, index % 2 == 0, index % 3 != 0)
        for index in range(13)
    ]
    for row, answer in zip(rows, engine.decode(rows), strict=True):
        assert (answer.packed is not None, answer.columns is not None) == (row.pixels, row.columns)
        same(answer, engine.decode([row])[0], exactly=False)


def test_without_a_kernel_for_columns_rows_are_packed(engine: TorchEngine, images: list[Embedding]) -> None:
    rows = [Row(images[0], CLICK, logits=False, columns=True), Row(images[0], CLICK, logits=False, pixels=True)]
    for batch in (rows[:1], rows):
        for answer in engine.decode(batch):
            assert answer.columns is None
            assert answer.packed is not None


@pytest.mark.parametrize("policy", list(ResizePolicy))
@pytest.mark.parametrize("kind", [*PROMPTS, MANY, prompt()])
def test_listed_points_are_the_others(policy: ResizePolicy, kind: ObjectPrompt) -> None:
    frame = Frame(123, 77, 1024, policy)
    coords, labels = model_points(kind, frame)
    listed = np.array(listed_points(kind, frame), np.float32).reshape(-1, 3)
    assert np.array_equal(listed[:, :2], coords)
    assert np.array_equal(listed[:, 2], labels)


@pytest.mark.parametrize("always_padded", [False, True])
def test_slots_hold_the_points_and_nothing_of_the_run_before(images: list[Embedding], always_padded: bool) -> None:
    slots = np.full((4, 6, 3), 99, np.float32)
    rows = [Row(images[0], kind) for kind in (CLICK, PROMPTS[2], prompt())]
    fill_slots(slots, [row_points(row, always_padded=always_padded) for row in rows])
    spare = [NOT_A_POINT] if always_padded else []
    for slot, labels in zip(slots, ([1, NOT_A_POINT], [2, 3, *spare], 2 * spare, []), strict=True):
        assert slot[:, 2].tolist() == [*labels, *[ABSENT] * (6 - len(labels))]
        assert not slot[slot[:, 2] < 0, :2].any()


def test_steps_go_ahead_and_after() -> None:
    """What a graph captures on a GPU is what runs without one."""
    sent, given, told = torch.zeros(2), torch.zeros(2), torch.zeros(2)

    def after(outputs: torch.Tensor) -> tuple[torch.Tensor, str]:
        told.copy_(outputs)
        return outputs, "told"

    steps = Steps(lambda value: value + 1, [given], None, ahead=lambda: given.copy_(sent), after=after)
    for number in (3.0, 4.0):
        sent.fill_(number)
        outputs, word = steps.run()
        assert (outputs.tolist(), word, told.tolist()) == ([number + 1] * 2, "told", [number + 1] * 2)

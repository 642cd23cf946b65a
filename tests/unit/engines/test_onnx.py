from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines import onnx as engine_module
from triton_sam.engines.base import Decoded, HostEmbedding, Row, select
from triton_sam.engines.inputs import model_points, preprocess
from triton_sam.engines.onnx import OnnxEngine, choose_providers, open_session
from triton_sam.errors import SetupError
from triton_sam.models.catalog import DEFAULT_MODEL, get_spec
from triton_sam.models.specs import DecoderGraph, EncoderGraph, Graphs, ModelSpec

SIDE, MASK_SIDE = 16, 4
SPEC = dataclasses.replace(
    get_spec(DEFAULT_MODEL),
    graphs=Graphs(
        SIDE,
        EncoderGraph("image", (0.1, 0.2, 0.3), (0.5, 0.25, 2.0), "embed", (("embed", (1, 2)), ("more", (1, 3)))),
        DecoderGraph(mask_side=MASK_SIDE, mask_clip=5.0),
    ),
)
FRAME = Frame(32, 16, SIDE, ResizePolicy.SQUASH)
EMBEDDING = HostEmbedding(FRAME, {"embed": np.ones((1, 2), np.float32)})


def prompt(
    points: list[list[float]] | None = None,
    labels: list[int] | None = None,
    box: list[float] | None = None,
    mask: npt.NDArray[np.float32] | None = None,
) -> ObjectPrompt:
    points = points or []
    return ObjectPrompt(
        np.array(points, np.float32).reshape(-1, 2),
        np.array(labels or [1] * len(points), np.int32),
        None if box is None else np.array(box, np.float32),
        mask,
    )


# preprocess


def picture(width: int, height: int) -> Image.Image:
    rng = np.random.default_rng(3)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image) -> EncodedImage:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return EncodedImage(buffer.getvalue(), max_bytes=10**7, max_pixels=10**6)


@pytest.mark.parametrize("policy", ResizePolicy)
@pytest.mark.parametrize("normalised", [True, False])
def test_pixels_that_need_no_resize(policy: ResizePolicy, normalised: bool) -> None:
    spec = SPEC if normalised else no_mean(SPEC)
    image = picture(SIDE, SIDE)
    expected = np.zeros((1, 3, SIDE, SIDE))
    for channel in range(3):
        plane = np.asarray(image)[:, :, channel] / 255.0
        if normalised:
            plane = (plane - (0.1, 0.2, 0.3)[channel]) / (0.5, 0.25, 2.0)[channel]
        expected[0, channel] = plane
    given = preprocess(image, Frame(SIDE, SIDE, SIDE, policy), spec)
    assert given.dtype == np.float32
    assert given.shape == (1, 3, SIDE, SIDE)
    assert given.flags.c_contiguous
    assert np.allclose(given, expected, atol=1e-6)


def no_mean(spec: ModelSpec) -> ModelSpec:
    encoder = dataclasses.replace(spec.encoder, mean=None, std=None)
    return dataclasses.replace(spec, graphs=dataclasses.replace(spec.graphs, encoder=encoder))


def halves(width: int, height: int) -> npt.NDArray[np.uint8]:
    """Left half black, right half white."""
    array = np.zeros((height, width, 3), np.uint8)
    array[:, width // 2 :] = 255
    return array


def test_squash_fills_the_square() -> None:
    given = preprocess(Image.fromarray(halves(64, 8)), Frame(64, 8, SIDE, ResizePolicy.SQUASH), no_mean(SPEC))
    expected = np.zeros(SIDE)
    expected[SIDE // 2 :] = 1.0
    away_from_the_edge = np.abs(np.arange(SIDE) - (SIDE - 1) / 2) > 1
    assert given.shape == (1, 3, SIDE, SIDE)
    assert np.allclose(given[0][:, :, away_from_the_edge], expected[away_from_the_edge], atol=1e-6)


@pytest.mark.parametrize(("width", "height", "inner"), [(64, 32, (16, 8)), (8, 32, (4, 16)), (33, 1, (16, 1))])
def test_pad_keeps_the_aspect_and_pads_with_zero_after_normalising(
    width: int, height: int, inner: tuple[int, int]
) -> None:
    white = Image.new("RGB", (width, height), "white")
    given = preprocess(white, Frame(width, height, SIDE, ResizePolicy.PAD), SPEC)
    expected = np.zeros((3, SIDE, SIDE))
    for channel in range(3):
        value = (1.0 - (0.1, 0.2, 0.3)[channel]) / (0.5, 0.25, 2.0)[channel]
        expected[channel, : inner[1], : inner[0]] = value
    assert given.dtype == np.float32
    assert np.allclose(given[0], expected, atol=1e-6)


def test_a_graph_that_normalises_inside_is_padded_with_the_colour_that_it_turns_to_zero() -> None:
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    spec = get_spec("sam1:vit_b")
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 40, 3), np.uint8))
    frame = Frame(40, 20, 40, ResizePolicy.PAD)
    given = (preprocess(image, frame, spec)[0].transpose(1, 2, 0) - mean) / std
    assert np.allclose(given[:20], (np.asarray(image) / 255 - mean) / std, atol=1e-5)
    assert np.allclose(given[20:], 0, atol=1e-6)


# model_points


@pytest.mark.parametrize(
    ("frame", "scale"),
    [
        (Frame(32, 8, SIDE, ResizePolicy.SQUASH), (0.5, 2.0)),
        (Frame(32, 8, SIDE, ResizePolicy.PAD), (0.5, 0.5)),
        (Frame(4, 64, SIDE, ResizePolicy.PAD), (0.25, 0.25)),
    ],
)
def test_points_in_model_pixels(frame: Frame, scale: tuple[float, float]) -> None:
    coords, labels = model_points(prompt([[3, 5], [1, 2]], [1, 0]), frame)
    assert coords.tolist() == [[3 * scale[0], 5 * scale[1]], [scale[0], 2 * scale[1]]]
    assert labels.tolist() == [1.0, 0.0]
    assert coords.dtype == labels.dtype == np.float32


def test_a_box_comes_before_the_points() -> None:
    coords, labels = model_points(prompt([[4, 4]], [0], box=[2, 4, 8, 12]), FRAME)
    assert coords.tolist() == [[1.0, 4.0], [4.0, 12.0], [2.0, 4.0]]
    assert labels.tolist() == [2.0, 3.0, 0.0]


def test_a_box_alone_and_nothing_at_all() -> None:
    coords, labels = model_points(prompt(box=[2, 4, 8, 12]), FRAME)
    assert (coords.shape, labels.tolist()) == ((2, 2), [2.0, 3.0])
    coords, labels = model_points(prompt(), FRAME)
    assert (coords.shape, labels.shape) == ((0, 2), (0,))


# select


def test_select_the_best_or_all() -> None:
    logits = np.arange(3 * 4, dtype=np.float32).reshape(3, 2, 2)
    scores = np.array([0.2, 0.9, 0.4], np.float32)
    every = select(logits, scores, multimask=True)
    assert every.logits is logits
    assert every.scores is scores
    best = select(logits, scores, multimask=False)
    assert np.array_equal(logits_of(best), logits[1:2])
    assert best.scores.tolist() == pytest.approx([0.9])


def test_select_from_one() -> None:
    logits, scores = np.zeros((1, 2, 2), np.float32), np.array([0.2], np.float32)
    assert select(logits, scores, multimask=False).logits is logits


def logits_of(decoded: Decoded) -> npt.NDArray[np.float32]:
    assert decoded.logits is not None
    return decoded.logits


# the engine


class FakeDecoder:
    """Answers each prompt with its own first x (before: 0) in the logits and ranks 0.1, 0.3, 0.2."""

    def __init__(self) -> None:
        self.feeds: list[dict[str, npt.NDArray[np.float32]]] = []

    def run(self, names: list[str], feed: dict[str, npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
        assert names == ["masks", "iou_predictions"]
        self.feeds.append(feed)
        count = len(feed["point_coords"])
        logits = np.zeros((count, 3, MASK_SIDE, MASK_SIDE), np.float32)
        if feed["point_coords"].shape[1]:
            logits += feed["point_coords"][:, 0, 0][:, None, None, None]
        return [logits, np.tile(np.array([0.1, 0.3, 0.2], np.float32), (count, 1))]


class FakeEncoder:
    def __init__(self) -> None:
        self.feeds: list[dict[str, npt.NDArray[np.float32]]] = []

    def run(self, names: list[str], feed: dict[str, npt.NDArray[np.float32]]) -> list[npt.NDArray[np.float32]]:
        self.feeds.append(feed)
        return [np.full((1, 2), index, np.float32) for index, _ in enumerate(names)]


@dataclasses.dataclass
class Built:
    engine: OnnxEngine
    encoder: FakeEncoder
    decoder: FakeDecoder

    def decode(self, prompts: list[ObjectPrompt], *, multimask: bool = False) -> list[Decoded]:
        return self.engine.decode([Row(EMBEDDING, prompt, multimask) for prompt in prompts])


def build(monkeypatch: pytest.MonkeyPatch, max_batch: int = 8) -> Built:
    sessions: dict[str, Any] = {"encoder.onnx": FakeEncoder(), "decoder.onnx": FakeDecoder()}
    monkeypatch.setattr(engine_module, "open_session", lambda path, _threads, **_options: sessions[path.name])
    engine = OnnxEngine(SPEC, Path("encoder.onnx"), Path("decoder.onnx"), max_batch=max_batch)
    return Built(engine, sessions["encoder.onnx"], sessions["decoder.onnx"])


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Built:
    return build(monkeypatch)


def test_encode(built: Built) -> None:
    image = picture(40, 20)
    (embedding,) = built.engine.encode([built.engine.prepare(encoded(image))])
    assert embedding.frame == Frame(40, 20, SIDE, SPEC.resize)
    assert {name: float(embedding.array(name)[0, 0]) for name in ("embed", "more")} == {"embed": 0.0, "more": 1.0}
    assert embedding.nbytes == 16
    (feed,) = built.encoder.feeds
    assert list(feed) == ["image"]
    assert np.array_equal(feed["image"], preprocess(image, embedding.frame, SPEC))


def test_what_the_decoder_gets(built: Built) -> None:
    built.decode([prompt([[4, 6]]), prompt([[8, 2]], [0])])
    (feed,) = built.decoder.feeds
    assert feed["embed"] is EMBEDDING.tensors["embed"]
    assert feed["point_coords"].tolist() == [[[2.0, 6.0]], [[4.0, 2.0]]]
    assert feed["point_labels"].tolist() == [[1.0], [0.0]]
    assert feed["mask_input"].shape == (2, 1, MASK_SIDE, MASK_SIDE)
    assert not feed["mask_input"].any()
    assert feed["has_mask_input"].tolist() == [0.0]
    assert all(tensor.dtype == np.float32 for tensor in feed.values())


def test_prompts_share_a_run_only_with_their_like_and_keep_their_order(built: Built) -> None:
    mask = np.ones((MASK_SIDE, MASK_SIDE), np.float32)
    prompts = [
        prompt([[2, 0]]),
        prompt([[4, 0], [0, 0]]),
        prompt([[6, 0]]),
        prompt(box=[8, 0, 9, 1]),
        prompt([[10, 0]], mask=mask),
        prompt([[12, 0], [0, 0]]),
        prompt([[1, 1]], box=[14, 0, 15, 1]),
        prompt([[16, 0]], mask=mask),
        prompt(mask=mask),
    ]
    answers = built.decode(prompts)
    firsts = [float(logits_of(answer)[0, 0, 0]) for answer in answers]
    assert firsts == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0]
    runs = [(feed["point_coords"].shape[:2], float(feed["has_mask_input"][0])) for feed in built.decoder.feeds]
    assert sorted(runs) == [((1, 0), 1.0), ((1, 2), 0.0), ((1, 3), 0.0), ((2, 1), 0.0), ((2, 1), 1.0), ((2, 2), 0.0)]


@pytest.mark.parametrize(("max_batch", "sizes"), [(1, [1] * 7), (3, [3, 3, 1]), (7, [7]), (8, [7])])
def test_the_largest_batch(max_batch: int, sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(monkeypatch, max_batch)
    answers = built.decode([prompt([[2 * index, 0]]) for index in range(7)], multimask=True)
    assert [len(feed["point_coords"]) for feed in built.decoder.feeds] == sizes
    assert [float(logits_of(answer)[0, 0, 0]) for answer in answers] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


def test_multimask_and_the_best(built: Built) -> None:
    (every,) = built.decode([prompt([[2, 0]])], multimask=True)
    assert logits_of(every).shape == (3, MASK_SIDE, MASK_SIDE)
    assert every.scores.tolist() == pytest.approx([0.1, 0.3, 0.2])
    (best,) = built.decode([prompt([[2, 0]])])
    assert logits_of(best).shape == (1, MASK_SIDE, MASK_SIDE)
    assert best.scores.tolist() == pytest.approx([0.3])


def test_a_mask_is_clipped_and_left_as_it_was(built: Built) -> None:
    mask = np.linspace(-20, 20, MASK_SIDE * MASK_SIDE, dtype=np.float32).reshape(MASK_SIDE, MASK_SIDE)
    before = mask.copy()
    other = np.full((MASK_SIDE, MASK_SIDE), 2.0, np.float32)
    built.decode([prompt([[2, 0]], mask=mask), prompt([[2, 0]], mask=other)])
    (feed,) = built.decoder.feeds
    assert feed["has_mask_input"].tolist() == [1.0]
    assert np.array_equal(feed["mask_input"][0, 0], np.minimum(np.maximum(before, -5), 5))
    assert np.array_equal(feed["mask_input"][1, 0], other)
    assert np.array_equal(mask, before)


def test_no_prompts_no_run(built: Built) -> None:
    assert built.decode([]) == []
    assert built.decoder.feeds == []


def test_warm_up_runs_the_decoder_once_on_nothing(built: Built) -> None:
    built.engine.warm_up()
    (feed,) = built.decoder.feeds
    assert feed["embed"].shape == (1, 2)
    assert feed["more"].shape == (1, 3)
    assert feed["point_coords"].shape == (1, 1, 2)
    assert built.encoder.feeds == []


@pytest.mark.parametrize("content", [b"", b"this is no graph"])
def test_a_graph_that_does_not_load_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(SetupError, match=r"broken\.onnx does not load"):
        open_session(path)


def test_a_graph_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"missing\.onnx does not load"):
        open_session(tmp_path / "missing.onnx")


@pytest.mark.parametrize(
    ("available", "device", "tensorrt", "chosen"),
    [
        (["CPU"], "auto", False, ["CPU"]),
        (["CUDA", "CPU"], "auto", False, ["CUDA", "CPU"]),
        (["CUDA", "CPU"], "cpu", False, ["CPU"]),
        (["CUDA", "CPU"], "cuda", False, ["CUDA", "CPU"]),
        (["Tensorrt", "CUDA", "CPU"], "auto", False, ["CUDA", "CPU"]),
        (["Tensorrt", "CUDA", "CPU"], "cuda", True, ["Tensorrt", "CUDA", "CPU"]),
    ],
)
def test_where_graphs_run(
    available: list[str], device: str, tensorrt: bool, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [f"{name}ExecutionProvider" for name in available]
    monkeypatch.setattr(engine_module.onnxruntime, "get_available_providers", lambda: whole)
    monkeypatch.setattr(engine_module, "_has_driver", lambda: True)
    expected = tuple(f"{name}ExecutionProvider" for name in chosen)
    assert choose_providers(device, tensorrt=tensorrt) == expected


def test_an_onnxruntime_for_gpus_runs_on_the_cores_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(engine_module.onnxruntime, "get_available_providers", lambda: known)
    monkeypatch.setattr(engine_module, "_has_driver", lambda: False)
    assert choose_providers("auto") == ("CPUExecutionProvider",)
    assert choose_providers("cuda") == tuple(known), "who insists shall be told why it does not work"


@pytest.mark.parametrize(
    ("device", "tensorrt", "word"), [("cuda", False, "onnxruntime-gpu"), ("auto", True, "TensorRT")]
)
def test_what_this_onnxruntime_does_not_have(
    device: str, tensorrt: bool, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module.onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(SetupError, match=word):
        choose_providers(device, tensorrt=tensorrt)


def test_what_nobody_waits_for_is_decoded_in_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    built = build(monkeypatch)
    second = FakeDecoder()

    def open_second(path: Path, _threads: int, **_options: Any) -> FakeDecoder:
        opened.append(path.name)
        return second

    monkeypatch.setattr(engine_module, "open_session", open_second)
    rows = [Row(EMBEDDING, prompt([[2, 0]])), Row(EMBEDDING, prompt([[4, 0]]))]
    for _ in range(2):
        beside = built.engine.decode_beside(rows)
    assert opened == ["decoder.onnx"], "when it is first needed, once"
    assert len(second.feeds) == 2
    assert built.decoder.feeds == []
    assert [logits_of(answer).tolist() for answer in beside] == [
        logits_of(answer).tolist() for answer in built.engine.decode(rows)
    ]

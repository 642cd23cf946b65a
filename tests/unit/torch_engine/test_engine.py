"""The torch engine on a CPU, end to end, against the ONNX engine on graphs of the same network."""

from __future__ import annotations

import copy
import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from tests.unit.engines.test_onnx import prompt
from tests.unit.export.families import EACH_FAMILY, FAMILIES
from tests.unit.export.small import SmallFactory, small_network, small_spec
from triton_sam.core import masks
from triton_sam.core.geometry import Frame
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Decoded, Embedding, Row
from triton_sam.engines.onnx import OnnxEngine
from triton_sam.engines.torch.engine import TorchEngine
from triton_sam.engines.torch.options import TorchOptions
from triton_sam.errors import InternalError

pytestmark = pytest.mark.torch

CPU = TorchOptions(torch.device("cpu"))
SIZES = ((300, 200), (90, 310))


class Engines(NamedTuple):
    torch: TorchEngine
    onnx: OnnxEngine
    #: The same images, encoded by either.
    images: list[tuple[Embedding, Embedding]]


def photograph(size: tuple[int, int], seed: int = 0, form: str = "PNG") -> EncodedImage:
    """Smooth blobs: a resize of noise would compare resizes, not engines."""
    width, height = size
    noise = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(buffer, form)
    return EncodedImage(buffer.getvalue(), max_bytes=10**7, max_pixels=10**7)


@pytest.fixture(scope="module", params=EACH_FAMILY)
def engines(request: pytest.FixtureRequest, small: SmallFactory) -> Engines:
    made = small(request.param)
    onnx = OnnxEngine(made.spec, made.encoder_file, made.decoder_file, threads=1)
    engine = TorchEngine(made.spec, copy.deepcopy(made.network), CPU)
    engine.warm_up()
    files = [photograph(size, seed) for seed, size in enumerate(SIZES)]
    encoded = [(engine.encode([engine.prepare(file)])[0], onnx.encode([onnx.prepare(file)])[0]) for file in files]
    return Engines(engine, onnx, encoded)


def close(value: Any, reference: Any, share: float) -> None:
    assert value.shape == reference.shape
    assert np.abs(value - reference).max() <= share * reference.std()


def logits_of(decoded: Decoded) -> npt.NDArray[np.float32]:
    assert decoded.logits is not None
    return decoded.logits


def test_the_same_embedding(engines: Engines) -> None:
    """Pillow rounds to whole numbers between its two passes over an image, torch does not: half a step of 255."""
    for (mine, other), (width, height) in zip(engines.images, SIZES, strict=True):
        assert mine.frame == other.frame == Frame(width, height, engines.torch.spec.side, engines.torch.spec.resize)
        for name, shape in engines.torch.spec.encoder.outputs:
            array = mine.array(name)
            assert array.shape == shape
            assert array.dtype == np.float32
            close(array, other.array(name), 0.1)
            assert np.corrcoef(array.ravel(), other.array(name).ravel())[0, 1] > 0.9995


def adopted(engines: Engines) -> list[Embedding]:
    """The ONNX engine's own embeddings, so that only the decoders are compared."""
    names = [name for name, _ in engines.torch.spec.encoder.outputs]
    return [
        engines.torch.adopt(other.frame, {name: other.array(name) for name in names}) for _, other in engines.images
    ]


def test_an_adopted_embedding_is_the_same_again(engines: Engines) -> None:
    for mine, (_, other) in zip(adopted(engines), engines.images, strict=True):
        for name, _ in engines.torch.spec.encoder.outputs:
            assert np.array_equal(mine.array(name), other.array(name))
        assert mine.nbytes == other.nbytes


def some_mask(engines: Engines) -> npt.NDArray[np.float32]:
    side = engines.torch.spec.decoder.mask_side
    return np.random.default_rng(5).normal(0, 20, (side, side)).astype(np.float32)


def mixed_prompts(engines: Engines) -> list[tuple[int, ObjectPrompt, bool]]:
    """(image, prompt, multimask): more rows than fit into one run, of all kinds, of both images."""
    many = [[float(3 * index), float(2 * index)] for index in range(20)]
    kinds = [
        prompt([[10, 20]]),
        prompt([[40, 50], [80, 30]], [1, 0]),
        prompt(box=[5, 6, 70, 90]),
        prompt([[30, 30]], box=[5, 6, 70, 90]),
        prompt(many),
        prompt([*many, *many]),
        prompt([[12, 25]], mask=some_mask(engines)),
    ]
    return [(image, kind, multimask) for multimask in (False, True) for kind in kinds for image in (0, 1)]


def test_a_mixed_batch_equals_the_other_engine_row_by_row(engines: Engines) -> None:
    prompts = mixed_prompts(engines)
    mine = adopted(engines)
    answers = engines.torch.decode([Row(mine[image], kind, multimask) for image, kind, multimask in prompts])
    assert len(answers) == len(prompts) == 28
    for (image, kind, multimask), answer in zip(prompts, answers, strict=True):
        (expected,) = engines.onnx.decode([Row(engines.images[image][1], kind, multimask)])
        close(logits_of(answer), logits_of(expected), 1e-4)
        assert answer.scores.tolist() == pytest.approx(expected.scores.tolist(), abs=1e-4)
        assert answer.packed is None


def test_only_a_mask(engines: Engines) -> None:
    row = Row(adopted(engines)[0], prompt(mask=some_mask(engines)))
    (expected,) = engines.onnx.decode([Row(engines.images[0][1], row.prompt)])
    close(logits_of(engines.torch.decode([row])[0]), logits_of(expected), 1e-4)


@pytest.mark.parametrize("multimask", [False, True])
def test_pixels_are_those_that_the_host_would_make(engines: Engines, multimask: bool) -> None:
    mine = adopted(engines)
    rows = [Row(mine[image], prompt([[30, 40]]), multimask, logits=True, pixels=True) for image in (0, 1, 0)]
    for row, answer in zip(rows, engines.torch.decode(rows), strict=True):
        frame = row.embedding.frame
        assert answer.packed is not None
        assert answer.packed.shape == (len(answer.scores), frame.height, -(-frame.width // 8))
        unpacked = masks.unpack_bits(answer.packed, frame.width)
        expected = np.stack([masks.full_size(logits, frame) for logits in logits_of(answer)])
        # At the very zero the two resizes may round to either side.
        assert (unpacked != expected).mean() < 1e-4
        assert 0.01 < expected.mean() < 0.99, "a mask of nothing or everything would prove nothing"


def test_logits_stay_on_the_device_where_nobody_asked(engines: Engines) -> None:
    (answer,) = engines.torch.decode([Row(adopted(engines)[0], prompt([[3, 4]]), logits=False, pixels=True)])
    assert answer.logits is None
    assert answer.packed is not None


def test_no_rows(engines: Engines) -> None:
    assert engines.torch.decode([]) == []


def test_an_embedding_in_another_frame(engines: Engines) -> None:
    first = engines.images[0][0]
    other = first.framed(Frame(64, 48, engines.torch.spec.side, engines.torch.spec.resize))
    (answer,) = engines.torch.decode([Row(other, prompt([[3, 4]]), pixels=True)])
    assert answer.packed is not None
    assert answer.packed.shape == (1, 48, 8)
    assert first.frame.width == 300


def test_several_images_at_once_are_each_as_alone() -> None:
    spec = small_spec("sam2.1:tiny")
    engine = TorchEngine(spec, small_network(spec), TorchOptions(torch.device("cpu"), encode_batch=4))
    engine.warm_up()
    files = [photograph((120, 80), seed, "JPEG") for seed in range(3)]
    together = engine.encode([engine.prepare(file) for file in files])
    for file, embedding in zip(files, together, strict=True):
        (alone,) = engine.encode([engine.prepare(file)])
        name = spec.encoder.embedding
        close(embedding.array(name), alone.array(name), 1e-4)
    assert np.abs(together[0].array(name) - together[1].array(name)).max() > 0.1


@pytest.mark.part("exports")  # where a processor has no arithmetic in halves it takes ten times as long
@pytest.mark.parametrize("model_id", FAMILIES)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_halves_are_near_the_whole(model_id: str, half: torch.dtype) -> None:
    spec = small_spec(model_id)
    network = small_network(spec)
    point, file = prompt([[30, 40]]), photograph((120, 80))

    def logits(options: TorchOptions) -> npt.NDArray[np.float32]:
        engine = TorchEngine(spec, copy.deepcopy(network), options)
        engine.warm_up()
        (embedding,) = engine.encode([engine.prepare(file)])
        (answer,) = engine.decode([Row(embedding, point, multimask=True)])
        return logits_of(answer)

    whole = logits(CPU)
    near = logits(TorchOptions(torch.device("cpu"), half, torch.float16))
    assert np.corrcoef(whole.ravel(), near.ravel())[0, 1] > (0.9999 if half is torch.float16 else 0.998)


def test_numbers_out_of_range_are_told() -> None:
    spec = small_spec("sam2.1:tiny")
    network = small_network(spec)
    network.no_memory_embedding.data += 1e5  # more than float16 holds
    engine = TorchEngine(spec, network, TorchOptions(torch.device("cpu"), torch.float32, torch.float16))
    engine.warm_up()
    with pytest.raises(InternalError, match="TRITON_SAM_TORCH_DTYPE=float32"):
        engine.encode([engine.prepare(photograph((120, 80)))])


def test_onnx_with_embeddings_that_stay_on_the_device(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that a GPU takes, with the CPU as the device: bound outputs, handed to the decoder as they are."""
    monkeypatch.setattr(engines.onnx, "_device", "cpu")
    file = photograph(SIZES[0])
    (bound,) = engines.onnx.encode([engines.onnx.prepare(file)])
    plain = engines.images[0][1]
    assert type(bound) is not type(plain)
    assert bound.nbytes == plain.nbytes
    for name, _ in engines.onnx.spec.encoder.outputs:
        assert np.array_equal(bound.array(name), plain.array(name))
    sent_back = engines.onnx.adopt(bound.frame, {n: bound.array(n) for n, _ in engines.onnx.spec.encoder.outputs})
    for kind in (prompt([[10, 20]]), prompt(box=[5, 6, 70, 90]), prompt([[12, 25]], mask=some_mask(engines))):
        expected, *found = engines.onnx.decode(
            [Row(each, kind) for each in (plain, bound, sent_back.framed(plain.frame))]
        )
        for answer in found:
            assert np.array_equal(logits_of(answer), logits_of(expected))

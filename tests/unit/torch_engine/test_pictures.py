"""Resizing on the device against Pillow's, and packing against the host's."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.unit.export.small import small_spec
from triton_sam.core import masks
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.core.images import EncodedImage
from triton_sam.engines.inputs import preprocess
from triton_sam.engines.torch import pictures
from triton_sam.engines.torch.packing import pack_bits, packed_masks
from triton_sam.engines.torch.pictures import PictureReader
from triton_sam.errors import InvalidInput

pytestmark = pytest.mark.torch


def encoded(picture: Image.Image, form: str = "PNG", **options: object) -> EncodedImage:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return EncodedImage(buffer.getvalue(), max_bytes=10**8, max_pixels=10**8)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def reader(model_id: str) -> PictureReader:
    return PictureReader(small_spec(model_id), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("model_id", ["sam1:vit_b", "sam2.1:tiny", "sam3:full"])
@pytest.mark.parametrize("size", [(600, 400), (97, 1031), (256, 256), (224, 224), (1, 5)])
def test_as_pillow_resizes(model_id: str, size: tuple[int, int]) -> None:
    spec = small_spec(model_id)
    picture = noise(*size)
    frame, pixels = reader(model_id).read(encoded(picture))
    assert frame == Frame(*size, spec.side, spec.resize)
    expected = preprocess(picture, frame, spec)[0]  # in [0,1]: its graph normalises, and pads with what becomes zero
    scale = pixels.numpy() - (expected - MEAN[model_id]) / STD[model_id]
    # Pillow's weights have fewer digits: what lies between two numbers may fall to either, in each of two passes.
    steps = np.abs(scale) * 255 * STD[model_id]
    assert steps.max() <= 2.01
    assert (steps > 0.5).mean() < 0.1  # noise with sides of 256 -> 224 has many such; photographs have none


HALF = np.full((3, 1, 1), 0.5, np.float32)
IMAGENET = (
    np.array((0.485, 0.456, 0.406), np.float32).reshape(3, 1, 1),
    np.array((0.229, 0.224, 0.225), np.float32).reshape(3, 1, 1),
)
MEAN = {"sam1:vit_b": IMAGENET[0], "sam2.1:tiny": IMAGENET[0], "sam3:full": HALF}
STD = {"sam1:vit_b": IMAGENET[1], "sam2.1:tiny": IMAGENET[1], "sam3:full": HALF}


def test_any_kind_of_picture_is_read() -> None:
    grey = reader("sam2.1:tiny").read(encoded(noise(30, 20).convert("L")))[1]
    assert torch.equal(grey, reader("sam2.1:tiny").read(encoded(noise(30, 20).convert("L").convert("RGB")))[1])
    turned = encoded(noise(30, 20), "JPEG", exif=_turned_exif())
    assert turned.size == (20, 30)
    assert not turned.is_plain_jpeg
    assert reader("sam2.1:tiny").read(turned)[0].width == 20


def _turned_exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_which_files_any_decoder_reads_alike() -> None:
    assert encoded(noise(9, 9), "JPEG").is_plain_jpeg
    assert encoded(noise(9, 9).convert("L"), "JPEG").is_plain_jpeg
    assert not encoded(noise(9, 9).convert("CMYK"), "JPEG").is_plain_jpeg
    assert not encoded(noise(9, 9)).is_plain_jpeg


def test_a_damaged_file_is_told_in_words() -> None:
    whole = encoded(noise(64, 64), "JPEG")
    cut = EncodedImage(bytes(whole.data)[:700], max_bytes=10**6, max_pixels=10**6)
    with pytest.raises(InvalidInput, match="damaged or cut short"):
        reader("sam2.1:tiny").read(cut)


class Broken:
    """A GPU decoder that knows no file."""

    def __call__(self, data: bytes) -> torch.Tensor:
        raise RuntimeError("unsupported")


def test_what_the_gpu_cannot_decode_is_decoded_here() -> None:
    file = encoded(noise(50, 40), "JPEG")
    by_pillow = reader("sam2.1:tiny")
    with_gpu = reader("sam2.1:tiny")
    with_gpu._decode_jpeg = Broken()
    assert torch.equal(by_pillow.read(file)[1], with_gpu.read(file)[1])


@pytest.mark.parametrize("width", [1, 7, 8, 9, 64, 65])
def test_bits_are_packed_as_numpy_packs_them(width: int) -> None:
    mask = np.random.default_rng(width).random((3, 5, width)) > 0.5
    assert np.array_equal(pack_bits(torch.from_numpy(mask)).numpy(), np.packbits(mask, axis=2))


@given(
    width=st.integers(1, 700),
    height=st.integers(1, 700),
    policy=st.sampled_from(list(ResizePolicy)),
    seed=st.integers(0, 100),
)
def test_masks_as_the_host_makes_them(width: int, height: int, policy: ResizePolicy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 5, (2, 16, 16)).astype(np.float32).repeat(4, axis=1).repeat(4, axis=2)
    frame = Frame(width, height, 256, policy)
    packed = packed_masks(torch.from_numpy(logits), frame).numpy()
    unpacked = masks.unpack_bits(packed, width)
    expected = np.stack([masks.full_size(plane, frame) for plane in logits])
    assert (unpacked != expected).mean() < 2e-3


def test_many_masks_are_enlarged_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton_sam.engines.torch import packing

    logits = torch.randn(5, 16, 16, generator=torch.Generator().manual_seed(3))
    frame = Frame(40, 30, 256, ResizePolicy.SQUASH)
    whole = packed_masks(logits, frame)
    monkeypatch.setattr(packing, "_AT_A_TIME", 40 * 30 * 2)
    assert torch.equal(packed_masks(logits, frame), whole)


def test_pillow_decodes_jpegs_where_the_gpu_shall_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "gpu_jpeg_decoder", lambda device: lambda data: pytest.fail("asked the GPU"))
    spec, cpu = small_spec("sam2:tiny"), torch.device("cpu")
    file = encoded(noise(64, 48), "JPEG")
    frame, _ = PictureReader(spec, cpu, torch.float32, gpu_jpeg=False).read(file)
    assert (frame.width, frame.height) == (64, 48)
    with pytest.raises(pytest.fail.Exception):
        PictureReader(spec, cpu, torch.float32).read(file)

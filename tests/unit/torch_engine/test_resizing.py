"""Pictures in the model's square: the kernel for GPUs in numpy and interpreted, and when it is used."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.export.small import small_spec
from tests.unit.torch_engine.interpreter import interpreted
from tests.unit.torch_engine.numpy_triton import kernel_in_numpy
from tests.unit.torch_engine.resize_kinds import KINDS, Kind, picture_of, steps_off
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch import resizing
from triton_sam.engines.torch.pictures import PictureReader
from triton_sam.engines.torch.resizing import kernel_resizes, normal_of, resized, resized_by_kernel

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")
#: Noise has many values between two numbers, and CPUs add up in another order than GPUs.
FEW = 5e-3


@pytest.fixture
def in_numpy(monkeypatch: pytest.MonkeyPatch) -> Any:
    kernel = kernel_in_numpy("triton_sam.engines.torch.resize_kernel", monkeypatch)
    kernel._BLOCK = type(kernel._BLOCK)(1000)  # no divisor of any size here; small blocks are slow in numpy
    return kernel


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_kernel_computes_what_torch_does(kind: Kind, in_numpy: Any) -> None:
    largest, share = steps_off(kind, in_numpy)
    assert largest <= (1.01 if kind.dtype is not torch.bfloat16 else 2.01)
    assert share <= FEW


@pytest.fixture(scope="module")
def off() -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = interpreted("resize_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_the_interpreted_kernel_gives_what_torch_gives(off: dict[str, tuple[float, float]], kind: Kind) -> None:
    largest, share = off[kind.name]
    assert largest <= (1.01 if kind.dtype is not torch.bfloat16 else 2.01)
    assert share <= FEW


def test_the_kernel_is_for_pictures_that_it_can_count(in_numpy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = torch.empty(3, 1, 1, dtype=torch.uint8)
    assert in_numpy.can_resize(picture.expand(3, 8 * 64, 8 * 64), 64, 64)
    assert not in_numpy.can_resize(picture.expand(3, 8 * 64 + 1, 8 * 64), 64, 64)
    far = torch.empty_strided((3, 64, 64), (2**30, 64, 1), dtype=torch.uint8, device="meta")
    assert not in_numpy.can_resize(far, 64, 64)
    monkeypatch.setattr(resizing, "_kernel", in_numpy)
    normal = normal_of(small_spec("sam2.1:tiny").architecture, CPU)
    large = Frame(700, 700, 32, ResizePolicy.SQUASH)
    assert resized_by_kernel(picture.expand(3, 700, 700), large, normal, torch.float32) is None


class _Kernel:
    """Torch's steps in the place of the kernel, with ``wrong`` values one or ``steps`` steps off."""

    def __init__(self, wrong: int = 0, steps: float = 1.0) -> None:
        self._wrong = wrong
        self._steps = steps
        self.calls = 0

    def can_resize(self, picture: Tensor, height: int, width: int) -> bool:
        return picture.shape[1] < 1100

    def resize(
        self,
        picture: Tensor,
        height: int,
        width: int,
        side: int,
        normal: Tensor,
        dtype: torch.dtype,
        *,
        rows_first: bool,
    ) -> Tensor:
        self.calls += 1
        policy = ResizePolicy.SQUASH if height == width == side else ResizePolicy.PAD
        made = resized(picture, Frame(picture.shape[2], picture.shape[1], side, policy), normal, dtype).contiguous()
        made.view(-1)[: self._wrong] += self._steps * normal[0, 0]
        return made


class _Broken(_Kernel):
    def resize(self, *_: object, **__: object) -> Tensor:
        raise ValueError("no C compiler")


class _Choosy(_Kernel):
    def can_resize(self, *_: object) -> bool:
        return False


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("kernel", "why"),
    [
        (_Kernel(), None),
        (_Kernel(wrong=100), None),
        (_Kernel(wrong=300), "0.15 % of 384 x 256 pixels differ, 0 of them by much"),
        (_Kernel(wrong=2, steps=9.0), "2 of them by much"),
        (_Broken(), "no C compiler"),
        (_Choosy(), "refuses 384 x 256"),
        (None, None),
    ],
)
def test_a_kernel_that_fails_its_trial_is_told_and_not_used(
    kernel: _Kernel | None,
    why: str | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(resizing, "_kernel", kernel)
    normal = normal_of(small_spec("sam2.1:tiny").architecture, CPU)
    assert kernel_resizes(normal, dtype) is (why is None and kernel is not None)
    assert re.search(re.escape(why or ""), caplog.text)
    assert len(caplog.records) == (why is not None)


def test_the_reader_uses_the_kernel_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec("sam2.1:tiny")
    reader = PictureReader(spec, CPU, torch.float32)
    kernel = _Kernel()
    monkeypatch.setattr(resizing, "_kernel", kernel)
    reader.use_kernel()
    assert not reader.may_use_kernel
    picture = picture_of(KINDS[0])
    frame = Frame(picture.shape[2], picture.shape[1], spec.side, spec.resize)
    by_torch = reader.fit(picture, frame)
    assert kernel.calls == 0  # on a CPU it is never asked

    monkeypatch.setattr(PictureReader, "may_use_kernel", True)
    reader.use_kernel()
    tried = kernel.calls
    assert torch.equal(reader.fit(picture, frame), by_torch)
    assert kernel.calls == tried + 1
    high = torch.zeros(3, 1200, 2, dtype=torch.uint8)
    assert reader.fit(high, Frame(2, 1200, spec.side, spec.resize)).shape == (3, spec.side, spec.side)
    assert kernel.calls == tried + 1

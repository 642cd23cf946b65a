"""Packed masks: the kernel for GPUs, interpreted, and who is asked for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.torch_engine.interpreter import interpreted
from tests.unit.torch_engine.pack_kinds import KINDS
from triton_sam.core.geometry import Frame, ResizePolicy
from triton_sam.engines.torch import packing
from triton_sam.engines.torch.packing import kernel_packs, packed_by_kernel, packed_masks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def off() -> dict[str, int]:
    found: dict[str, int] = interpreted("pack_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_the_kernel_gives_what_torch_gives(off: dict[str, int], name: str) -> None:
    assert off[name] == 0


class _Kernel:
    """Torch's steps in the place of the kernel, with ``wrong`` bits turned over."""

    MOST_BYTES = 10**6

    def __init__(self, wrong: int = 0) -> None:
        self._wrong = wrong

    def pack(self, logits: Tensor, height: int, width: int, take: Any = None) -> Any:
        packed = packed_masks(logits.flatten(0, 1), Frame(width, height, 64, ResizePolicy.SQUASH)).numpy()
        packed.reshape(-1)[: self._wrong] ^= 128
        return packed.reshape(*logits.shape[:2], *packed.shape[1:])


class _Broken(_Kernel):
    def pack(self, *_: object) -> Any:
        raise ValueError("no C compiler")


def _on_cpu(make: Callable[..., Tensor], *args: float, device: torch.device) -> Tensor:
    return make(*args)


@pytest.mark.parametrize(
    ("kernel", "why"), [(_Kernel(), None), (_Broken(), "no C compiler"), (_Kernel(wrong=9), "bytes differ")]
)
def test_a_kernel_that_fails_its_trial_is_told_and_not_used(
    kernel: _Kernel, why: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packing, "_kernel", kernel)
    monkeypatch.setattr(torch, "linspace", partial(_on_cpu, torch.linspace))
    assert kernel_packs(torch.device("cuda")) is (why is None)
    assert (why or "") in caplog.text


def test_without_a_gpu_the_kernel_is_not_tried() -> None:
    assert not kernel_packs(torch.device("cpu"))


def test_the_kernel_is_for_images_in_one_step_that_it_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_kernel", _Kernel())
    logits = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    squashed, padded = (Frame(40, 30, 64, policy) for policy in (ResizePolicy.SQUASH, ResizePolicy.PAD))
    packed = packed_by_kernel(logits, squashed)
    assert packed is not None
    assert np.array_equal(packed.reshape(6, 30, 5), packed_masks(logits.flatten(0, 1), squashed).numpy())
    assert packed_by_kernel(logits, padded) is None
    assert packed_by_kernel(logits, Frame(4000, 3000, 64, ResizePolicy.SQUASH)) is None
    monkeypatch.setattr(packing, "_kernel", None)
    assert packed_by_kernel(logits, squashed) is None

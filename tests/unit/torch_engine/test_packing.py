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
from triton_sam.core.masks import unpack_bits
from triton_sam.engines.torch import packing
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.packing import kernel_packs, packed_by_kernel, packed_masks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def off() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = interpreted("pack_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
@pytest.mark.parametrize("form", ["rows", "columns"])
def test_the_kernel_gives_what_torch_gives(off: dict[str, dict[str, int]], name: str, form: str) -> None:
    assert off[form][name] == 0


class _Kernel:
    """Torch's steps in the place of the kernel, with ``wrong`` bits turned over in one or both forms."""

    MOST_BYTES = 10**6

    def __init__(self, wrong: int = 0, wrong_columns: int | None = None) -> None:
        self._wrong = {False: wrong, True: wrong if wrong_columns is None else wrong_columns}

    def pack(self, logits: Tensor, height: int, width: int, take: Any = None, *, columns: bool = False) -> Any:
        frame = Frame(width, height, 64, ResizePolicy.SQUASH)
        packed = packed_masks(logits.flatten(0, 1), frame, columns=columns).numpy()
        packed.reshape(-1)[: self._wrong[columns]] ^= 128
        return packed.reshape(*logits.shape[:2], *packed.shape[1:])


class _Broken(_Kernel):
    def pack(self, *_: object, **__: object) -> Any:
        raise ValueError("no C compiler")


def _on_cpu(make: Callable[..., Tensor], *args: float, device: torch.device) -> Tensor:
    return make(*args)


@pytest.mark.parametrize(
    ("kernel", "why"), [(_Kernel(), None), (_Broken(), "no C compiler"), (_Kernel(wrong=9), "bytes differ")]
)
@pytest.mark.parametrize("columns", [False, True])
def test_a_kernel_that_fails_its_trial_is_told_and_not_used(
    kernel: _Kernel, why: str | None, columns: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packing, "_kernel", kernel)
    monkeypatch.setattr(torch, "linspace", partial(_on_cpu, torch.linspace))
    assert kernel_packs(torch.device("cuda"), columns=columns) is (why is None)
    assert (why or "") in caplog.text


@pytest.mark.parametrize(
    ("kernel", "has_rows", "has_columns"),
    [
        (_Kernel(), True, True),
        (_Kernel(wrong=0, wrong_columns=9), True, False),
        (_Kernel(wrong=9, wrong_columns=0), False, False),
    ],
)
def test_columns_are_packed_only_by_a_kernel_that_passed_its_trial(
    kernel: _Kernel, has_rows: bool, has_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the engine packs rows for those who need columns."""
    monkeypatch.setattr(packing, "_kernel", kernel)
    monkeypatch.setattr(torch, "linspace", partial(_on_cpu, torch.linspace))
    fetcher = Fetcher(torch.device("cuda"))
    fetcher.warm_up()
    assert (fetcher._by_kernel, fetcher._packs_columns) == (has_rows, has_columns)


def test_without_a_gpu_the_kernel_is_not_tried() -> None:
    assert not kernel_packs(torch.device("cpu"))


def test_the_kernel_is_for_images_in_one_step_that_it_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_kernel", _Kernel())
    logits = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))
    squashed, padded = (Frame(40, 30, 64, policy) for policy in (ResizePolicy.SQUASH, ResizePolicy.PAD))
    packed = packed_by_kernel(logits, squashed)
    assert packed is not None
    assert np.array_equal(packed.reshape(6, 30, 5), packed_masks(logits.flatten(0, 1), squashed).numpy())
    columns = packed_by_kernel(logits, squashed, columns=True)
    assert columns is not None
    expected = packed_masks(logits.flatten(0, 1), squashed, columns=True).numpy()
    assert np.array_equal(columns.reshape(6, 40, 4), expected)
    assert packed_by_kernel(logits, padded) is None
    assert packed_by_kernel(logits, padded, columns=True) is None
    assert packed_by_kernel(logits, Frame(4000, 3000, 64, ResizePolicy.SQUASH)) is None
    monkeypatch.setattr(packing, "_kernel", None)
    assert packed_by_kernel(logits, squashed) is None


@pytest.mark.parametrize("policy", list(ResizePolicy))
@pytest.mark.parametrize(("width", "height"), [(37, 29), (24, 16), (5, 65), (1, 1), (70, 7)])
def test_columns_have_the_pixels_of_rows(policy: ResizePolicy, width: int, height: int) -> None:
    """Spare bits are like the last pixel."""
    frame = Frame(width, height, 64, policy)
    logits = torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(5))
    full = unpack_bits(packed_masks(logits, frame).numpy(), width)
    columns = packed_masks(logits, frame, columns=True).numpy()
    assert columns.shape == (3, width, -(-height // 8))
    padded = np.pad(full, ((0, 0), (0, -height % 8), (0, 0)), mode="edge")
    assert np.array_equal(columns, np.packbits(padded.swapaxes(1, 2), axis=2))

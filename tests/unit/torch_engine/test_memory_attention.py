"""Attention to memories: the kernels for GPUs, interpreted, and torch's own operators, against plain attention."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from tests.unit.torch_engine.interpreter import interpreted
from tests.unit.torch_engine.memory_attention_kinds import KINDS
from triton_sam.engines.torch import tracking_attention
from triton_sam.engines.torch.tracking_attention import attend
from triton_sam.engines.torch.tracking_trial import kernel_tracks

pytestmark = pytest.mark.torch

_LIMITS = {"float32": 1e-5, "float16": 5e-3}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = interpreted("memory_attention_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize("name", [*(kind.name for kind in KINDS), "keys"])
def test_the_kernels_give_what_is_defined(errors: dict[str, dict[str, float]], name: str, dtype: str) -> None:
    assert errors[name][dtype] <= _LIMITS[dtype]


def test_torchs_operators_see_only_what_is_there() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(3, size, 32, generator=generator) for size in (9, 20))
    values = torch.randn(3, 20, 8, generator=generator)
    counts = torch.tensor([[12, 4], [5, 0], [0, 0]], dtype=torch.int32)
    found = attend(queries, keys, values, counts, 14, False)
    for row, there in enumerate(([*range(12), *range(14, 18)], list(range(5)))):
        expected = (queries[row] @ keys[row, there].T).softmax(dim=1) @ values[row, there]
        assert torch.allclose(found[row], expected, atol=1e-5)
    assert not found[2].any()


def test_without_a_gpu_the_kernels_are_not_tried() -> None:
    assert not kernel_tracks(torch.device("cpu"), torch.bfloat16, 64)


class _Broken:
    def make_keys(self, *_: object) -> Tensor:
        raise ValueError("no C compiler")


def test_kernels_that_do_not_run_are_told_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracking_attention, "_kernel", _Broken())
    for name in ("linspace", "tensor"):
        monkeypatch.setattr(torch, name, partial(_on_cpu, getattr(torch, name)))
    assert not kernel_tracks(torch.device("cuda"), torch.bfloat16, 64)
    assert "no C compiler" in caplog.text


def _on_cpu(make: object, *args: object, device: object, **options: object) -> Tensor:
    made: Tensor = make(*args, **options)  # type: ignore[operator]
    return made

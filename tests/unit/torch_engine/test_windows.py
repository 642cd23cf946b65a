"""Attention in windows: the kernel for GPUs, interpreted, and torch's own steps against the definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.unit.torch_engine.interpreter import interpreted
from tests.unit.torch_engine.window_kinds import KINDS
from triton_sam.engines.torch import windows
from triton_sam.engines.torch.windows import WindowKind, attend_windows, cudnn_attends, kernel_attends

pytestmark = pytest.mark.torch

_LIMITS = {"float32": 1e-5, "float16": 3e-3}


@pytest.fixture(scope="module")
def errors() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = interpreted("window_kinds")
    return found


@pytest.mark.part("bench")
@pytest.mark.parametrize("dtype", list(_LIMITS))
@pytest.mark.parametrize("name", [kind.name for kind in KINDS])
def test_the_kernel_gives_what_torch_gives(errors: dict[str, dict[str, float]], name: str, dtype: str) -> None:
    assert errors[name][dtype] <= _LIMITS[dtype]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (6, 10)])
def test_cells_beyond_the_edge_are_zeros_before_the_projection(height: int, width: int) -> None:
    """By the definition: one window, one query after the other."""
    generator = torch.Generator().manual_seed(1)
    window, heads, dim = 4, 2, 8
    tokens = torch.randn(1, height, width, 12, generator=generator)
    project = torch.nn.Linear(12, 3 * heads * dim).requires_grad_(False)
    given = attend_windows(project(tokens), project.bias, window, heads, False)
    assert given.shape == (1, height, width, heads * dim)
    padded = project(functional.pad(tokens, (0, 0, 0, -width % window, 0, -height % window)))
    for y, x in [(0, 0), (height - 1, 1), (1, width - 1), (height - 1, width - 1)]:
        top, left = y - y % window, x - x % window
        around = padded[0, top : top + window, left : left + window].reshape(window**2, 3, heads, dim)
        query = padded[0, y, x].reshape(3, heads, dim)[0]
        weights = torch.einsum("hd,nhd->hn", query, around[:, 1]).div(dim**0.5).softmax(dim=1)
        expected = torch.einsum("hn,nhd->hd", weights, around[:, 2]).flatten()
        assert torch.allclose(given[0, y, x], expected, atol=1e-5)


def test_without_a_gpu_neither_the_kernel_nor_cudnn_is_tried() -> None:
    assert not kernel_attends(torch.device("cpu"), torch.float16, [WindowKind(8, 2, 56, False)])
    assert not cudnn_attends(torch.device("cpu"), torch.float16, 56)


class _Broken:
    def attend(self, *_: object) -> Tensor:
        raise ValueError("no C compiler")


def test_a_kernel_that_does_not_run_is_told_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(windows, "_kernel", _Broken())
    monkeypatch.setattr(torch, "linspace", partial(_on_cpu, torch.linspace))
    assert not kernel_attends(torch.device("cuda"), torch.float16, [WindowKind(8, 2, 56, False)])
    assert "no C compiler" in caplog.text


def _on_cpu(make: Callable[..., Tensor], *args: float, device: torch.device) -> Tensor:
    return make(*args)

"""A linear step and GELU as one operator."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from triton_sam.engines.torch.linear_gelu import joins_gelu, linear_gelu

pytestmark = pytest.mark.torch


def some() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 3, 5, 16), (24, 16), (24,)
    tokens, weight, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return tokens, weight, bias


def test_it_is_the_two_in_one() -> None:
    tokens, weight, bias = some()
    expected = functional.gelu(functional.linear(tokens, weight, bias))
    torch.testing.assert_close(linear_gelu(tokens, weight, bias), expected, atol=1e-3, rtol=0)  # GPUs: by tanh


def test_compiled_it_stays_one_step_and_gives_the_same() -> None:
    tokens, weight, bias = some()
    compiled = torch.compile(
        lambda *inputs: linear_gelu(*inputs) + 1, fullgraph=True, dynamic=False, backend="aot_eager"
    )
    torch.testing.assert_close(compiled(tokens, weight, bias), linear_gelu(tokens, weight, bias) + 1)


def test_on_a_cpu_the_steps_stay_apart() -> None:
    assert not joins_gelu(functional.gelu, torch.device("cpu"), torch.float16)

"""A linear layer fused with GELU, for GPUs: the tensor between them is as large as everything else a block writes."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

log = logging.getLogger(__name__)
#: The fused GELU is the tanh approximation, with an error of at most 0.0005: as much as half precision rounds.
_NEAR = 0.01
_HALF_PRECISION = (torch.float16, torch.bfloat16)


@torch.library.custom_op("triton_sam::linear_gelu", mutates_args=())
def linear_gelu(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """[...,C], [D,C], [D] -> [...,D]. A custom operator, because torch.compile would split it again."""
    flat = tokens.reshape(-1, tokens.shape[-1])
    joined = torch._addmm_activation(bias, flat, weight.t(), use_gelu=True)
    return joined.view(*tokens.shape[:-1], len(weight))


@linear_gelu.register_fake
def _(tokens: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return tokens.new_empty(*tokens.shape[:-1], len(weight))


def joins_gelu(activation: Callable[[Tensor], Tensor], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the fused layer works: in half precision on a GPU, for the plain GELU. Tries it once."""
    if device.type != "cuda" or dtype not in _HALF_PRECISION:
        return False
    try:
        with torch.inference_mode():
            numbers = torch.linspace(-4, 4, 64 * 64, device=device).view(64, 64)
            if not torch.equal(activation(numbers), functional.gelu(numbers)):
                return False
            some = torch.eye(64, device=device, dtype=dtype)
            wanted = functional.gelu(numbers.T.to(dtype).float())
            off = float((linear_gelu(some, numbers.to(dtype), some[0] * 0).float() - wanted).abs().max())
    except RuntimeError as error:
        log.info("GELU runs as a separate step: %s", str(error).partition("\n")[0])
        return False
    return off < _NEAR

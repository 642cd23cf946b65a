"""Tries the kernels for attention to memories."""

from __future__ import annotations

import logging

import torch

from triton_sam.engines.torch import tracking_attention
from triton_sam.engines.torch.tracking_attention import attend, make_keys

log = logging.getLogger(__name__)
_HALF_PRECISION = (torch.float16, torch.bfloat16)
#: Root mean square of the difference, relative to that of the values; bfloat16 gives 0.002.
_NEAR = 0.02
_WIDTH, _CELLS, _SLOTS, _PIECES = 256, 256, 2, 16


def kernel_tracks(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernels run on a device and give the same as torch's operators. Compiles every variant.

    Args:
        width: channels of a memory.
    """
    kernel = tracking_attention._kernel
    if device.type != "cuda" or dtype not in _HALF_PRECISION or kernel is None:
        return False
    try:
        with torch.inference_mode():
            for off in _errors(device, dtype, width):
                if not off < _NEAR:
                    raise ValueError(f"it is off by {off}")
        return True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # triton and the compilers that it calls raise many different ones
        log.warning("objects are tracked without the attention kernel, and slower: %s", str(error).partition("\n")[0])
        return False


def _errors(device: torch.device, dtype: torch.dtype, width: int) -> list[float]:
    """Relative differences of each variant: sizes have the same divisors as those of tracking."""
    kernel = tracking_attention._kernel
    assert kernel is not None

    def some(*shape: int) -> torch.Tensor:
        return torch.linspace(0, 1e4, torch.Size(shape).numel(), device=device).sin().view(shape)

    rows, cells = 2, _SLOTS * _CELLS + _PIECES
    memories = some(rows, cells, width).to(dtype)
    ages = torch.tensor([[0, 3], [1, -1]], dtype=torch.int32, device=device)
    counts = torch.tensor([[2 * _CELLS, 8], [_CELLS, 0]], dtype=torch.int32, device=device)
    weight, bias = some(_WIDTH, width).to(dtype), some(_WIDTH).to(dtype)
    given = memories, ages, some(_CELLS, width), some(7, width), weight, bias, some(_CELLS, _WIDTH)
    pieces = some(rows, _PIECES, _WIDTH).to(dtype)
    made, expected = make_keys(*given, pieces, True), make_keys(*given, pieces, False)
    found = [_off(made[0], expected[0]), _off(made[1, :_CELLS], expected[1, :_CELLS])]
    query = some(rows, _CELLS, _WIDTH).flip(1).to(dtype)
    wide = some(rows, cells, _WIDTH).to(dtype)
    for values, how_many in ((memories, counts), (wide, None)):
        wanted = attend(query, expected, values, how_many, _SLOTS * _CELLS, False)
        setup = kernel.setup_for(values)
        for splits in (1, 2):
            given_by = kernel.attend_with(query, expected, values, how_many, _SLOTS * _CELLS, setup, splits)
            found.append(_off(given_by, wanted))
    return found


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected.float()).norm() / expected.float().norm())

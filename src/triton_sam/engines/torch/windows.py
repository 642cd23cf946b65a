"""Window attention: a kernel on GPUs, and torch's operators elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

_kernel: ModuleType | None = None
log = logging.getLogger(__name__)
_POOL = 2
#: Types of tensor cores. The kernel is correct for float32 too, but slower there than torch's own operators.
_HALF_PRECISION = (torch.float16, torch.bfloat16)
_HOPPER = (9, 0)
_SOME_TOKENS = 256
_NEAR = 0.05


def attend_windows(qkv: Tensor, bias: Tensor, window: int, heads: int, pools: bool, by_kernel: bool = False) -> Tensor:
    """[B,H,W,3*C] -> [B,H,W,C], or [B,H/2,W/2,C] if queries are pooled.

    Windows start at the upper left. Cells beyond the right and lower edge take part as keys, as they did in training:
    there tokens were zeros before the projection, so that their queries, keys and values are its bias.

    Args:
        qkv: queries, keys and values of all heads; H and W are even if queries are pooled.
        bias: of the projection that made them, [3*C].
        pools: queries are the largest of four cells.
        by_kernel: see :func:`kernel_attends`.
    """
    if by_kernel and _kernel is not None:
        result: Tensor = _kernel.attend(qkv, bias, window, heads, pools)
        return result
    return attend_in_steps(qkv, bias, window, heads, pools)


def load_kernel() -> ModuleType | None:
    """The kernel's module, which :func:`attend_windows` uses from then on; None without triton.

    Torch may import its whole compiler for it, which takes seconds, so it is loaded only where it is used.
    """
    global _kernel
    if _kernel is None:
        try:
            from triton_sam.engines.torch import window_kernel
        except ImportError:  # triton comes with torch for GPUs only; older ones cannot wrap its kernels
            return None
        _kernel = window_kernel
    return _kernel


class WindowKind(NamedTuple):
    """The parameters that a kernel is compiled for; ``dim`` is that of one head."""

    window: int
    heads: int
    dim: int
    pools: bool


def kernel_attends(device: torch.device, dtype: torch.dtype, kinds: Iterable[WindowKind]) -> bool:
    """Whether the kernel runs on a device for all these kinds and gives the same as torch's operators.

    Triton needs a compiler on the machine, and a wide head may need more shared memory than a smaller GPU has.
    """
    if device.type != "cuda" or dtype not in _HALF_PRECISION or load_kernel() is None:
        return False
    try:
        for kind in kinds:
            off = _kernel_error(kind, device, dtype)
            if not off < _NEAR:
                raise ValueError(f"{kind} is off by {off}")
        return True
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # triton and the compilers that it calls raise many different ones
        reason = str(error).partition("\n")[0]
    log.warning("window attention runs without its kernel, and slower: %s", reason)
    return False


def _kernel_error(kind: WindowKind, device: torch.device, dtype: torch.dtype) -> float:
    """The largest difference to torch's operators, on a grid that is not a multiple of the window."""
    assert _kernel is not None  # checked by the caller
    side, width = kind.window + 2, 3 * kind.heads * kind.dim
    with torch.inference_mode():
        qkv = torch.linspace(-1, 1, side * side * width, device=device).mul(1e4).sin().to(dtype)
        qkv = qkv.view(1, side, side, width)
        sort = qkv[0, 0, 0], kind.window, kind.heads, kind.pools
        return float((_kernel.attend(qkv, *sort) - attend_in_steps(qkv, *sort)).abs().max())


def attend_in_steps(qkv: Tensor, bias: Tensor, window: int, heads: int, pools: bool) -> Tensor:
    """:func:`attend_windows` on any device."""
    pool = _POOL if pools else 1
    height, width = qkv.shape[1] // pool, qkv.shape[2] // pool
    return _unwindowed(attend(_windows(qkv, bias, window), heads, pools), height, width)


def attend(qkv: Tensor, heads: int, pools: bool, by_cudnn: bool = False) -> Tensor:
    """[B,h,w,3*C] -> [B,h',w',C], all tokens of each of B with each other."""
    query, key, value = qkv.chunk(3, dim=-1)
    if pools:
        query = pooled(query)
    rows, height, width, channels = query.shape
    query, key, value = (
        part.reshape(rows, -1, heads, channels // heads).transpose(1, 2) for part in (query, key, value)
    )
    chosen = attend_by_cudnn if by_cudnn else functional.scaled_dot_product_attention
    seen: Tensor = chosen(query, key, value)
    return seen.transpose(1, 2).reshape(rows, height, width, channels)


def cudnn_attends(device: torch.device, dtype: torch.dtype, dim: int) -> bool:
    """Whether cuDNN's attention runs on a device; only for Hopper and later, whose instructions it uses."""
    if device.type != "cuda" or dtype not in _HALF_PRECISION:
        return False
    if torch.cuda.get_device_capability(device) < _HOPPER:
        return False
    try:
        with torch.inference_mode():
            some = torch.zeros(1, 1, _SOME_TOKENS, dim, device=device, dtype=dtype)
            return bool(torch.isfinite(attend_by_cudnn(some, some, some)).all())
    except RuntimeError as error:  # another cuDNN, or none
        log.info("attention runs without cuDNN: %s", str(error).partition("\n")[0])
        return False


def attend_by_cudnn(query: Tensor, key: Tensor, value: Tensor, scale: float | None = None) -> Tensor:
    """[B,heads,n,dim] each -> [B,heads,n,dim].

    Called directly, not through torch's flags: these are process-wide, and the decoder, whose shapes change with every
    click, must not use cuDNN, which builds a plan for each new shape.
    """
    seen: Tensor = torch.ops.aten._scaled_dot_product_cudnn_attention(query, key, value, None, False, scale=scale)[0]
    return seen


def pooled(tokens: Tensor) -> Tensor:
    """[B,h,w,C] -> [B,h/2,w/2,C]: 2 x 2 max pooling."""
    rows, height, width, channels = tokens.shape
    return tokens.view(rows, height // _POOL, _POOL, width // _POOL, _POOL, channels).amax(dim=(2, 4))


def _windows(tokens: Tensor, beyond: Tensor, window: int) -> Tensor:
    """[B,h,w,C] -> [B*n,window,window,C], with ``beyond`` [C] beyond the right and lower edge."""
    rows, height, width, channels = tokens.shape
    below, right = -height % window, -width % window
    if below or right:
        whole = beyond.expand(rows, height + below, width + right, channels).clone()
        whole[:, :height, :width] = tokens
        tokens = whole
    down, across = (height + below) // window, (width + right) // window
    split = tokens.view(rows, down, window, across, window, channels).transpose(2, 3)
    return split.reshape(-1, window, window, channels)


def _unwindowed(windows: Tensor, height: int, width: int) -> Tensor:
    """The inverse of :func:`_windows`, for windows that may have been pooled; [B,height,width,C]."""
    window, channels = windows.shape[1], windows.shape[3]
    down, across = -(-height // window), -(-width // window)
    joined = windows.view(-1, down, across, window, window, channels).transpose(2, 3)
    whole = joined.reshape(-1, down * window, across * window, channels)
    return whole[:, :height, :width]

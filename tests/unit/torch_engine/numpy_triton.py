"""As much of triton's language in numpy as the resize kernel needs: it runs where triton cannot be installed.

Numbers are Python's and numpy's, blocks are arrays, and a fused multiply-add is one. Triton's own interpreter, where it
exists, is used by :mod:`.interpreter`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch


class Block(np.ndarray):  # type: ignore[type-arg]
    """An array with triton's conversion."""

    def to(self, dtype: Any) -> Block:
        return self if isinstance(dtype, torch.dtype) else block(self.astype(dtype))  # a store converts to torch's


def block(array: Any) -> Block:
    """Single precision, as triton's constants have it."""
    found = np.asarray(array)
    return (found.astype(np.float32) if found.dtype == np.float64 else found).view(Block)


class Pointer:
    """Addresses in a tensor's memory."""

    def __init__(self, memory: torch.Tensor, offset: Any) -> None:
        self._memory = memory
        self._offset = offset
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, steps: Any) -> Pointer:
        return Pointer(self._memory, self._offset + steps)

    def load(self, mask: Any = True, other: float = 0) -> Block:
        kept = np.broadcast_to(mask, np.shape(self._offset))
        return block(np.where(kept, self._memory.numpy()[np.where(kept, self._offset, 0)], other))

    def store(self, value: Block, mask: Any) -> None:
        self._memory[torch.from_numpy(np.asarray(self._offset[mask]))] = torch.from_numpy(np.asarray(value[mask])).to(
            self._memory.dtype
        )


class Kernel:
    """A function that other kernels call, or that runs for each program of a grid."""

    def __init__(self, function: Callable[..., Any], program: list[int]) -> None:
        self._function = function
        self._program = program

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, num_warps: int, enable_fp_fusion: bool) -> None:
            assert num_warps > 0
            assert not enable_fp_fusion
            for self._program[0] in range(grid[0]):
                self._function(*(_argument(each) for each in args))

        return run


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Pointer(value.as_strided((value.untyped_storage().nbytes() // value.itemsize,), (1,), 0), 0)
    return block(np.float32(value)) if isinstance(value, float) else value


def _language(program: list[int]) -> ModuleType:
    made = ModuleType("triton.language")
    made.__dict__.update(
        constexpr=_Constant,
        float32=np.float32,
        int32=np.int32,
        program_id=lambda axis: program[axis],
        arange=lambda first, end: block(np.arange(first, end, dtype=np.int32)),
        zeros=lambda shape, dtype: block(np.zeros(shape, dtype)),
        where=lambda *args: block(np.where(*args)),
        minimum=lambda *args: block(np.minimum(*args)),
        maximum=lambda *args: block(np.maximum(*args)),
        abs=lambda value: block(np.abs(value)),
        floor=lambda value: block(np.floor(value)),
        div_rn=lambda over, under: block(np.divide(over, under, dtype=np.float32)),
        # Products of two single precision numbers are exact in double precision.
        fma=lambda x, y, z: block(np.float64(1) * x * y + z),
        load=lambda pointer, **options: pointer.load(**options),
        store=lambda pointer, value, mask: pointer.store(value, mask),
    )
    return made


class _Constant(int):
    @property
    def value(self) -> int:
        return int(self)


def kernel_in_numpy(module: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of ours that imports triton, with its kernels in numpy; not the one that others import."""
    program = [0, 0, 0]
    triton = ModuleType("triton")
    language = _language(program)

    def jit(function: Callable[..., Any] | None = None, **_: object) -> Any:
        return (lambda given: Kernel(given, program)) if function is None else Kernel(function, program)

    triton.__dict__.update(jit=jit, language=language)
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "triton", triton)
        patch.setitem(sys.modules, "triton.language", language)
        spec.loader.exec_module(made)
    return made

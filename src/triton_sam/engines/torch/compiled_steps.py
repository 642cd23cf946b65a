"""Compiles a module for fixed inputs, writes the result to a folder, and loads it in another process.

The module is exported and compiled by Inductor. Weights are arguments of the compiled code, not part of it, so that it
serves any weights of the network. Loading takes a fraction of a second: no tracing, no code generation, no compiler.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

_CODE, _ARGUMENTS, _CONSTANTS = "code.bin", "arguments.json", "constants.safetensors"
#: Root mean square of the difference, relative to that of the values. Half precision gives 0.001 to 0.02.
_NEAR = 0.05


def compile_module(module: nn.Module, inputs: Sequence[Tensor], mode: str, folder: Path) -> None:
    """Compiles ``module(*inputs)``, which returns a tuple of tensors, and writes the result to an empty folder."""
    import torch._inductor as inductor

    patches = {} if mode == "default" else dict(inductor.list_mode_options(mode))
    with torch.no_grad():
        exported = torch.export.export(module, tuple(inputs), strict=False)
        names = [spec.target for spec in exported.graph_signature.input_specs]
        tensors = _tensors(module)
        # The exporter counts buffers that are in no checkpoint among them; these are the module's.
        constants = {name: exported.constants[name] for name in names if name and name not in tensors}
        arguments = _arguments(names, {**tensors, **constants}, inputs)
        compiled = inductor.standalone_compile(
            exported.graph_module,
            arguments,
            dynamic_shapes="from_example_inputs",
            options={"config_patches": patches},
        )
    compiled.save(path=str(folder / _CODE))
    (folder / _ARGUMENTS).write_text(json.dumps(names))
    save_file({name: value.cpu().contiguous() for name, value in constants.items()}, folder / _CONSTANTS)


def load_compiled(folder: Path, module: nn.Module, device: torch.device) -> Callable[..., tuple[Tensor, ...]]:
    """The compiled ``module``, with the weights that it has now and that nobody may replace; takes the same inputs.

    Args:
        folder: of :func:`compile_module`. It is executed: see :mod:`.code_folder`.
    """
    names = json.loads((folder / _ARGUMENTS).read_text())
    constants = {name: value.to(device) for name, value in load_file(folder / _CONSTANTS).items()}
    known = {**_tensors(module), **constants}
    with _no_collections():
        import torch._inductor as inductor

        compiled = inductor.CompiledArtifact.load(path=str(folder / _CODE))  # type: ignore[attr-defined]

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(compiled(*_arguments(names, known, inputs)))

    return run


@contextmanager
def _no_collections() -> Iterator[None]:
    """No garbage collections in the block, and none of the objects that it leaves.

    The first one imports Inductor, a hundred thousand objects that stay. Collections among them would hold Python's
    lock for 0.1 s and more, while other threads answer.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if enabled:
            gc.enable()


def difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest relative difference of pairs of outputs; infinite if a value is not finite, or a shape differs."""
    largest = 0.0
    for one, other in zip(found, expected, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        off = (one.float() - other.float()).square().mean().sqrt() / other.float().square().mean().sqrt().clamp(1e-12)
        largest = max(largest, float(off)) if bool(torch.isfinite(off)) else float("inf")
    return largest


def is_near(found: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether outputs differ by no more than rounding."""
    return difference(found, expected) <= _NEAR


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _arguments(names: Sequence[str | None], known: dict[str, Tensor], inputs: Sequence[Tensor]) -> list[Any]:
    """The graph's arguments in order: weights by their names, then the module's inputs."""
    given = iter(inputs)
    return [known[name] if name is not None else next(given) for name in names]

"""Compiles all steps that a server with words uses, in processes side by side, and those of one without words.

usage: python -m benchmarks.concepts_steps FOLDER [--device cpu] [--small]

The code lies where the server looks for it. A server that starts meanwhile waits for it, as it does for another
engine's process. Each process prints a line of JSON when it has ended.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.concepts_model import concept_spec
from benchmarks.device_scale import say
from triton_sam.engines.torch.code_folder import CodeFolder
from triton_sam.engines.torch.code_key import code_key
from triton_sam.engines.torch.compile_process import (
    CONCEPT_IMAGE,
    CONCEPTS,
    DECODER,
    ENCODER,
    EXAMPLES,
    GRID,
    MEASURING,
    PACKING,
    RESIZING,
    TEXT,
    CompileRequest,
)
from triton_sam.engines.torch.compiling import cache_variables
from triton_sam.engines.torch.devices import choose_dtypes
from triton_sam.engines.torch.finding import GridRunner
from triton_sam.models.specs import ModelSpec
from triton_sam.networks.segmenters import build_layers
from triton_sam.settings import Settings

#: Steps of a server that encodes one image at a time, by processes, the longest first.
_GROUPS = (
    (f"{ENCODER}1",),
    (f"{EXAMPLES}4",),
    (f"{EXAMPLES}1",),
    (f"{EXAMPLES}2",),
    (f"{CONCEPTS}1",),
    (f"{CONCEPTS}4",),
    (f"{CONCEPTS}2",),
    (f"{TEXT}1", CONCEPT_IMAGE, f"{TEXT}4"),
    (f"{DECODER}1", PACKING, RESIZING, f"{DECODER}2"),
    (f"{DECODER}16", f"{DECODER}8", f"{DECODER}4"),
    (f"{GRID}{GridRunner.MOST_POINTS}", MEASURING),
)
#: What a CPU can compile, for a try.
_FEW = ((f"{ENCODER}1",), (f"{DECODER}1", f"{TEXT}1"), (f"{CONCEPTS}1",))


def steps(device: str) -> list[str]:
    """All of them."""
    return [step for group in (_FEW if device == "cpu" else _GROUPS) for step in group]


def compile_request(folder: Path, spec: ModelSpec, device: torch.device) -> CompileRequest:
    """As the server makes it."""
    mode = "default"
    dtypes = choose_dtypes(Settings(device="cpu" if device.type == "cpu" else "auto"), device, spec)
    what = spec.architecture, spec.graphs, None
    key = code_key(*what, device, dtypes, mode, spec.concepts)
    dtype, row_dtype = (str(one).removeprefix("torch.") for one in dtypes)
    root = folder / "home" / "compiled"
    return CompileRequest(*what, str(device), dtype, row_dtype, mode, (), root, key, spec.concepts)


def compile_group(request: CompileRequest) -> tuple[tuple[str, ...], float, str]:
    """Compiles steps in this process, with a network that the GPU fills; its steps, seconds, and what went wrong."""
    from triton_sam.engines.torch import step_compiler

    def filled(*what: Any, **more: Any) -> Any:
        with torch.device(request.device):
            return build_layers(*what, **more).cpu()  # from there it is taken apart

    begun = time.perf_counter()
    folder = CodeFolder(request.root, request.key)
    os.environ.update(cache_variables(folder) | {"TORCHINDUCTOR_COMPILE_THREADS": "2"})
    wrong = ""
    try:
        with patch.object(step_compiler, "build_layers", filled):
            compiler = step_compiler.StepCompiler(request)
        for step in request.steps:
            if folder.find(step) is None:
                with folder.writing(step) as new:
                    compiler.compile_step(step, new)
    except Exception as error:  # one process must not end the others
        wrong = f"{type(error).__name__}: {error}"[:500]
    return request.steps, round(time.perf_counter() - begun, 1), wrong


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device = torch.device(given.device)
    words, clicks = (
        compile_request(given.folder, concept_spec(small=given.small, concepts=concepts), device)
        for concepts in (True, False)
    )
    asked = [replace(words, steps=group) for group in (_FEW if given.device == "cpu" else _GROUPS)]
    asked.insert(1, replace(clicks, steps=(f"{ENCODER}1",)))
    own, other = CodeFolder(words.root, words.key), CodeFolder(clicks.root, clicks.key)
    begun = time.perf_counter()
    workers = 2 if given.device == "cpu" else len(asked)
    with own.lock() as lock, other.lock() as other_lock:
        assert lock is not None
        assert other_lock is not None
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            for done in as_completed([pool.submit(compile_group, one) for one in asked]):
                names, seconds, wrong = done.result()
                say(compiled=names, process_s=seconds, after_s=round(time.perf_counter() - begun, 1), wrong=wrong)
        for step in steps(given.device):  # the same code, for a network whose words are not looked at
            found = own.find(step)
            if found is not None and not step.startswith((ENCODER, TEXT, CONCEPTS, EXAMPLES, CONCEPT_IMAGE)):
                with other.writing(step) as new:
                    shutil.copytree(found, new, dirs_exist_ok=True)


if __name__ == "__main__":
    main()

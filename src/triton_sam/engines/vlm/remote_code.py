"""Checkpoints whose own code makes the network: taken from their folder and nowhere else."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from safetensors.torch import load_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module

from triton_sam.errors import SetupError

_CLASS = "AutoModelForCausalLM"


#: Gives the folder of each repository that a checkpoint's code asks for beside its own.
Parts = Callable[[], Mapping[str, Path]]


def load_network(folder: Path, parts: Parts) -> Any:
    """The network with its weights, in the numbers of the checkpoint.

    Not through ``from_pretrained``: transformers 5 makes the network without memory and fills in what the checkpoint
    has; buffers that such code makes by itself (moondream2: its mask and its rotations) would be noise.

    Args:
        parts: asked where the code would fetch a tokenizer from the Hub by itself, unpinned.
    """
    reference = _class_in(folder)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    network_class = get_class_from_dynamic_module(reference, folder, local_files_only=True)
    with _pinned_tokenizer(network_class.__module__.rpartition(".")[0], parts):
        network = network_class(config)
    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    network.load_state_dict(weights, strict=True, assign=True)  # no second copy, and no other numbers
    return network


def _class_in(folder: Path) -> str:
    """``module.Class`` of the network; SetupError where that, or anything else, would be taken from elsewhere."""
    named = json.loads((folder / "config.json").read_bytes()).get("auto_map") or {}
    if _CLASS not in named:
        raise SetupError(f"{folder / 'config.json'} names no class for {_CLASS} in its auto_map")
    for reference in named.values():
        module = str(reference).partition(".")[0]
        if "--" in str(reference) or not (folder / f"{module}.py").is_file():
            raise SetupError(
                f"{folder / 'config.json'} names code of another repository ({reference}), which is not pinned: put "
                "that code into the folder and its plain name into auto_map"
            )
    return str(named[_CLASS])


@contextlib.contextmanager
def _pinned_tokenizer(package: str, parts: Parts) -> Iterator[None]:
    """While the block is open, the package's modules get their tokenizer from a pinned file."""

    class Pinned:
        @staticmethod
        def from_pretrained(repo: str, *_: Any, **__: Any) -> tokenizers.Tokenizer:
            folder = parts().get(repo)
            if folder is None:
                raise SetupError(f"the checkpoint's code asks for {repo}, which is not pinned: it was not fetched")
            return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    swapped = [
        module
        for name, module in list(sys.modules.items())
        if name.startswith(f"{package}.") and getattr(module, "Tokenizer", None) is tokenizers.Tokenizer
    ]
    for module in swapped:
        module.Tokenizer = Pinned  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in swapped:
            module.Tokenizer = tokenizers.Tokenizer  # type: ignore[attr-defined]

"""Loads networks from a checkpoint's own code, which is taken only from the checkpoint's folder."""

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


#: Returns the folders of other repositories that a checkpoint's code needs, by name.
Parts = Callable[[], Mapping[str, Path]]


def load_network(folder: Path, parts: Parts) -> Any:
    """The network with its weights, in the checkpoint's dtype.

    Not through ``from_pretrained``: transformers 5 builds the network on the meta device and fills in the checkpoint's
    tensors. Buffers that such code computes (moondream2: its mask and its rotations) would stay uninitialised.

    Args:
        parts: used if the code would download an unpinned tokenizer from the Hub.
    """
    reference = _class_in(folder)
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True, local_files_only=True)
    network_class = get_class_from_dynamic_module(reference, folder, local_files_only=True)
    with _pinned_tokenizer(network_class.__module__.rpartition(".")[0], parts):
        network = network_class(config)
    weights: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    network.load_state_dict(weights, strict=True, assign=True)  # no second copy, and no other dtype
    return network


def _class_in(folder: Path) -> str:
    """``module.Class`` of the network; SetupError if any code would come from another repository."""
    named = json.loads((folder / "config.json").read_bytes()).get("auto_map") or {}
    if _CLASS not in named:
        raise SetupError(f"{folder / 'config.json'} names no class for {_CLASS} in its auto_map")
    for reference in named.values():
        module = str(reference).partition(".")[0]
        if "--" in str(reference) or not (folder / f"{module}.py").is_file():
            raise SetupError(
                f"{folder / 'config.json'} names code of another repository ({reference}), which is not pinned: copy "
                "that code into the folder and write its plain name into auto_map"
            )
    return str(named[_CLASS])


@contextlib.contextmanager
def _pinned_tokenizer(package: str, parts: Parts) -> Iterator[None]:
    """Within this context the package's modules load their tokenizer from a pinned file."""

    class Pinned:
        @staticmethod
        def from_pretrained(repo: str, *_: Any, **__: Any) -> tokenizers.Tokenizer:
            folder = parts().get(repo)
            if folder is None:
                raise SetupError(f"the checkpoint's code needs {repo}, which is not pinned and was not downloaded")
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

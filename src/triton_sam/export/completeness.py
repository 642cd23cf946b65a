"""Whether rewrites found all of what they were made for: a graph is rewritten whole, or it is served as it is."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from triton_sam.errors import SetupError

#: Whose releases write graphs, or rewrite them, in another way.
_PACKAGES = ("transformers", "torch", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Count:
    """How often a rewrite found its pattern.

    Attributes:
        what: in the plural: "attentions".
        wanted: how many there are, counted by something else than the pattern.
    """

    what: str
    found: int
    wanted: int


class IncompleteRewrite(SetupError):
    """A graph has something that a rewrite should know and does not: the plain graph is to be served."""


def check_complete(counts: Iterable[Count]) -> None:
    """IncompleteRewrite, with what is missing and the versions at work, where a rewrite found less than there is."""
    missing = [f"{count.found} of {count.wanted} {count.what}" for count in counts if count.found < count.wanted]
    if missing:
        raise IncompleteRewrite(
            f"only {', '.join(missing)} were found in its graph, with {versions()}, so answers take longer: set the "
            "model up again with the versions of triton-sam's lock files, or report it"
        )


def versions() -> str:
    """The packages that write graphs, as they are installed: "transformers 5.22.2, torch 2.13.0, ..."."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)

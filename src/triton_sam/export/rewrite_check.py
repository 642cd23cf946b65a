"""Checks that a graph was rewritten completely; if not, the plain graph is served instead."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable
from dataclasses import dataclass

from triton_sam.errors import SetupError

#: Packages whose releases may write or optimise graphs differently.
_PACKAGES = ("transformers", "torch", "onnx", "onnxruntime")


@dataclass(frozen=True, slots=True)
class Count:
    """How often a rewrite found its pattern.

    Attributes:
        what: name of the pattern, in the plural: "attentions".
        wanted: how many there are, counted independently of the pattern.
    """

    what: str
    found: int
    wanted: int


class IncompleteRewrite(SetupError):
    """A rewrite did not recognise part of a graph, so the plain graph must be served."""


def check_complete(counts: Iterable[Count]) -> None:
    """Raises IncompleteRewrite, with what is missing and the packages' versions, if a rewrite found too few."""
    missing = [f"{count.found} of {count.wanted} {count.what}" for count in counts if count.found < count.wanted]
    if missing:
        raise IncompleteRewrite(
            f"only {', '.join(missing)} were found in its graph, with {versions()}, so answers take longer: set the "
            "model up again with the versions of triton-sam's lock files, or report it"
        )


def versions() -> str:
    """Installed versions of the packages that write graphs: "transformers 5.22.2, torch 2.13.0, ..."."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)

"""The traits of what finds concepts in a model's repository, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from triton_sam.core.concepts.traits import ConceptTraits
from triton_sam.errors import SetupError
from triton_sam.models.architecture import Architecture
from triton_sam.models.specs import CONCEPT_FILES, CONCEPTS_FILE, ModelSpec

_TRAITS = TypeAdapter(ConceptTraits)
_CELL = 14


def concept_traits(architecture: Architecture, side: int) -> ConceptTraits:
    """Those of a network at a side of ``side`` pixels; it finds concepts."""
    sizes, grid = architecture.concepts, side // _CELL
    assert sizes is not None
    return ConceptTraits(
        channels=architecture.width,
        side=grid,
        tokens=sizes.tokens,
        text_width=architecture.neck,
        queries=sizes.queries,
        mask_side=4 * grid,
    )


def traits_to_json(traits: ConceptTraits) -> str:
    """The content of ``concepts.json``."""
    return _TRAITS.dump_json(traits, indent=2).decode() + "\n"


def traits_in(folder: Path, spec: ModelSpec) -> ConceptTraits | None:
    """The traits in a model's folder; None if it has no concepts, or not all that they need.

    Raises:
        SetupError: the file is damaged.
    """
    if not all((folder / name).is_file() for name in CONCEPT_FILES):
        return None
    return read_traits(folder / CONCEPTS_FILE, spec)


def read_traits(file: Path, spec: ModelSpec) -> ConceptTraits:
    """The inverse of :func:`traits_to_json`; SetupError if the file cannot be read, or is damaged."""
    try:
        return _TRAITS.validate_json(file.read_bytes())
    except OSError as error:
        raise SetupError(f"{file} cannot be read ({error.strerror}): check its permissions") from None
    except ValueError:
        raise SetupError(f"{file} is damaged: run `triton-sam setup {spec.id}` again") from None

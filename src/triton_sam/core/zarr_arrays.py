"""Zarr arrays on a disk: what their description says, and single planes of them."""

from __future__ import annotations

import errno
import importlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput, SetupError
from triton_sam.installation import install_extra

#: A last axis of at most this length has channels: no image is so narrow.
_MOST_CHANNELS = 16
_FORMS = "[H,W], [N,H,W], [H,W,C] or [N,H,W,C]"
_DEPTH_OF_GROUPS = 4
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """The shape of an array, and whether its last axis has channels."""

    shape: tuple[int, ...]
    has_channels: bool

    @property
    def planes(self) -> int | None:
        """Length of the first axis; None if the array is one image."""
        return self.shape[0] if len(self.shape) == (4 if self.has_channels else 3) else None


def description_of(folder: Path) -> Path | None:
    """The file that makes a folder a Zarr array or group; None if it is neither. Raises OSError."""
    for name in ("zarr.json", ".zarray", ".zgroup"):
        if (folder / name).is_file():
            return folder / name
    return None


def is_group(description: Path) -> bool:
    """Whether it describes a group; also if it cannot be understood. Raises OSError, InvalidInput."""
    return description.name == ".zgroup" or (
        description.name == "zarr.json" and _document(description).get("node_type") != "array"
    )


def refuse_group(folder: Path) -> InvalidInput:
    """Names the arrays of a group."""
    names = _arrays_in(folder, _DEPTH_OF_GROUPS)
    if not names:
        return InvalidInput(f"{folder} is a Zarr group without arrays: give the folder of an array")
    shown = ", ".join(names[:_MOST_NAMED]) + (" and more" if len(names) > _MOST_NAMED else "")
    return InvalidInput(
        f"{folder} is a Zarr group and no array: give one of its arrays ({shown}), as {folder / names[0]}"
    )


def shape_of(folder: Path) -> ArrayShape:
    """From the description alone, so zarr need not be there. Raises OSError; InvalidInput for no image."""
    description = description_of(folder)
    if description is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    if is_group(description):
        raise InvalidInput(f"{folder} is a Zarr group and no array")
    shape = _document(description).get("shape")
    if not isinstance(shape, list) or not all(isinstance(side, int) for side in shape):
        raise InvalidInput(f"{description} has no shape: write the array again")
    has_channels = len(shape) in (3, 4) and shape[-1] <= _MOST_CHANNELS
    if len(shape) not in (2, 3, 4) or (len(shape) == 4 and not has_channels):
        raise InvalidInput(
            f"the Zarr array {folder} has the shape {shape}, and {_FORMS} with up to {_MOST_CHANNELS} channels is "
            "read: save it in one of these forms"
        )
    if 0 in shape:
        raise InvalidInput(f"the Zarr array {folder} is empty: its shape is {shape}")
    return ArrayShape(tuple(shape), has_channels)


def check_zarr() -> None:
    """SetupError if the package is missing."""
    _zarr()


def zarr_package() -> Any:
    """The package; SetupError if it is missing."""
    return _zarr()


def attributes_of(folder: Path) -> dict[str, Any]:
    """What users and programs have noted of an array or a group. Raises OSError, InvalidInput."""
    description = description_of(folder)
    if description is None:
        return {}
    if description.name == "zarr.json":
        found = _document(description).get("attributes")
    else:
        noted = folder / ".zattrs"
        found = _document(noted) if noted.is_file() else None
    return found if isinstance(found, dict) else {}


def names_of_dimensions(folder: Path) -> list[str | None] | None:
    """As an array itself, or xarray, says; None if it does not. Raises OSError, InvalidInput."""
    description = description_of(folder)
    if description is None:
        return None
    document = _document(description)
    found = document.get("dimension_names") or attributes_of(folder).get("_ARRAY_DIMENSIONS")
    if not isinstance(found, list) or len(found) != len(document.get("shape") or ()):
        return None
    return [str(name) if name else None for name in found]


def read_plane(folder: Path, plane: int | None) -> npt.NDArray[Any]:
    """[H,W] or [H,W,C] of a plane, without the rest. Raises OSError; InvalidInput if it cannot be decoded."""
    zarr = _zarr()
    count = shape_of(folder).planes
    if (count is None) != (plane is None) or (plane is not None and count is not None and plane >= count):
        raise InvalidInput(f"the Zarr array {folder} has {count or 1} plane(s), and no plane {plane}: it was changed")
    failures: list[OSError] = []

    def read() -> npt.NDArray[Any]:
        try:
            array = zarr.open_array(str(folder), mode="r")
            return np.asarray(array[...] if plane is None else array[plane])
        except OSError as error:
            failures.append(error)
            raise

    try:
        values = guarded(read)
    except InvalidInput:
        if failures:
            raise failures[0] from None
        raise
    # Chunks that are not there are empty by Zarr's rules; so they seem to be if a share went away just now.
    shape_of(folder)
    return values


def _zarr() -> Any:
    try:
        return importlib.import_module("zarr")
    except ImportError:
        pass
    if sys.version_info < (3, 11):
        raise SetupError(
            "Zarr arrays need Python 3.11 or later: make an environment with it, or write the planes as a TIFF"
        )
    raise SetupError(f"Zarr arrays need the package zarr: run `{install_extra('batch')}`")


def _document(description: Path) -> dict[str, Any]:
    try:
        document = json.loads(description.read_bytes())
    except ValueError as error:  # no UTF-8 is one, too
        raise InvalidInput(f"{description} is damaged ({error}): write the Zarr array again") from None
    if not isinstance(document, dict):
        raise InvalidInput(f"{description} does not describe a Zarr array: write it again")
    return document


def _arrays_in(group: Path, depth: int) -> list[str]:
    """Relative to the group, sorted."""
    names: list[str] = []
    try:
        for folder in sorted(entry for entry in group.iterdir() if entry.is_dir()):
            description = description_of(folder)
            if description is None:
                continue
            if not is_group(description):
                names.append(folder.name)
            elif depth > 0:
                names += [f"{folder.name}/{name}" for name in _arrays_in(folder, depth - 1)]
    except (OSError, InvalidInput):
        pass  # it is only for a sentence
    return names

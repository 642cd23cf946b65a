"""Zarr arrays on a disk as stacks, alone or as the levels of an OME-Zarr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton_sam.core.untrusted import guarded
from triton_sam.core.zarr_arrays import (
    attributes_of,
    description_of,
    is_group,
    names_of_dimensions,
    refuse_group,
    zarr_package,
)
from triton_sam.errors import InvalidInput
from triton_sam.video.stacks.dimensions import dimension_name
from triton_sam.video.stacks.scale import Scale, VolumeForm, long_unit, scale_of_multiscale
from triton_sam.video.stacks.sources import ArraySource, reason_of

#: OME-Zarr before version 0.3 has no list of axes.
_FIRST_AXES = ("t", "c", "z", "y", "x")
#: How far up an array's OME metadata can be: its level may lie in a folder of its own.
_PARENTS = 2
_SERIES = "0"


@dataclass(frozen=True, slots=True)
class _Multiscale:
    """An image of an OME-Zarr, as its group says."""

    axes: tuple[str, ...]
    units: tuple[str | None, ...]
    levels: tuple[str, ...]
    transforms: Mapping[str, Sequence[Any]]

    def scale(self, level: str) -> Scale:
        return scale_of_multiscale(self.axes, self.units, self.transforms.get(level, ()))


def zarr_source(folder: Path) -> ArraySource:
    """The array of a folder, or the finest level of an OME-Zarr.

    Raises:
        InvalidInput: there is no array, or it cannot be read.
        SetupError: the package is missing.
    """
    try:
        return _opened(folder)
    except OSError as error:
        raise InvalidInput(f"the Zarr array {folder} cannot be read: {error.strerror or error}") from None


def _opened(folder: Path) -> ArraySource:
    zarr = zarr_package()
    array, image, level, notes = _found(folder)
    name = str(folder)
    try:
        opened = guarded(lambda: zarr.open_array(str(array), mode="r"))
    except InvalidInput as error:
        raise InvalidInput(
            f"the Zarr array {array} cannot be opened ({reason_of(error)}): install its codec, or write it anew with a "
            "usual one, such as zstd"
        ) from None
    names = names_of_dimensions(array)
    scale = Scale()
    if image is not None and len(image.axes) == len(opened.shape):
        names, scale = list(image.axes), image.scale(level)
    form = VolumeForm(scale=scale, is_ome=image is not None, zarr_format=int(opened.metadata.zarr_format))
    described = description_of(array)
    paths = list(dict.fromkeys([folder, array, *([described] if described else [])]))
    return ArraySource(opened, name, names=names, form=form, paths=paths, notes=notes)


def _found(folder: Path) -> tuple[Path, _Multiscale | None, str, list[str]]:
    """(the array's folder, its image, its level's path in that, notes)."""
    description = description_of(folder)
    if description is None:
        raise InvalidInput(f"{folder} is no Zarr array: it has neither zarr.json nor .zarray")
    if not is_group(description):
        return folder, *_image_around(folder), []
    image, notes = _image_of(folder), list[str]()
    if image is None and description_of(folder / _SERIES) is not None:  # as bioformats2raw writes
        image = _image_of(folder / _SERIES)
        if image is not None:
            folder = folder / _SERIES
            notes.append(f"the first image of the store is tracked: {folder}")
    if image is not None:
        level = image.levels[0]
        array = folder / level
        if not array.resolve().is_relative_to(folder.resolve()):
            raise InvalidInput(f"{folder} names the level {level!r}, which is not in it: write the OME-Zarr anew")
        inner = description_of(array)
        if inner is None or is_group(inner):
            raise InvalidInput(f"{folder} names the level {level}, and there is no array: copy the OME-Zarr again")
        if len(image.levels) > 1:
            notes.append(
                f"level {level} of {len(image.levels)} is tracked, the finest: give {folder / image.levels[1]} for a "
                "coarser one"
            )
        return array, image, level, notes
    children = [each for each in sorted(folder.iterdir()) if each.is_dir() and description_of(each) is not None]
    arrays = [each for each in children if not is_group(description_of(each) or each)]
    if len(arrays) == 1 and len(children) == 1:
        return arrays[0], None, "", [f"the only array of {folder} is tracked: {arrays[0].name}"]
    raise refuse_group(folder)


def _image_around(array: Path) -> tuple[_Multiscale | None, str]:
    """The image that an array is a level of."""
    path = array.resolve()
    for parent in list(path.parents)[:_PARENTS]:
        level = path.relative_to(parent).as_posix()
        image = _image_of(parent) if description_of(parent) is not None else None
        if image is not None and level in image.levels:
            return image, level
    return None, ""


def _image_of(group: Path) -> _Multiscale | None:
    """The first image of a group's OME metadata; None if it has none that can be understood."""
    attributes = attributes_of(group)
    found = attributes.get("ome", attributes)
    images = found.get("multiscales") if isinstance(found, Mapping) else None
    image = images[0] if isinstance(images, list) and images and isinstance(images[0], Mapping) else {}
    datasets = [each for each in _list(image.get("datasets")) if isinstance(each, Mapping) and each.get("path")]
    if not datasets:
        return None
    axes: list[str] = []
    units: list[str | None] = []
    for each in _list(image.get("axes")) or _FIRST_AXES:
        about = each if isinstance(each, Mapping) else {"name": each}
        unit = about.get("unit")
        axes.append(dimension_name(str(about.get("name") or "")))
        units.append(long_unit(unit) if isinstance(unit, str) and unit else None)
    common = _list(image.get("coordinateTransformations"))
    transforms = {str(each["path"]): [*_list(each.get("coordinateTransformations")), *common] for each in datasets}
    return _Multiscale(tuple(axes), tuple(units), tuple(transforms), transforms)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

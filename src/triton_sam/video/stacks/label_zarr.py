"""Label volumes as OME-Zarr: a group with one level, the array ``0``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from triton_sam.core.everything.labels import Labels
from triton_sam.core.zarr_arrays import attributes_of, zarr_package
from triton_sam.errors import InvalidInput
from triton_sam.files import sync_folder
from triton_sam.video.stacks.scale import SHORT_UNITS, VolumeForm
from triton_sam.video.stacks.volume_types import AddLabels, Shape

#: Most programs read version 0.4, which is Zarr's second format; a stack in the third one gets labels like it.
_USUAL_FORMAT = 2
_VERSIONS = {2: "0.4", 3: "0.5"}
_CREATOR = "triton-sam"
_LARGEST_CHUNK = 1024


def check_zarr_target(path: Path) -> None:
    """InvalidInput if something is there that is no label volume of ours; SetupError if the package is missing."""
    zarr_package()
    if not path.exists():
        return
    try:
        attributes = attributes_of(path) if path.is_dir() else {}
        found = attributes.get("ome", attributes).get("_creator", {}).get("name")
    except (OSError, InvalidInput, AttributeError):
        found = None
    if found != _CREATOR:
        raise InvalidInput(f"{path} is there already, and is no label volume of triton-sam: give another --out")


@contextmanager
def zarr_labels(path: Path, form: VolumeForm, shape: Shape, dtype: np.dtype[Any]) -> Iterator[AddLabels]:
    """A function that writes the next frame; the group is there when the context ends without an error."""
    check_zarr_target(path)
    unfinished, replaced = (path.with_name(f".{path.name}.{what}") for what in ("unfinished", "replaced"))
    for left in (unfinished, replaced):  # by a process that was killed
        if left.exists():
            shutil.rmtree(left)
    try:
        array = _created(unfinished, form, shape, dtype)
        index = 0

        def add(labels: Labels) -> None:
            nonlocal index
            array[index] = labels.astype(dtype, copy=False)
            index += 1

        yield add
        _sync(unfinished)
        if path.exists():
            path.rename(replaced)
        unfinished.rename(path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    with contextlib.suppress(OSError):
        shutil.rmtree(replaced)


def _created(folder: Path, form: VolumeForm, shape: Shape, dtype: np.dtype[Any]) -> Any:
    zarr = zarr_package()
    kind = form.zarr_format or _USUAL_FORMAT
    group = zarr.open_group(str(folder), mode="w", zarr_format=kind)
    _, height, width = shape
    names = [form.axis, "y", "x"]
    about = {"ome": _attributes(form, names, kind)} if kind > 2 else _attributes(form, names, kind)
    group.attrs.update(about)
    # gzip is what readers of every language have; labels shrink well with any compression.
    special: dict[str, Any] = (
        {"compressors": [{"name": "gzip", "configuration": {"level": 1}}], "dimension_names": names}
        if kind > 2
        else {"compressors": {"id": "gzip", "level": 1}, "chunk_key_encoding": {"name": "v2", "separator": "/"}}
    )
    return group.create_array(
        "0",
        shape=shape,
        dtype=dtype,
        chunks=(1, min(height, _LARGEST_CHUNK), min(width, _LARGEST_CHUNK)),
        fill_value=0,
        **special,
    )


def _attributes(form: VolumeForm, names: list[str], kind: int) -> dict[str, Any]:
    """OME-Zarr's metadata of an image that has labels."""
    scale = form.scale
    axes: list[dict[str, str]] = []
    for name in names:
        unit = scale.units.get(name)
        axes.append({"name": name, "type": "time" if name == "t" else "space"})
        if unit in SHORT_UNITS:
            axes[-1]["unit"] = unit
    transforms: list[dict[str, Any]] = [{"type": "scale", "scale": [float(scale.sizes.get(name, 1)) for name in names]}]
    if any(name in scale.origins for name in names):
        transforms.append({"type": "translation", "translation": [float(scale.origins.get(name, 0)) for name in names]})
    version = _VERSIONS[kind]
    image: dict[str, Any] = {
        "name": "labels",
        "axes": axes,
        "datasets": [{"path": "0", "coordinateTransformations": transforms}],
    }
    labels: dict[str, Any] = {}
    about = {"_creator": {"name": _CREATOR}}
    if kind > 2:
        return {"version": version, "multiscales": [image], "image-label": labels} | about
    return {"multiscales": [{"version": version} | image], "image-label": {"version": version}} | about


def _sync(folder: Path) -> None:
    """Waits until all of a folder is on the disk."""
    for inner, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(inner, name), "r+b") as file:  # noqa: PTH118, PTH123 - many of them
                os.fsync(file.fileno())
        sync_folder(Path(inner))

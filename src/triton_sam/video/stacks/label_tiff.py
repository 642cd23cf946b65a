"""Label volumes as TIFF, a page for each frame, with ImageJ's metadata or OME's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from triton_sam.core.everything.labels import Labels
from triton_sam.files import whole_file
from triton_sam.video.stacks.scale import SHORT_UNITS, Scale, VolumeForm
from triton_sam.video.stacks.volume_types import AddLabels, Shape

#: Offsets of a classic TIFF have 32 bits; some room is for directories, and for pages that do not shrink.
_MOST_BYTES, _BYTES_OF_PAGE = 2**32 - 2**25, 1024
_UNITS_OF_TIFF = {"inch": 2}
_NO_UNIT = 1


@contextmanager
def tiff_labels(path: Path, form: VolumeForm, shape: Shape, dtype: np.dtype[Any], largest: int) -> Iterator[AddLabels]:
    """A function that writes the next page; the file is there when the context ends without an error.

    Fiji reads ImageJ's metadata by itself. A file of more than 4 GB is a BigTIFF, which only Bio-Formats reads there,
    so that one has OME's, as has one of an OME stack.
    """
    import tifffile  # slow to import

    frames, height, width = shape
    is_big = frames * (height * width * dtype.itemsize + _BYTES_OF_PAGE) > _MOST_BYTES
    is_ome = is_big or form.is_ome
    text = _ome_text(form, shape, dtype) if is_ome else _imagej_text(form, frames, largest)
    about: dict[str, Any] = {"description": text} | _resolution(form.scale)
    with whole_file(path) as file, tifffile.TiffWriter(file, bigtiff=is_big) as writer:

        def add(labels: Labels) -> None:
            nonlocal about
            # Deflate is what everybody reads without further packages. One thread: the server needs the others.
            writer.write(
                labels.astype(dtype, copy=False),
                photometric="minisblack",
                compression="zlib",
                metadata=None,
                software="triton-sam",
                contiguous=False,
                maxworkers=1,
                **about,
            )
            about.pop("description", None)

        yield add


#: The largest and, turned over, the smallest resolution.
_MOST_PER_UNIT = 2.0**31


def _resolution(scale: Scale) -> dict[str, Any]:
    if not {"y", "x"} <= set(scale.sizes):
        return {}
    per_unit = 1 / scale.sizes["x"], 1 / scale.sizes["y"]
    if not all(1 / _MOST_PER_UNIT <= one <= _MOST_PER_UNIT for one in per_unit):
        return {}  # TIFF has fractions of 32-bit numbers; OME's text has the sizes
    return {"resolution": per_unit, "resolutionunit": _UNITS_OF_TIFF.get(scale.units.get("x", ""), _NO_UNIT)}


def _imagej_text(form: VolumeForm, frames: int, largest: int) -> str:
    scale = form.scale
    lines = ["ImageJ=1.54f", f"images={frames}", f"{'slices' if form.axis == 'z' else 'frames'}={frames}"]
    if form.axis == "t":
        lines.append("hyperstack=true")
    unit = scale.units.get("x") or scale.units.get("z")
    if unit:
        short = unit if unit in _UNITS_OF_TIFF else SHORT_UNITS.get(unit, unit)
        lines.append(f"unit={_escaped(short)}")
    spacing = scale.size_in("z", unit)
    if spacing is not None:
        lines.append(f"spacing={spacing!r}")
    if "t" in scale.sizes:
        lines.append(f"finterval={scale.sizes['t']!r}")
        lines.append(f"tunit={_escaped(SHORT_UNITS.get(scale.units.get('t', ''), scale.units.get('t', 's')))}")
    return "\n".join([*lines, "loop=false", "min=0.0", f"max={float(largest)}", ""])


def _escaped(text: str) -> str:
    """As ImageJ writes letters beyond ASCII."""
    plain = text.replace("\n", " ")
    return "".join(letter if letter.isascii() else f"\\u{ord(letter):04X}" for letter in plain)


def _ome_text(form: VolumeForm, shape: Shape, dtype: np.dtype[Any]) -> str:
    frames, height, width = shape
    pixels: dict[str, Any] = {
        "ID": "Pixels:0",
        "DimensionOrder": "XYCZT",
        "Type": dtype.name,
        "SizeX": width,
        "SizeY": height,
        "SizeC": 1,
        "SizeZ": frames if form.axis == "z" else 1,
        "SizeT": frames if form.axis == "t" else 1,
    }
    sizes, units = form.scale.sizes, form.scale.units
    for name in ("x", "y", "z"):
        if name in sizes:
            unit = SHORT_UNITS.get(units.get(name, ""), "reference frame")
            pixels |= {f"PhysicalSize{name.upper()}": repr(sizes[name]), f"PhysicalSize{name.upper()}Unit": unit}
    if "t" in sizes and units.get("t", "second") in SHORT_UNITS:
        pixels |= {"TimeIncrement": repr(sizes["t"]), "TimeIncrementUnit": SHORT_UNITS[units.get("t", "second")]}
    words = " ".join(f"{name}={quoteattr(str(value))}" for name, value in pixels.items())
    text = (
        '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation='
        '"http://www.openmicroscopy.org/Schemas/OME/2016-06 '
        'http://www.openmicroscopy.org/Schemas/OME/2016-06/ome.xsd" Creator="triton-sam">'
        f'<Image ID="Image:0" Name="labels"><Pixels {words}><Channel ID="Channel:0:0" SamplesPerPixel="1"/>'
        f'<TiffData IFD="0" PlaneCount="{frames}"/></Pixels></Image></OME>'
    )
    return text.encode("ascii", "xmlcharrefreplace").decode()

"""Physical sizes of a stack's voxels, as the metadata of TIFF and OME-Zarr have them."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from triton_sam.core.tiff_directories import Directory

_X_RESOLUTION, _Y_RESOLUTION, _RESOLUTION_UNIT = 282, 283, 296
_UNITS_OF_TIFF = {2: "inch", 3: "centimeter"}
#: Short names, as ImageJ and OME-XML have them, of OME-Zarr's long ones.
SHORT_UNITS = {
    "angstrom": "Å",
    "nanometer": "nm",
    "micrometer": "µm",
    "millimeter": "mm",
    "centimeter": "cm",
    "meter": "m",
    "inch": "in",
    "nanosecond": "ns",
    "microsecond": "µs",
    "millisecond": "ms",
    "second": "s",
    "minute": "min",
    "hour": "h",
    "day": "d",
}
_METRES = {
    "angstrom": 1e-10,
    "nanometer": 1e-9,
    "micrometer": 1e-6,
    "millimeter": 1e-3,
    "centimeter": 1e-2,
    "meter": 1.0,
    "inch": 0.0254,
}
_LONG_UNITS = {short: long for long, short in SHORT_UNITS.items()} | {
    "um": "micrometer",
    "μm": "micrometer",  # the Greek letter; the other one is the sign
    "micron": "micrometer",
    "microns": "micrometer",
    "inches": "inch",
    "sec": "second",
    "us": "microsecond",
    "μs": "microsecond",
}
_OME_PIXELS = re.compile(r"<(?:\w{1,20}:)?Pixels\s([^>]{1,4000})>")
_ATTRIBUTE = re.compile(r"""(\w{1,40})\s{0,9}=\s{0,9}(?:"([^"]{0,2000})"|'([^']{0,2000})')""")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
_LONGEST_UNIT = 40


@dataclass(frozen=True, slots=True)
class Scale:
    """Of the dimensions t, z, y and x; what is not known is left out.

    Attributes:
        sizes: of a voxel, and the time from frame to frame.
        units: by OME-Zarr's long names where the unit is one of those.
        origins: where the first voxel is.
    """

    sizes: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, float] = field(default_factory=dict)

    def of(self, names: str) -> Scale:
        """Of these dimensions alone."""
        parts = ({name: each[name] for name in names if name in each} for each in self._parts)
        return Scale(*parts)

    def size_in(self, name: str, unit: str | None) -> float | None:
        """A dimension's size in a unit; None if it is not known in that unit."""
        own = self.units.get(name, unit)
        size = self.sizes.get(name)
        if size is None or own == unit:
            return size
        return size * _METRES[own] / _METRES[unit] if own in _METRES and unit in _METRES else None

    @property
    def _parts(self) -> tuple[Mapping[str, Any], ...]:
        return self.sizes, self.units, self.origins


@dataclass(frozen=True, slots=True)
class VolumeForm:
    """What label volumes take over from the stack that was tracked. It is plain data: ``asdict`` makes JSON of it.

    Attributes:
        axis: ``t`` or ``z``: of the frames.
        is_ome: whether the stack is an OME-TIFF or OME-Zarr.
        zarr_format: of the stack, if it is a Zarr array.
    """

    axis: str = "t"
    scale: Scale = field(default_factory=Scale)
    is_ome: bool = False
    zarr_format: int | None = None

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> VolumeForm:
        """The inverse of ``dataclasses.asdict``."""
        return VolumeForm(**{**content, "scale": Scale(**content["scale"])})


def long_unit(text: str) -> str:
    """A unit as it is written somewhere -> its long name; one that is not known stays as it is."""
    plain = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text).strip()[:_LONGEST_UNIT]
    return _LONG_UNITS.get(plain, _LONG_UNITS.get(plain.lower(), plain.lower() if plain.isascii() else plain))


def scale_of_tiff(directory: Directory, description: str) -> Scale:
    """ImageJ's and OME's metadata, and the resolution of the first page."""
    if "<OME" in description:
        found = _of_ome(description)
        if found.sizes:
            return found
    return _of_resolution(directory, _imagej_fields(description))


def scale_of_multiscale(axes: Sequence[str], units: Sequence[str | None], transforms: Sequence[Any]) -> Scale:
    """OME-Zarr's coordinate transformations, one after the other.

    Args:
        axes: our names of the dimensions.
        transforms: each one of OME-Zarr's documents.
    """
    scales, origins = [1.0] * len(axes), [0.0] * len(axes)
    is_known = False
    for transform in transforms:
        kind = transform.get("type") if isinstance(transform, Mapping) else None
        values = _numbers(transform.get(kind), len(axes)) if kind in ("scale", "translation") else None
        if values is None:
            continue
        is_known = True
        if kind == "scale":
            scales = [one * other for one, other in zip(scales, values, strict=True)]
            origins = [one * other for one, other in zip(origins, values, strict=True)]
        else:
            origins = [one + other for one, other in zip(origins, values, strict=True)]
    return Scale(
        dict(zip(axes, scales, strict=True)) if is_known else {},
        {name: unit for name, unit in zip(axes, units, strict=True) if unit},
        {name: value for name, value in zip(axes, origins, strict=True) if value},
    )


def _of_ome(description: str) -> Scale:
    match = _OME_PIXELS.search(description)
    if match is None:
        return Scale()
    pixels = {
        found[1]: html.unescape(found[2] if found[2] is not None else found[3])
        for found in _ATTRIBUTE.finditer(match[1])
    }
    sizes, units = {}, {}
    for name, key, plain in (
        *((each, f"PhysicalSize{each.upper()}", "µm") for each in "zyx"),
        ("t", "TimeIncrement", "s"),
    ):
        value = _positive(pixels.get(key))
        if value is not None:
            sizes[name], units[name] = value, long_unit(pixels.get(f"{key}Unit", plain))
    return Scale(sizes, units)


def _of_resolution(directory: Directory, fields: Mapping[str, str]) -> Scale:
    sizes, units = {}, {}
    unit = long_unit(fields["unit"]) if fields.get("unit") else None
    in_tag = _UNITS_OF_TIFF.get(directory.number(_RESOLUTION_UNIT, 2)) if fields.get("unit") is None else None
    for name, tag in (("x", _X_RESOLUTION), ("y", _Y_RESOLUTION)):
        per_unit = _rational(directory, tag)
        if per_unit is not None and (unit or in_tag):
            sizes[name], units[name] = 1 / per_unit, unit or in_tag or ""
    spacing = _positive(fields.get("spacing"))
    if spacing is not None:
        sizes["z"] = spacing
        units |= {"z": unit} if unit else {}
    interval = _positive(fields.get("finterval"))
    if interval is not None:
        sizes["t"], units["t"] = interval, long_unit(fields.get("tunit") or "s")
    return Scale(sizes, units)


def _imagej_fields(description: str) -> dict[str, str]:
    if not description.startswith("ImageJ="):
        return {}
    lines = (line.split("=", 1) for line in description.splitlines()[:100] if "=" in line)
    return {name: value.strip() for name, value in lines}


def _rational(directory: Directory, tag: int) -> float | None:
    raw = directory.raw(tag, 8) if tag in directory.entries else None
    if raw is None or len(raw) < 8:
        return None
    above, below = np.frombuffer(raw[:8], directory.source.order + "u4").tolist()
    return above / below if above > 0 and below > 0 else None


def _positive(text: Any) -> float | None:
    try:
        value = float(text)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None


def _numbers(values: Any, count: int) -> list[float] | None:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != count:
        return None
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return numbers if len(numbers) == count else None

"""The options of ``{"everything": {...}}``: parsing and limits.

Names and defaults are those of Meta's automatic mask generators; ``region`` is ours.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from triton_sam.core.json_values import is_finite_number, kind, short
from triton_sam.errors import InvalidInput

#: Forms of the answer, the default first; the pixels and logits of hundreds of masks are too large.
EVERYTHING_FORMATS = ("rle", "png", "polygon", "labels")
#: Points of one request, over all crops: about five minutes of a decoder on two cores.
MOST_POINTS = 65_536
#: Name -> (smallest, largest) of whole numbers and of other numbers.
_WHOLE = {
    "points_per_side": (1, 128),
    "points_per_batch": (1, 1024),
    "crop_n_layers": (0, 3),
    "crop_n_points_downscale_factor": (1, 128),
    "min_mask_region_area": (0, 10**9),
}
_REAL = {
    "pred_iou_thresh": (0.0, 1.0),
    "stability_score_thresh": (0.0, 1.0),
    "stability_score_offset": (0.0, 100.0),
    "mask_threshold": (-100.0, 100.0),
    "box_nms_thresh": (0.0, 1.0),
    "crop_nms_thresh": (0.0, 1.0),
    "crop_overlap_ratio": (0.0, 1.0),
}
_FLAGS = ("multimask_output", "use_m2m")
Box = tuple[float, float, float, float]
#: Points of one layer as shares of a crop's sides, xy.
Grid = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class EverythingOptions:
    """What is looked for, and which masks are kept.

    Attributes:
        points_per_side: of the grid; None if ``point_grids`` is given.
        points_per_batch: the most points in one call of the decoder; an engine may take fewer.
        pred_iou_thresh: masks with a higher predicted IoU are kept; None for the model's own default.
        stability_score_thresh, stability_score_offset: masks are kept whose area above ``mask_threshold + offset`` is
            at least this share of their area above ``mask_threshold - offset``.
        mask_threshold: the logit above which a pixel belongs to a mask.
        box_nms_thresh, crop_nms_thresh: of two masks whose boxes have a higher IoU, in one crop or in two, one goes.
        crop_n_layers: layer ``i`` cuts the image into ``4**i`` overlapping crops, each encoded on its own.
        crop_overlap_ratio: of the crops of the first layer, as a share of the shorter side.
        crop_n_points_downscale_factor: layer ``i`` has ``points_per_side / factor**i`` points a side.
        point_grids: one for each layer instead of ``points_per_side``.
        min_mask_region_area: smaller holes and islands are cleaned away, original pixels; 0 for none.
        multimask_output: all masks of a point are judged, instead of one.
        use_m2m: each mask is decoded once more with its own logits as mask prompt.
        region: x0, y0, x1, y1 in original pixels. Points lie only in it; the masks found there are not cut to it.
    """

    points_per_side: int | None = 32
    points_per_batch: int = 64
    pred_iou_thresh: float | None = None
    stability_score_thresh: float = 0.95
    stability_score_offset: float = 1.0
    mask_threshold: float = 0.0
    box_nms_thresh: float = 0.7
    crop_n_layers: int = 0
    crop_nms_thresh: float = 0.7
    crop_overlap_ratio: float = 512 / 1500
    crop_n_points_downscale_factor: int = 1
    point_grids: tuple[Grid, ...] | None = None
    min_mask_region_area: int = 0
    multimask_output: bool = True
    use_m2m: bool = False
    region: Box | None = None

    def check_inside(self, width: int, height: int) -> None:
        """Raises InvalidInput if ``region`` reaches outside a ``width`` x ``height`` image."""
        if self.region is None:
            return
        x0, y0, x1, y1 = self.region
        if x0 < 0 or y0 < 0 or x1 > width or y1 > height:
            raise InvalidInput(
                f"region of everything ({x0:g}, {y0:g}, {x1:g}, {y1:g}) reaches outside the image "
                f"of {width} x {height} pixels: clip it"
            )

    def layer_sides(self) -> tuple[int, ...]:
        """Points a side of each layer's grid; for ``point_grids``, nothing."""
        if self.points_per_side is None:
            return ()
        factor = self.crop_n_points_downscale_factor
        return tuple(self.points_per_side // factor**layer for layer in range(self.crop_n_layers + 1))

    def points_in_all(self) -> int:
        """Points of all crops together."""
        if self.point_grids is not None:
            counts = [len(grid) for grid in self.point_grids]
        else:
            counts = [side**2 for side in self.layer_sides()]
        return sum(count * 4**layer for layer, count in enumerate(counts))


_NAMES = tuple(field.name for field in fields(EverythingOptions))


def everything_from(value: Any) -> EverythingOptions | None:
    """The ``everything`` of a prompt; None if it is not asked for. ``{}`` and true take the defaults.

    Raises:
        InvalidInput: one sentence that names the option.
    """
    if value is None or value is False:
        return None
    if isinstance(value, EverythingOptions):
        return value
    if value is True:
        value = {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f'everything is an object of options like {{"points_per_side": 32}}, not {kind(value)}')
    read = {name: _read(str(name), entry) for name, entry in value.items()}
    if read.get("point_grids") is not None:
        if read.get("points_per_side") is not None:
            raise InvalidInput("everything takes points_per_side or point_grids, not both")
        read["points_per_side"] = None
    elif "points_per_side" in read and read["points_per_side"] is None:
        raise InvalidInput("everything without points_per_side needs point_grids")
    options = EverythingOptions(**read)
    _check_points(options)
    return options


def _read(name: str, value: Any) -> Any:
    if name in _WHOLE:
        return None if name == "points_per_side" and value is None else _whole(name, value)
    if name in _REAL:
        return None if name == "pred_iou_thresh" and value is None else _real(name, value)
    if name in _FLAGS:
        if not isinstance(value, bool | np.bool_):
            raise InvalidInput(f"{name} of everything is true or false, not {short(value)}")
        return bool(value)
    if name == "region":
        return None if value is None else _region(value)
    if name == "point_grids":
        return None if value is None else _grids(value)
    near = difflib.get_close_matches(name, _NAMES, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(_NAMES))}"
    raise InvalidInput(f"everything has the unknown option {short(name[:60])}: {hint}")


def _whole(name: str, value: Any) -> int:
    low, high = _WHOLE[name]
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_number or not low <= value <= high:
        raise InvalidInput(f"{name} of everything is a whole number from {low} to {high:,}, not {short(value)}")
    return int(value)


def _real(name: str, value: Any) -> float:
    low, high = _REAL[name]
    if not is_finite_number(value) or not low <= value <= high:
        raise InvalidInput(f"{name} of everything is a number from {low:g} to {high:g}, not {short(value)}")
    return float(value)


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _region(value: Any) -> Box:
    row = _listed(value)
    if not isinstance(row, list | tuple) or len(row) != 4 or not all(map(is_finite_number, row)):
        raise InvalidInput(f"region of everything is a box of four numbers [x0, y0, x1, y1], not {short(row)}")
    x0, y0, x1, y1 = (float(side) for side in row)
    if x1 <= x0 or y1 <= y0:
        raise InvalidInput(
            f"region of everything ({x0:g}, {y0:g}, {x1:g}, {y1:g}) is inverted or empty: "
            "give x0, y0, x1, y1 with x0 < x1 and y0 < y1"
        )
    return x0, y0, x1, y1


def _grids(value: Any) -> tuple[Grid, ...]:
    grids = _listed(value)
    if not isinstance(grids, list | tuple):
        raise InvalidInput(f"point_grids of everything is a list with a grid for each layer, not {kind(grids)}")
    return tuple(_grid(index, _listed(grid)) for index, grid in enumerate(grids))


def _grid(index: int, grid: Any) -> Grid:
    if not isinstance(grid, list | tuple) or not grid:
        raise InvalidInput(f"grid {index} of point_grids is a list of [x, y] from 0 to 1, not {short(grid)}")
    if len(grid) > MOST_POINTS:  # before each of them is checked
        raise InvalidInput(f"grid {index} of point_grids has {len(grid):,} points: {MOST_POINTS:,} are allowed")
    for number, point in enumerate(grid):
        row = _listed(point)
        is_pair = isinstance(row, list | tuple) and len(row) == 2 and all(map(is_finite_number, row))
        if not is_pair or not all(0 <= share <= 1 for share in row):
            raise InvalidInput(f"point {number} of grid {index} is [x, y] as shares from 0 to 1, not {short(row)}")
    return tuple((float(x), float(y)) for x, y in grid)


def _check_points(options: EverythingOptions) -> None:
    layers = options.crop_n_layers + 1
    if options.point_grids is not None and len(options.point_grids) != layers:
        raise InvalidInput(
            f"point_grids of everything has {len(options.point_grids)} grids and crop_n_layers {options.crop_n_layers} "
            f"needs {layers}"
        )
    if 0 in options.layer_sides():
        raise InvalidInput(
            f"crop_n_points_downscale_factor {options.crop_n_points_downscale_factor} leaves no point for layer "
            f"{options.layer_sides().index(0)} of {options.points_per_side} points a side: make it smaller"
        )
    count = options.points_in_all()
    if count > MOST_POINTS:
        raise InvalidInput(
            f"everything would try {count:,} points and {MOST_POINTS:,} are allowed: "
            "lower points_per_side or crop_n_layers, or raise crop_n_points_downscale_factor"
        )

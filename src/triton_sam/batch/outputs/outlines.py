"""The exact outline of a mask as polygons with holes, along its pixels' edges.

It is computed from the run lengths, so its cost grows with the outline and not with the area, and needs no OpenCV.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.rle import runs

Numbers = npt.NDArray[np.int64]
#: Closed, the first point is the last; x, y of pixel corners.
Ring = list[list[int]]
#: Corners by their number, each once.
Loop = list[int]


def polygons_of(document: Mapping[str, Any]) -> list[list[Ring]]:
    """COCO's RLE -> polygons, each the outer ring and then its holes; none for an empty mask.

    Pixels that touch at corners only belong to different polygons, and no ring comes to one corner twice, so every
    polygon is valid by the rules of OGC. With y downwards the signed area of outer rings is positive and of holes
    negative. These are the rules of the web page's exports too.
    """
    height, width = (int(side) for side in document["size"])
    spans = _spans(runs(document), height)
    if not len(spans[0]):
        return []
    corners = _Corners(*spans, height, width)
    loops = corners.loops()
    lengths = np.array([len(loop) for loop in loops])
    ends = np.cumsum(lengths)
    begins = ends - lengths
    at = np.concatenate(loops)
    after = np.arange(1, len(at) + 1)
    after[ends - 1] = begins
    x, y = corners.x[at], corners.y[at]
    is_hole = np.add.reduceat(x * y[after] - x[after] * y, begins) < 0
    points = np.stack((x, y), axis=1).tolist()
    rings = [[*points[begin:end], points[begin]] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    outer, holes = np.flatnonzero(~is_hole).tolist(), np.flatnonzero(is_hole)
    polygons = {number: [rings[number]] for number in outer}
    if len(outer) == 1:
        polygons[outer[0]] += [rings[number] for number in holes.tolist()]
    elif len(holes):
        highest = np.minimum.reduceat(y * corners.pitch + x, begins)
        ring_of_edge = np.empty(len(corners.left_ends), np.int64)
        leaves_level = y == y[after]
        ring_of_edge[corners.rank[at[leaves_level]] // 2] = np.repeat(np.arange(len(loops)), lengths)[leaves_level]
        above = ring_of_edge[_edges_above(corners, spans, highest[holes])]
        owner = {number: number for number in outer}
        for place in np.argsort(highest[holes]).tolist():  # what is above a hole is known before it
            number = int(holes[place])
            owner[number] = owner[int(above[place])]
            polygons[owner[number]].append(rings[number])
    return list(polygons.values())


def _spans(lengths: Numbers, height: int) -> tuple[Numbers, Numbers, Numbers]:
    """Run lengths -> column, first row and row behind the last of the object's runs, cut at the columns' ends."""
    ends = np.cumsum(lengths)
    start, end = ends[:-1:2], ends[1::2]
    start = start[: len(end)]
    is_object = end > start
    start, end = start[is_object], end[is_object]
    is_new = np.concatenate((np.ones(min(1, len(start)), np.bool_), start[1:] > end[:-1]))
    start, end = start[is_new], end[np.concatenate((is_new[1:], is_new[:1]))]
    first = start // height
    columns = (end - 1) // height - first + 1
    place = np.arange(columns.sum()) - np.repeat(np.cumsum(columns) - columns, columns)
    column = np.repeat(first, columns) + place
    top = np.maximum(np.repeat(start, columns) - column * height, 0)
    bottom = np.minimum(np.repeat(end, columns) - column * height, height)
    return column, top, bottom


class _Corners:
    """The corners of a mask's outline, from left to right and down. At each one a vertical and a horizontal edge meet.

    Where two pixels of the object touch at a corner only, there are two corners at one place, one for each pixel.

    Attributes:
        x, y: [N] place of each corner.
        following: [N] the next corner around the outline, the object on the right hand with y downwards.
        rank: [N] place of each corner in the order of rows; corners 2i and 2i + 1 of it are joined.
        left_ends: [N / 2] y * pitch + x of the horizontal edges' left ends, ascending; ``pitch``: width + 1.
    """

    def __init__(self, column: Numbers, top: Numbers, bottom: Numbers, height: int, width: int) -> None:
        # A vertical edge begins or ends where a span on one of its sides does, unless spans on both sides do.
        # Counted as left side minus right side: +1 or -1 is a corner, and +-2 are two of touching pixels.
        keys = np.concatenate([side * (height + 1) + end for side in (column + 1, column) for end in (top, bottom)])
        steps = np.repeat(np.array([1, -1, -1, 1]), len(column))
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        begins = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        total, keys = np.add.reduceat(steps[order], begins), keys[begins]
        total, keys = np.repeat(total, np.abs(total)), np.repeat(keys, np.abs(total))
        self._places = keys
        self._is_double = np.abs(total) == 2
        self.x, self.y = np.divmod(keys, height + 1)
        self.pitch = width + 1

        # Vertical edges join corners 2i and 2i + 1. Of two corners at a place the first one's edge comes from above.
        count = len(keys)
        lower = np.arange(count) % 2 == 1
        goes_down = np.repeat(total[::2] > 0, 2)  # the object is on its left side
        # Horizontal edges do so in the order of rows. Of two corners at a place the first one's edge comes from the
        # left: with the object at top left and bottom right that is the one that has the edge above.
        row_keys = self.y * self.pitch + self.x
        in_rows = np.argsort(2 * row_keys + (lower & (total == 2)), kind="stable")
        self.rank = np.empty(count, np.int64)
        self.rank[in_rows] = np.arange(count)
        self.left_ends = row_keys[in_rows[::2]]
        ends_vertical = lower == goes_down
        self.following = np.where(ends_vertical, in_rows[self.rank ^ 1], np.arange(count) ^ 1)

    def loops(self) -> list[Loop]:
        """All rings; none comes to one place twice."""
        following = self.following.tolist()
        doubles = dict(
            zip(np.flatnonzero(self._is_double).tolist(), self._places[self._is_double].tolist(), strict=True)
        )
        is_done = bytearray(len(following))
        loops: list[Loop] = []
        for start in range(len(following)):
            at = start
            loop: Loop = []
            while not is_done[at]:
                is_done[at] = 1
                loop.append(at)
                at = following[at]
            if loop:
                loops += _parted(loop, doubles) if doubles else [loop]
        return loops


def _parted(loop: Loop, doubles: Mapping[int, int]) -> list[Loop]:
    """Parts of a ring between two visits of a place become rings of their own: holes that touch it, or each other."""
    parts: list[Loop] = []
    rest: Loop = []
    seen: dict[int, int] = {}
    for corner in loop:
        place = doubles.get(corner)
        if place is not None:
            earlier = seen.get(place, len(rest))
            # What was seen may be gone already, as a part.
            if earlier < len(rest) and doubles.get(rest[earlier]) == place:
                parts.append(rest[earlier:])
                del rest[earlier:]
            seen[place] = len(rest)
        rest.append(corner)
    return [*parts, rest]


def _edges_above(corners: _Corners, spans: tuple[Numbers, Numbers, Numbers], highest: Numbers) -> Numbers:
    """For each hole the place in ``left_ends`` of an edge above it, of the outer ring or of another hole of its object.

    Above a hole's highest edge is a span of the object: that span's upper edge.

    Args:
        highest: y * pitch + x of the first corner in each hole's highest row.
    """
    column, top, bottom = spans
    stride = int(bottom.max()) + 1
    y, x = np.divmod(highest, corners.pitch)
    span = np.searchsorted(column * stride + bottom, x * stride + y)
    edge: Numbers = np.searchsorted(corners.left_ends, top[span] * corners.pitch + x, side="right") - 1
    return edge

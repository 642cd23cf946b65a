"""Which dimension frames run along, by the names that a stack has, and the sentences where that is not clear."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from triton_sam.errors import InvalidInput
from triton_sam.video.stacks.choice import StackChoice
from triton_sam.video.stacks.dimensions import Dimension, Selection, dimension_name, select


def chosen(names: str, sizes: tuple[int, ...], may_be_rgb: bool = True, **choice: Any) -> Selection:
    """``?`` is a dimension without a name."""
    dimensions = [Dimension(name.replace("?", ""), size) for name, size in zip(names, sizes, strict=True)]
    return select(dimensions, StackChoice.of(**choice), "the stack", may_be_rgb=may_be_rgb)


@pytest.mark.parametrize(
    ("names", "sizes", "choice", "expected"),
    [
        ("zyx", (6, 30, 40), {}, ("z", 6, (40, 30), 1)),
        ("tyx", (6, 30, 40), {}, ("t", 6, (40, 30), 1)),
        ("tczyx", (1, 1, 6, 30, 40), {}, ("z", 6, (40, 30), 1)),
        ("tczyx", (5, 2, 6, 30, 40), {"axis": "z", "at": {"t": 4, "c": 1}}, ("z", 6, (40, 30), 1)),
        ("tczyx", (5, 2, 6, 30, 40), {"axis": "t", "at": {"Z": 5, "C": 0}}, ("t", 5, (40, 30), 1)),
        ("xyz", (40, 30, 6), {}, ("z", 6, (40, 30), 1)),
        ("zyxs", (6, 30, 40, 3), {}, ("z", 6, (40, 30), 3)),
        ("zyxs", (6, 30, 40, 3), {"at": {"c": 2}}, ("z", 6, (40, 30), 1)),
        ("zyxc", (6, 30, 40, 4), {}, ("z", 6, (40, 30), 4)),
        ("???", (6, 30, 40), {}, ("t", 6, (40, 30), 1)),
        ("???", (6, 30, 40), {"axis": "z"}, ("z", 6, (40, 30), 1)),
        ("????", (6, 30, 40, 3), {"axis": "z"}, ("z", 6, (40, 30), 3)),
        ("????", (6, 30, 40, 1), {"axis": "z"}, ("z", 6, (40, 30), 1)),
        ("?????", (1, 1, 6, 30, 40), {}, ("t", 6, (40, 30), 1)),
        ("????", (5, 6, 30, 40), {"axes": "TZYX", "axis": "z", "at": {"t": 2}}, ("z", 6, (40, 30), 1)),
        ("????", (6, 30, 40, 3), {"axes": "zyx"}, ("z", 6, (40, 30), 3)),
        ("tyx", (6, 30, 40), {"axes": "ZYX"}, ("z", 6, (40, 30), 1)),
        ("tzcyx", (1, 6, 1, 30, 40), {"axes": "TYX"}, ("t", 6, (40, 30), 1)),
        ("?yx", (6, 30, 40), {"axis": "z"}, ("z", 6, (40, 30), 1)),
        ("yx", (30, 40), {}, ("t", 1, (40, 30), 1)),
        ("zyx", (1, 30, 40), {}, ("z", 1, (40, 30), 1)),
        ("zyx", (1, 30, 40), {"axis": "z"}, ("z", 1, (40, 30), 1)),
    ],
)
def test_what_is_tracked(names: str, sizes: tuple[int, ...], choice: dict[str, Any], expected: tuple[Any, ...]) -> None:
    found = chosen(names, sizes, **choice)
    assert (found.axis, found.length, found.size, found.samples) == expected


@pytest.mark.parametrize(
    ("names", "sizes", "choice", "told"),
    [
        ("tzyx", (5, 6, 30, 40), {}, "has both 6 slices (z) and 5 times (t): give --axis z --at t=0, or --axis t"),
        ("tzyx", (5, 6, 30, 40), {"axis": "z"}, "has t from 0 to 4, and one of them is tracked: give --at t=0"),
        ("czyx", (3, 6, 30, 40), {}, "has c from 0 to 2, and one of them is tracked: give --at c=0"),
        ("tyx", (5, 30, 40), {"axis": "z"}, "no slices along z (t 5, y 30, x 40): give --axis t, or name"),
        ("tzyx", (5, 1, 30, 40), {"axis": "z"}, "no slices along z (t 5, z 1, y 30, x 40): give --axis t"),
        ("yx", (30, 40), {"axis": "z"}, "no slices along z (y 30, x 40): give a stack"),
        ("????", (5, 6, 30, 40), {}, "name all of them with --axes, such as --axes TZYX"),
        ("?????", (5, 6, 30, 40, 3), {}, "name all of them with --axes, such as --axes TZYXS"),
        ("??zyx", (5, 2, 6, 30, 40), {}, "does not say what its dimensions are"),
        ("z?x", (6, 30, 40), {}, "has no dimensions y and x (z 6, unnamed 30, x 40): name its dimensions with --axes"),
        ("?", (6,), {}, "has no dimensions y and x (unnamed 6)"),
        ("zyx", (0, 30, 40), {}, "there are no frames in the stack: it is empty"),
        ("zyx", (6, 30, 40), {"at": {"c": 0}}, "has no dimension c (z 6, y 30, x 40): leave --at c=0 out"),
        ("czyx", (3, 6, 30, 40), {"at": {"c": 3}}, "has c from 0 to 2, and --at c=3 is beyond"),
        ("zyx", (6, 30, 40), {"at": {"z": 3}}, "frames run along z, so --at z=3 cannot hold it"),
        ("zyx", (6, 30, 40), {"at": {"y": 3}}, "the dimension y is the picture's own"),
        ("zyx", (6, 30, 40), {"axes": "TZYX"}, "the axes TZYX name 4 dimensions and the stack has 3"),
        ("zzyx", (6, 6, 30, 40), {}, "has two dimensions of one name"),
    ],
)
def test_what_is_not_clear(names: str, sizes: tuple[int, ...], choice: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        chosen(names, sizes, **choice)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"axis": "x"}, "axis is t (frames of a video) or z (slices of a volume), not 'x'"),
        ({"at": {"c": -1}}, "the dimension c is held at a whole number from 0 on, not at -1"),
        ({"at": {"c": 1.5}}, "not at 1.5"),
        ({"at": {"c": True}}, "not at True"),
        ({"at": "c=1"}, "at is a mapping"),
        ({"contrast": (5, 5)}, "contrast is (low, high) with low below high, not (5, 5)"),
        ({"contrast": (0, float("nan"))}, "contrast is (low, high)"),
        ({"contrast": 7}, "contrast is (low, high), two numbers, not 7"),
        ({"axes": "TZ"}, "axes has a letter for each dimension, Y and X among them"),
        ({"axes": "ZZYX"}, "axes has a letter for each dimension"),
        ({"axes": "Z1YX"}, "axes has a letter for each dimension"),
    ],
)
def test_a_choice_that_makes_no_sense(choice: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        StackChoice.of(**choice)
    assert told in str(caught.value)


def test_a_default_is_told_where_the_file_leaves_it_open() -> None:
    assert chosen("???", (6, 30, 40)).notes[0].startswith("frames run along t, because the stack does not name")
    assert chosen("???", (6, 30, 40), axis="z").notes == chosen("zyx", (6, 30, 40)).notes == ()


def test_names_of_other_programs() -> None:
    assert [dimension_name(name) for name in ("Time", "depth", "Channel", "Y", " x ", None, "position")] == [
        *("t", "z", "c", "y", "x", "", "position")
    ]


@given(st.permutations("tczyx"), st.data())
def test_any_order_of_dimensions(names: list[str], data: st.DataObject) -> None:
    sizes = {name: data.draw(st.integers(2, 9), label=name) for name in names}
    axis = data.draw(st.sampled_from("tz"))
    held = {name: data.draw(st.integers(0, sizes[name] - 1)) for name in names if name not in (axis, "y", "x")}
    found = chosen("".join(names), tuple(sizes[name] for name in names), may_be_rgb=False, axis=axis, at=held)
    assert (found.length, found.size) == (sizes[axis], (sizes["x"], sizes["y"]))
    assert {names[place]: index for place, index in found.fixed.items()} == held
    assert (names[found.y], names[found.x], names[found.frames or 0]) == ("y", "x", axis)

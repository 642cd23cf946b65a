"""Which of a stack's dimensions its frames run along, which two are the picture, and where all others are held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from triton_sam.errors import InvalidInput
from triton_sam.video.stacks.choice import FRAME_AXES, StackChoice

#: Names that other programs give.
_NAMES = {
    "time": "t",
    "frame": "t",
    "frames": "t",
    "depth": "z",
    "plane": "z",
    "slice": "z",
    "slices": "z",
    "channel": "c",
    "channels": "c",
    "row": "y",
    "column": "x",
    "band": "s",
    "rgb": "s",
}
_COLOURS = (3, 4)


@dataclass(frozen=True, slots=True)
class Dimension:
    """Of an array. The name is a letter (t, z, c, y, x, s for the colours of a pixel), or empty if it is unknown."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Selection:
    """What of a stack is tracked. Dimensions are told by their places.

    Attributes:
        axis: ``t`` or ``z``.
        frames: None if there is one frame only.
        colours: of RGB(A); None for grey.
        fixed: place -> index.
        notes: what a user should know, in sentences.
    """

    dimensions: tuple[Dimension, ...]
    axis: str
    frames: int | None
    y: int
    x: int
    colours: int | None
    fixed: Mapping[int, int]
    notes: tuple[str, ...] = ()

    @property
    def length(self) -> int:
        return 1 if self.frames is None else self.dimensions[self.frames].size

    @property
    def size(self) -> tuple[int, int]:
        """(width, height)"""
        return self.dimensions[self.x].size, self.dimensions[self.y].size

    @property
    def samples(self) -> int:
        """Of each pixel."""
        return 1 if self.colours is None else self.dimensions[self.colours].size


def dimension_name(name: str | None) -> str:
    """A name as other programs write it -> ours."""
    small = (name or "").strip().lower()
    return _NAMES.get(small, small)


def select(dimensions: Sequence[Dimension], choice: StackChoice, name: str, *, may_be_rgb: bool = True) -> Selection:
    """Decides what is tracked; InvalidInput if that is not clear.

    Args:
        dimensions: in the order of the array.
        name: of the stack, for messages.
        may_be_rgb: whether a last dimension of 3 or 4 without a name, or of channels, has colours.
    """
    notes: list[str] = []
    named = _renamed(dimensions, choice.axes, name, may_be_rgb=may_be_rgb)
    named = _with_picture(named, name, may_be_rgb=may_be_rgb)
    named = _with_frames(named, choice, name, notes)
    if any(each.size == 0 for each in named):
        raise InvalidInput(f"there are no frames in {name}: it is empty ({_told(named)})")
    places = {each.name: place for place, each in enumerate(named) if each.name}
    colours = _colours(named, choice, may_be_rgb=may_be_rgb)
    axis = choice.axis or _axis(named, name)
    frames = _frames(named, places, axis, choice, name)
    free = {place for place in (frames, places["y"], places["x"], colours) if place is not None}
    fixed = _fixed(named, free, choice.at, name)
    return Selection(named, axis, frames, places["y"], places["x"], colours, fixed, tuple(notes))


def _renamed(
    dimensions: Sequence[Dimension], axes: str | None, name: str, *, may_be_rgb: bool
) -> tuple[Dimension, ...]:
    """With the letters that the user gives; those of colours and of dimensions of length 1 may be left out."""
    if axes is None:
        names = [each.name for each in dimensions]
        if len({each for each in names if each}) != sum(bool(each) for each in names):
            raise InvalidInput(f"{name} has two dimensions of one name ({_told(dimensions)}): name them with --axes")
        return tuple(dimensions)
    longer = [each for each in dimensions if each.size != 1]
    for found in (list(dimensions), longer):
        sizes = [each.size for each in found]
        last = found[-1] if found else Dimension("", 0)
        with_colours = last.name == "s" or (may_be_rgb and last.size in _COLOURS)
        letters = axes + "s" if len(axes) == len(sizes) - 1 and with_colours else axes
        if len(letters) == len(sizes):
            return _named(dimensions, letters, are_all=found is not longer)
    raise InvalidInput(
        f"the axes {axes.upper()} name {len(axes)} dimensions and {name} has {len(dimensions)} ({_told(dimensions)})"
    )


def _named(dimensions: Sequence[Dimension], letters: str, *, are_all: bool) -> tuple[Dimension, ...]:
    """With a letter for each dimension, or for each that is longer than one."""
    left = iter(letters)
    return tuple(Dimension(next(left) if are_all or each.size != 1 else "", each.size) for each in dimensions)


def _with_picture(named: tuple[Dimension, ...], name: str, *, may_be_rgb: bool) -> tuple[Dimension, ...]:
    """With the dimensions y, x and s, which are the last ones where they have no names."""
    found = list(named)
    names = {each.name for each in found}
    if {"y", "x"} <= names:
        return named
    if names != {""} or len(found) < 2:
        raise InvalidInput(f"{name} has no dimensions y and x ({_told(named)}): name its dimensions with --axes")
    has_colours = may_be_rgb and len(found) > 3 and found[-1].size in (1, *_COLOURS)
    last = len(found) - has_colours
    for place, letter in ((last - 2, "y"), (last - 1, "x"), *(((last, "s"),) if has_colours else ())):
        found[place] = replace(found[place], name=letter)
    return tuple(found)


def _with_frames(
    named: tuple[Dimension, ...], choice: StackChoice, name: str, notes: list[str]
) -> tuple[Dimension, ...]:
    """With a name for the one dimension that has none, which the frames run along."""
    nameless = [place for place, each in enumerate(named) if not each.name and each.size != 1]
    if not nameless:
        return named
    if len(nameless) > 1 or any(each.name in FRAME_AXES and each.size > 1 for each in named):
        unused = iter(letter for letter in "tzcqrw" if letter not in {each.name for each in named})
        letters = "".join(each.name or next(unused, "q") for each in named).upper()
        raise InvalidInput(
            f"{name} does not say what its dimensions are ({_told(named)}): name all of them with --axes, such as "
            f"--axes {letters}"
        )
    axis = choice.axis or "t"
    if choice.axis is None:
        notes.append(
            f"frames run along t, because {name} does not name its dimensions: --axis z is for slices, and tracks "
            "both ways"
        )
    found = [replace(each, name="") if each.name == axis else each for each in named]
    found[nameless[0]] = replace(found[nameless[0]], name=axis)
    return tuple(found)


def _colours(named: Sequence[Dimension], choice: StackChoice, *, may_be_rgb: bool) -> int | None:
    """The place of RGB(A), unless one of them is chosen."""
    last = len(named) - 1
    for place, each in enumerate(named):
        is_rgb = each.name == "s" or (may_be_rgb and place == last and each.name == "c" and each.size in _COLOURS)
        if is_rgb and each.size in _COLOURS and not {each.name, "c"} & set(choice.at):
            return place
    return None


def _axis(named: Sequence[Dimension], name: str) -> str:
    there = [each.name for each in named if each.name in FRAME_AXES]
    long = [each.name for each in named if each.name in FRAME_AXES and each.size > 1]
    if len(long) > 1:
        sizes = {each.name: each.size for each in named}
        raise InvalidInput(
            f"{name} has both {sizes['z']} slices (z) and {sizes['t']} times (t): give --axis z --at t=0, or --axis t "
            "--at z=0, with the index that you want"
        )
    return (long or there or ["t"])[0]


def _frames(
    named: Sequence[Dimension], places: Mapping[str, int], axis: str, choice: StackChoice, name: str
) -> int | None:
    """The place of the dimension of frames; None if there is one frame, and the user does not say otherwise."""
    other = FRAME_AXES[1 - FRAME_AXES.index(axis)]
    place, size = places.get(axis), named[places[axis]].size if axis in places else 1
    has_other = other in places and named[places[other]].size > 1
    if choice.axis is not None and size == 1 and (place is None or has_other):
        letters = "".join(each.name or "q" for each in named).upper()
        fix = (
            f"give --axis {other}, or name its dimensions with --axes {letters.replace(other.upper(), axis.upper())}"
            if has_other and place is None
            else f"give --axis {other}"
            if has_other
            else "give a stack, or name its dimensions with --axes"
        )
        raise InvalidInput(f"{name} has no slices along {axis} ({_told(named)}): {fix}")
    if axis in choice.at:
        raise InvalidInput(f"frames run along {axis}, so --at {axis}={choice.at[axis]} cannot hold it: leave it out")
    return place


def _fixed(named: Sequence[Dimension], free: set[int], at: Mapping[str, int], name: str) -> dict[int, int]:
    """Where the dimensions are held that are not tracked."""
    known = {each.name: place for place, each in enumerate(named) if each.name}
    if "s" in known and "c" not in known:
        known["c"] = known["s"]  # people call colours channels
    fixed = {place: 0 for place in range(len(named)) if place not in free}
    for letter, index in at.items():
        place = known.get(letter)
        if place is None:
            raise InvalidInput(f"{name} has no dimension {letter} ({_told(named)}): leave --at {letter}={index} out")
        if place in free:
            raise InvalidInput(f"the dimension {letter} is the picture's own: leave --at {letter}={index} out")
        if index >= named[place].size:
            raise InvalidInput(
                f"{name} has {letter} from 0 to {named[place].size - 1}, and --at {letter}={index} is beyond"
            )
        fixed[place] = index
    given = {known[letter] for letter in at}
    missing = [place for place in fixed if named[place].size > 1 and place not in given]
    if missing:
        more = " ".join(f"--at {named[place].name}=0" for place in missing)
        what = " and ".join(f"{named[place].name} from 0 to {named[place].size - 1}" for place in missing)
        raise InvalidInput(f"{name} has {what}, and one of them is tracked: give {more}, with the number that you want")
    return fixed


def _told(dimensions: Sequence[Dimension]) -> str:
    """``z 64, y 100, x 120``."""
    return ", ".join(f"{each.name or 'unnamed'} {each.size}" for each in dimensions)

"""Options of ``triton-sam track``: prompts in frames, and what is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.cli.image_options import numbers
from triton_sam.core.untrusted import guarded
from triton_sam.errors import InvalidInput
from triton_sam.video.clip import Clip
from triton_sam.video.overlays import CONTAINERS
from triton_sam.video.stacks.label_volumes import is_label_volume

_POINT = "--point FRAME,X,Y[,LABEL][,OBJECT]"
_BOX = "--box FRAME,X0,Y0,X1,Y1[,OBJECT]"
_MASK = "--mask FRAME,FILE[,OBJECT]"
_AT = "--at DIMENSION=INDEX"


@dataclass(eq=False, slots=True)
class TrackPrompt:
    """All that is given for one object in one frame: points and a box, or a mask file."""

    frame: int
    object: int
    points: list[list[float]] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    box: list[float] | None = None
    mask: Path | None = None

    def as_json(self) -> dict[str, Any]:
        """For comparing two runs."""
        given: dict[str, Any] = {"frame": self.frame, "object": self.object, "points": self.points}
        return given | {"labels": self.labels, "box": self.box, "mask": None if self.mask is None else str(self.mask)}


def track_prompts(points: Sequence[str], boxes: Sequence[str], masks: Sequence[str]) -> list[TrackPrompt]:
    """The prompts of the options, in the order of frames; InvalidInput if they are wrong or contradict each other."""
    found: dict[tuple[int, int], TrackPrompt] = {}

    def prompt(frame: int, name: int) -> TrackPrompt:
        return found.setdefault((frame, name), TrackPrompt(frame, name))

    for text in points:
        values = numbers(text, (3, 4, 5), _POINT)
        label = values[3] if len(values) > 3 else 1.0
        if label not in (0, 1):
            raise InvalidInput(f"{text!r} is not a {_POINT}: a label is 1 (object) or 0 (background)")
        entry = prompt(_whole(values[0], text, _POINT), _whole(values[4], text, _POINT) if len(values) > 4 else 1)
        entry.points.append(values[1:3])
        entry.labels.append(int(label))
    for text in boxes:
        values = numbers(text, (5, 6), _BOX)
        entry = prompt(_whole(values[0], text, _BOX), _whole(values[5], text, _BOX) if len(values) > 5 else 1)
        if entry.box is not None:
            raise InvalidInput(f"object {entry.object} has two boxes in frame {entry.frame}: give two objects a number")
        entry.box = values[1:5]
    for text in masks:
        frame, file, name = _mask_option(text)
        entry = prompt(frame, name)
        if entry.mask is not None or entry.points or entry.box is not None:
            raise InvalidInput(f"object {name} has a mask and another prompt in frame {frame}: leave one of them out")
        entry.mask = file
    if not found:
        raise InvalidInput(f"there is nothing to track: give a {_POINT}, a {_BOX} or a {_MASK}")
    return [found[key] for key in sorted(found)]


def places_of(texts: Sequence[str]) -> dict[str, int]:
    """The option ``--at c=1,t=0``, which may be repeated."""
    found: dict[str, int] = {}
    for text in ",".join(texts).split(","):
        match = re.fullmatch(r"\s*(\w+)\s*=\s*(\d+)\s*", text)
        if match is None:
            raise InvalidInput(f"{text!r} is not an {_AT}, such as --at c=1,t=0")
        if match[1].lower() in found:
            raise InvalidInput(f"the dimension {match[1]} is held twice: give one {_AT} for it")
        found[match[1].lower()] = int(match[2])
    return found


def direction_of(clip: Clip, *, forward: bool, reverse: bool, both: bool) -> str:
    """``forward``, ``reverse`` or ``both``: by the options, or both ways through slices."""
    given = [name for name, is_given in (("forward", forward), ("reverse", reverse), ("both", both)) if is_given]
    if len(given) > 1:
        raise InvalidInput(f"--{given[0]} and --{given[1]} contradict each other (--both is both ways): give one")
    return given[0] if given else "both" if clip.axis == "z" and not clip.is_live else "forward"


def mask_file(path: Path, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """[H,W] of a mask file, which is not black where the object is; InvalidInput if it has not this (width, height)."""
    try:
        data = path.open("rb")
    except OSError as error:
        raise InvalidInput(f"the mask {path} cannot be read: {error.strerror or error}") from None
    with data, guarded(lambda: Image.open(data)) as picture:
        if picture.size != size:
            raise InvalidInput(
                f"the mask {path} has {picture.size[0]} x {picture.size[1]} pixels and the video {size[0]} x {size[1]}"
            )
        plain = picture if picture.mode in ("1", "L", "P", "I;16", "I") else picture.convert("L")
        values: npt.NDArray[np.bool_] = np.asarray(guarded(lambda: np.asarray(plain))) != 0
        return values


@dataclass(frozen=True, slots=True)
class Targets:
    """What is written.

    Attributes:
        folders: of label images.
        volumes: label volumes.
        json_form: ``youtube-vis`` or ``coco``.
    """

    overlays: list[Path]
    jsons: list[Path]
    folders: list[Path]
    volumes: list[Path]
    json_form: str

    @property
    def all(self) -> list[Path]:
        return [*self.overlays, *self.folders, *self.volumes, *self.jsons]

    @staticmethod
    def of(texts: Sequence[str], json_form: str) -> Targets:
        """By the names; InvalidInput if one cannot be written, before anything is read."""
        if json_form not in ("youtube-vis", "coco"):
            raise InvalidInput(f"--json is youtube-vis or coco, not {json_form!r}")
        targets = Targets([], [], [], [], json_form)
        for text in texts:
            path = Path(text).expanduser()
            suffix = path.suffix.lower()
            if not path.resolve().parent.is_dir():
                raise InvalidInput(f"the folder of {path} does not exist: create it first")
            if suffix == ".zarr" or (is_label_volume(path) and not (text.endswith(("/", "\\")) or path.is_dir())):
                targets.volumes.append(path)
            elif text.endswith(("/", "\\")) or path.is_dir() or not suffix:
                if path.exists() and not path.is_dir():
                    raise InvalidInput(f"{path} is a file, and a folder of label images would have its name")
                targets.folders.append(path)
            elif suffix in CONTAINERS:
                targets.overlays.append(path)
            elif suffix == ".json":
                targets.jsons.append(path)
            else:
                known = ", ".join([*CONTAINERS, ".tif", ".zarr"])
                raise InvalidInput(f"{text} is neither {known} nor .json, and no folder ({text}/)")
        return targets


def _whole(value: float, text: str, usage: str) -> int:
    if value < 0 or value != int(value):
        raise InvalidInput(f"{text!r} is not a {usage}: frames and objects are whole numbers from 0 on")
    return int(value)


def _mask_option(text: str) -> tuple[int, Path, int]:
    """A file's name may have commas."""
    match = re.fullmatch(r"(\d+),(.+?)(?:,(\d+))?", text)
    if match is None:
        raise InvalidInput(f"{text!r} is not a {_MASK}")
    return int(match[1]), Path(match[2]).expanduser(), int(match[3] or 1)

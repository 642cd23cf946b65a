"""One step of a video session as JSON: parsing and validation.

``{"video": {"session": "a", "step": 3, "do": "track", "frame": 2}, "format": "rle"}``. What a step may have depends on
what it does; ``docs/reference/protocol.md`` has the whole protocol.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from triton_sam.core.json_values import kind, short
from triton_sam.core.masks import FORMATS
from triton_sam.core.prompts import ObjectPrompt, Prompt, PromptLimits, object_prompt
from triton_sam.core.video.given_mask import GivenMask, given_mask
from triton_sam.errors import InvalidInput

#: Largest number of a frame, an object or a step.
MOST = 2**31 - 1
_LONGEST_NAME = 200
_LONGEST_SIDE = 100_000


class Do(str, Enum):
    """What a step does."""

    OPEN = "open"
    """Begins a session, or restores it if the request has a state."""
    PROMPT = "prompt"
    """All points and the box of one object in one frame, or its mask."""
    TRACK = "track"
    """Finds all objects in a frame."""
    CLEAR = "clear"
    """Takes an object's prompts in a frame away."""
    REMOVE = "remove"
    """Forgets an object."""
    RESET = "reset"
    """Forgets all objects."""
    STATE = "state"
    """Only returns the state."""
    CLOSE = "close"
    """Ends the session."""


_ALWAYS = ("session", "step", "do")
_KEYS: Mapping[Do, tuple[str, ...]] = {
    Do.OPEN: ("length", "width", "height"),
    Do.PROMPT: ("frame", "object", "points", "labels", "box", "mask"),
    Do.TRACK: ("frame", "reverse", "state"),
    Do.CLEAR: ("frame", "object"),
    Do.REMOVE: ("object",),
    Do.RESET: (),
    Do.STATE: (),
    Do.CLOSE: (),
}
_KNOWN = (*_ALWAYS, *dict.fromkeys(key for keys in _KEYS.values() for key in keys))
#: Those with an image, which is the frame.
WITH_IMAGE = frozenset({Do.PROMPT, Do.TRACK})


@dataclass(frozen=True, slots=True, eq=False)
class VideoRequest:
    """One step of a session.

    Attributes:
        step: counts the session's requests from 0.
        format: of the masks in ``result_json``.
        frame: counted from 0; None for steps without one.
        object: its number; None for steps of all objects.
        prompt: points and box in original pixels; None if the prompt is a mask, or the step is no prompt.
        mask: the object's mask, given by a person.
        reverse: whether the video is tracked backward.
        state: whether the response has the session's state.
        length: number of frames of the video; None if it has no end.
        size: (width, height) of all frames; None if the first frame decides.
    """

    session: str
    step: int
    do: Do
    format: str = "rle"
    frame: int | None = None
    object: int | None = None
    prompt: ObjectPrompt | None = None
    mask: GivenMask | None = None
    reverse: bool = False
    state: bool = False
    length: int | None = None
    size: tuple[int, int] | None = None

    @property
    def named(self) -> str:
        """As error messages name it: "step 5 (frame 12)"."""
        return f"step {self.step} ({self.do.value if self.frame is None else f'frame {self.frame}'})"

    def check_prompt(self, width: int, height: int) -> None:
        """Raises InvalidInput for points, a box or a mask that does not fit a frame of ``width`` x ``height``."""
        if self.prompt is not None:
            Prompt((self.prompt,)).check_inside(width, height)
        if self.mask is not None:
            self.mask.check_size(width, height)


def video_request(document: Mapping[str, Any], limits: PromptLimits | None = None) -> VideoRequest:
    """``prompt_json`` with the key ``video`` -> the step; InvalidInput if it is not valid."""
    beside = sorted(str(key) for key in set(document) - {"video", "format"})
    if beside:
        raise InvalidInput(f"{short(beside[0][:60])} cannot stand beside video: put it into video, or leave it out")
    entry = document["video"]
    if not isinstance(entry, Mapping):
        raise InvalidInput(f'video is an object like {{"session": "a", "step": 0, "do": "open"}}, not {kind(entry)}')
    unknown = sorted(str(key) for key in set(entry) - set(_KNOWN))
    if unknown:
        raise InvalidInput(f"video has the unknown key {short(unknown[0][:60])}: {_hint(unknown[0], _KNOWN)}")
    do = _do(entry.get("do"))
    foreign = [key for key in entry if key not in (*_ALWAYS, *_KEYS[do])]
    if foreign:
        raise InvalidInput(f'{foreign[0]} has no meaning for "do": "{do.value}" of video: leave it out')
    form = document.get("format", "rle")
    if form not in FORMATS:
        raise InvalidInput(f"format is one of {', '.join(FORMATS)}, not {short(form)}")
    prompt, mask = _prompt(entry, limits or PromptLimits()) if do is Do.PROMPT else (None, None)
    return VideoRequest(
        session=_session(entry.get("session")),
        step=_whole(entry, "step"),
        do=do,
        format=form,
        frame=_whole(entry, "frame") if "frame" in _KEYS[do] else None,
        object=_whole(entry, "object", -MOST) if "object" in _KEYS[do] else None,
        prompt=prompt,
        mask=mask,
        reverse=_flag(entry, "reverse"),
        state=_flag(entry, "state") or do is Do.STATE,
        length=None if entry.get("length") is None else _whole(entry, "length", 1),
        size=_size(entry),
    )


def _do(value: Any) -> Do:
    names = [do.value for do in Do]
    if value is None:
        raise InvalidInput(f"video needs do, which is one of {', '.join(names)}")
    if value not in names:
        raise InvalidInput(f"do of video cannot be {short(value)}: {_hint(value, names)}")
    return Do(value)


def _hint(name: Any, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name[:60], known, 1, 0.5) if isinstance(name, str) else []
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"


def _session(value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > _LONGEST_NAME or not value.isprintable():
        raise InvalidInput(
            f"session of video is a name of 1 to {_LONGEST_NAME} printable characters, not {short(value)}"
        )
    return value


def _whole(entry: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= MOST:
        given = f"not {short(value)}" if name in entry else "and it is missing"
        raise InvalidInput(f"{name} of video is a whole number from {least:,} on, {given}")
    return value


def _flag(entry: Mapping[str, Any], name: str) -> bool:
    value = entry.get(name, False)
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} of video is true or false, not {short(value)}")
    return value


def _size(entry: Mapping[str, Any]) -> tuple[int, int] | None:
    given = [name for name in ("width", "height") if entry.get(name) is not None]
    if not given:
        return None
    if len(given) == 1:
        raise InvalidInput("width and height of video belong together: give both, or none of them")
    width, height = (_whole(entry, name, 1) for name in given)
    if max(width, height) > _LONGEST_SIDE:
        raise InvalidInput(f"frames of {width} x {height} pixels are too large: {_LONGEST_SIDE:,} a side are allowed")
    return width, height


def _prompt(entry: Mapping[str, Any], limits: PromptLimits) -> tuple[ObjectPrompt | None, GivenMask | None]:
    mask = entry.get("mask")
    prompt = object_prompt(entry.get("points"), entry.get("labels"), entry.get("box"), limits=limits)
    if mask is None and prompt is None:
        raise InvalidInput("the prompt of video is empty: give points, a box or a mask")
    if mask is None:
        return prompt, None
    if prompt is not None:
        raise InvalidInput("the prompt of video is points and a box, or a mask: leave one of them out")
    return None, given_mask(mask)

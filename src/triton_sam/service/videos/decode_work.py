"""Reads an uploaded video into a store of frames; runs in :mod:`.child_process`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from triton_sam.errors import InvalidInput, TooLarge
from triton_sam.service.videos.frame_store import FrameWriter
from triton_sam.video.clip import ClipLimits
from triton_sam.video.untrusted import open_untrusted

#: A file may promise more frames than it has, by its rounded times.
_PROMISE_MARGIN = 1.5
#: Options of the command line in messages about stacks, which are fields of the form here.
_OPTION = re.compile(r"--(axis|axes|at|contrast) ?")


def decode(request: dict[str, Any]) -> dict[str, Any]:
    """Writes the frames; what is known of the video."""
    folder, limits = Path(request["folder"]), request["limits"]
    most = int(limits["frames"])
    try:
        clip = open_untrusted(
            folder / request["file"],
            ClipLimits(limits["frame_pixels"], limits["frame_bytes"]),
            **request["choice"],
        )
    except InvalidInput as error:
        raise type(error)(_OPTION.sub(r"\1=", str(error))) from None
    if clip.expected is not None and clip.expected > _PROMISE_MARGIN * most:
        raise TooLarge(f"the video has about {clip.expected:,} frames and {most:,} are allowed: cut it")
    writer = FrameWriter(folder)
    for frame in clip.frames():
        if writer.count >= most:
            raise TooLarge(f"the video has more frames than the {most:,} that are allowed: cut it")
        if writer.size + len(frame.data) > limits["clip_bytes"]:
            raise TooLarge(
                f"the frames of the video have more than {limits['clip_bytes']:,} bytes: cut it, or scale it down"
            )
        writer.add(frame.data, frame.seconds)
    writer.close()
    rate = clip.rate
    return {
        "width": clip.size[0],
        "height": clip.size[1],
        "frames": writer.count,
        "fps": rate if rate is not None and 0 < rate < 100_000 else None,
        "axis": clip.axis,
        "contrast": None if clip.contrast is None else asdict(clip.contrast),
        "notes": [_without_path(note, request) for note in (*clip.notes, *clip.notices)],
        "form": asdict(clip.form),
    }


def _without_path(note: str, request: dict[str, Any]) -> str:
    return note.replace(f"{request['folder']}/{request['file']}", request["name"])

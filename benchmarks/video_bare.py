"""Tracking without a server, for ``benchmarks.video_device``: transformers' session, or the engine alone.

usage: python -m benchmarks.video_bare (transformers | bare) FOLDER FRAMES OBJECTS ...

FOLDER is the model repository, and FRAMES a folder with JPEG files. Figures are printed as JSON, one line each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from benchmarks.device_scale import MODEL, say
from benchmarks.video_film import places
from benchmarks.video_weights import spec_in, transformers_model
from triton_sam.backend.video.track_session import Forms, Limits, TrackSession
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.loading import load_engine
from triton_sam.settings import Settings

#: Frames to fill the memory, and then those that are measured.
_WARM, _FRAMES = 24, 40
_ON_GPU = torch.cuda.is_available()


def transformers(folder: Path, frames: list[Path], objects: list[int]) -> None:
    """Its session in bfloat16, eager; frames are on the device already, and masks stay there."""
    from transformers import Sam2VideoInferenceSession

    spec, device = spec_in(folder), "cuda" if _ON_GPU else "cpu"
    network = transformers_model(folder).to(device, torch.bfloat16)
    video = _pixels(frames, spec.side).to(device, torch.bfloat16)
    with Image.open(frames[0]) as first:
        width, height = first.size
    for count in objects:
        session = Sam2VideoInferenceSession(
            video=video, video_height=height, video_width=width, inference_device=device, dtype=torch.bfloat16
        )
        for number, (x, y) in enumerate(places(count, spec.side, spec.side)):
            index = session.obj_id_to_idx(number)
            point = torch.tensor([[[[x, y]]]], device=device)
            labels = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
            session.add_point_inputs(index, 0, {"point_coords": point, "point_labels": labels})
        session.obj_with_new_inputs = list(range(count))
        with torch.inference_mode():
            network(session, frame_idx=0)
            walk = network.propagate_in_video_iterator(session, start_frame_idx=1)
            for _ in range(_WARM):
                next(walk)
            taken = _times(lambda walk=walk: next(walk), _FRAMES)  # type: ignore[misc]
        say(transformers="eager bfloat16", objects=count, frame_ms=taken)


def bare(folder: Path, frames: list[Path], objects: list[int]) -> None:
    """The engine in this process, with our kernels and without compiled steps."""
    spec = spec_in(folder)
    engine: Any = load_engine(
        spec, folder / MODEL / "1", Settings(engine="torch", device="auto" if _ON_GPU else "cpu", torch_compile="off")
    )
    assert spec.memory is not None
    files = [EncodedImage(path.read_bytes(), max_bytes=2**24, max_pixels=2**24) for path in frames]
    say(bare="prepare", frame_ms=_times(lambda: engine.prepare(files[0]), _FRAMES))
    prepared = engine.prepare(files[0])
    say(bare="encode", frame_ms=_times(lambda: engine.encode([prepared]), _FRAMES))
    embeddings = [engine.encode([engine.prepare(file)])[0] for file in files]
    width, height = files[0].size
    for count in objects:
        session = TrackSession(spec.memory, Limits())
        for number, (x, y) in enumerate(places(count, width, height)):
            prompt = ObjectPrompt(np.array([[x, y]], np.float32), np.ones(1, np.int32))
            step = session.prompt(0, number, embeddings[0], prompt)
            step.finish(engine.track(step.rows))
        at = iter(range(10**6))

        def track(session: TrackSession = session, at: Any = at) -> None:
            frame = next(at)
            step = session.track(frame, embeddings[frame % len(embeddings)], forms=Forms(columns=True))
            step.finish(engine.track(step.rows) if step.rows else [])

        for _ in range(_WARM):
            track()
        say(bare="track", objects=count, frame_ms=_times(track, _FRAMES))
    engine.close()


def _times(action: Callable[[], Any], count: int) -> float:
    """The median, in milliseconds, with everything on the device done."""
    taken = []
    for _ in range(count):
        if _ON_GPU:
            torch.cuda.synchronize()
        begun = time.perf_counter()
        action()
        if _ON_GPU:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return round(1e3 * statistics.median(taken), 2)


def _pixels(frames: list[Path], side: int) -> torch.Tensor:
    """[T,3,side,side] normalised; frames repeat."""
    mean, deviation = (torch.tensor(each).reshape(3, 1, 1) for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    found = []
    for path in frames:
        with Image.open(path) as opened:
            picture = np.asarray(opened.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
        found.append((torch.from_numpy(picture.copy()).permute(2, 0, 1).float() / 255 - mean) / deviation)
    wanted = _WARM + _FRAMES + 2
    return torch.stack([found[number % len(found)] for number in range(wanted)])


def main() -> None:
    part, folder, frames, *objects = sys.argv[1:]
    {"transformers": transformers, "bare": bare}[part](
        Path(folder), sorted(Path(frames).glob("*.jpg")), [int(count) for count in objects]
    )


if __name__ == "__main__":
    main()

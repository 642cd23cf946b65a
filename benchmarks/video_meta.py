"""Tracking of the torch engine against Meta's own video predictor, with the same random weights and frames.

usage: python -m benchmarks.video_meta SOURCE [--model sam2.1:base_plus] [--device auto] [--dtypes float32 auto]

SOURCE holds the package ``sam2`` of the source distribution of PyPI's ``sam2`` 1.1.0, which is not part of this
project. Meta's predictor gets random weights; its checkpoint is written as Meta writes one and read as ours are, so
that names and shapes are checked too. Both see the same pixels: two objects of a click and of a box, a mask in a later
frame, corrections in two clicks, forward and backward. Meta's runs in float32 without TF32, ours in each precision.
Differences are those of low-resolution logits, as shares of their deviation. Figures are printed as JSON, one line
each; the exit status is 1 if float32 differs by more than the bar.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from benchmarks.video_meta_model import CONFIGS, MetaVideo, make_predictor, shift_appearance
from triton_sam.backend.video.track_session import FrameMasks, Limits, Step, TrackSession
from triton_sam.core.images import EncodedImage
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.engines.base import Embedding
from triton_sam.engines.loading import load_engine
from triton_sam.export.network_file import write_checkpoint_network
from triton_sam.models.catalog import get_spec
from triton_sam.models.specs import NETWORK_FILE
from triton_sam.repository.model_folders import with_memory
from triton_sam.settings import Settings

SIDE = 1024
FRAMES = 25
BAR = 1e-3
_SEEDS = range(3, 15)
#: Share of the results in which an object is there, in a run that proves something.
_THERE = (0.6, 0.98)
#: Frames in which nothing is shown.
EMPTY = range(7, 9)
#: Added to the score of being there, so that objects are there whatever the network says.
_SURE = 20.0
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Mask = npt.NDArray[np.bool_]
Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Click:
    """Points and a box: all that an object has in a frame."""

    frame: int
    name: int
    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Paint:
    """A mask: everything inside a rectangle."""

    frame: int
    name: int
    rectangle: tuple[int, int, int, int]

    def mask(self, side: int) -> Mask:
        mask = np.zeros((side, side), bool)
        x0, y0, x1, y1 = self.rectangle
        mask[y0:y1, x0:x1] = True
        return mask


@dataclass(frozen=True)
class Follow:
    """Tracking from one frame to another, backward if that comes before it."""

    first: int
    last: int


Action = Click | Paint | Follow
SCRIPT: tuple[Action, ...] = (
    Click(0, 1, ((400, 380),), (1,)),
    Click(0, 2, box=(520, 260, 800, 600)),
    Follow(0, 9),
    Paint(10, 2, (200, 430, 470, 790)),
    Follow(10, 18),
    Click(15, 1, ((640, 700),), (1,)),
    Click(15, 1, ((640, 700), (150, 130)), (1, 0)),
    Follow(15, FRAMES - 1),
    Follow(13, 4),
)


@dataclass(frozen=True, eq=False)
class Found:
    """One object in one frame, after one action.

    Attributes:
        logits: [h,w] low-resolution logits.
    """

    what: str
    logits: Logits
    appearance: float


def pictures(count: int, side: int) -> list[npt.NDArray[np.uint8]]:
    """[side,side,3] of each frame: blobs that move over a ground, and two frames with nothing."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:side, :side].astype(np.float32) / side
    ground = np.asarray(
        Image.fromarray(rng.integers(60, 190, (6, 6, 3), np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    ).astype(np.float32)
    colours, centres, ways = rng.normal(size=(4, 3)) * 90, rng.uniform(0.2, 0.8, (4, 2)), rng.normal(size=(4, 2)) / 30
    found = []
    for frame in range(count):
        picture = ground + 6 * rng.normal(size=ground.shape).astype(np.float32)
        for colour, centre, way in zip(colours, centres, ways, strict=True):
            across, down = 0.5 + 0.4 * np.sin(np.pi * (centre + way * frame))
            near = np.exp(-((x - across) ** 2 + (y - down) ** 2) / 0.008)
            picture += colour * near[..., None]
        if frame in EMPTY:
            picture[:] = 0
        found.append(picture.clip(0, 255).astype(np.uint8))
    return found


def by_meta(video: MetaVideo, script: Sequence[Action], side: int) -> Iterator[Found]:
    """What Meta's predictor finds."""
    predictor, state = video.predictor, video.state
    for action in script:
        if isinstance(action, Follow):
            count, reverse = abs(action.last - action.first), action.last < action.first
            walk = predictor.propagate_in_video(state, action.first, count, reverse=reverse)
            frames: Iterator[tuple[int, list[int]]] = ((frame, names) for frame, names, _ in walk)
        else:
            if isinstance(action, Paint):
                predictor.add_new_mask(state, action.frame, action.name, torch.from_numpy(action.mask(side)))
            else:
                points = {} if not action.points else {"points": action.points, "labels": action.labels}
                predictor.add_new_points_or_box(state, action.frame, action.name, box=action.box, **points)
            frames = iter([(action.frame, [action.name])])
        for frame, names in frames:
            for name in names:
                logits, appearance = video.logits(frame, name)
                yield Found(f"{action}: frame {frame}, object {name}", logits.numpy(), appearance)


def set_appearance(predictor: Any, pixels: torch.Tensor) -> bool:
    """Shifts the score of being there so that the first object leaves in the empty frames; whether there is a shift."""
    shift_appearance(predictor, _SURE)
    trial: list[Action] = [Click(0, 1, ((400, 380),), (1,)), Follow(0, EMPTY[-1])]
    scores = [one.appearance for one in by_meta(MetaVideo(predictor, pixels, (SIDE, SIDE)), trial, SIDE)]
    shown, empty = min(scores[: -len(EMPTY)]), scores[-1]
    shift_appearance(predictor, -(shown + empty) / 2)
    return shown > empty


def by_engine(engine: Any, files: Sequence[EncodedImage], script: Sequence[Action]) -> Iterator[Found]:
    """What an engine and a session find."""
    session = TrackSession(engine.spec.memory, Limits(), len(files))
    embeddings: dict[int, Embedding] = {}

    def embedding(frame: int) -> Embedding:
        if frame not in embeddings:
            (embeddings[frame],) = engine.encode([engine.prepare(files[frame])])
        return embeddings[frame]

    for action in script:
        steps: list[tuple[int, Step]] | Iterator[tuple[int, Step]]
        if isinstance(action, Follow):
            way = -1 if action.last < action.first else 1
            steps = (
                (frame, session.track(frame, embedding(frame), reverse=way < 0))
                for frame in range(action.first, action.last + way, way)
            )
        else:
            prompt, mask = None, None
            if isinstance(action, Paint):
                mask = action.mask(files[0].size[0])
            else:
                points = np.array(action.points, np.float32).reshape(-1, 2)
                box = None if action.box is None else np.array(action.box, np.float32)
                prompt = ObjectPrompt(points, np.array(action.labels, np.int32), box)
            seen = embedding(action.frame)
            steps = [(action.frame, session.prompt(action.frame, action.name, seen, prompt, mask))]
        for frame, step in steps:
            masks: FrameMasks = step.finish(engine.track(step.rows) if step.rows else [])
            for one in masks.masks:
                if isinstance(action, Follow) or one.name == action.name:
                    assert one.decoded.logits is not None  # engines that track always make them
                    what = f"{action}: frame {frame}, object {one.name}"
                    yield Found(what, np.array(one.decoded.logits[0]), one.appearance)


def compare(found: Sequence[Found], wanted: Sequence[Found]) -> dict[str, Any]:
    """Largest differences of logits as shares of their deviation, and how far masks agree."""
    assert [one.what for one in found] == [one.what for one in wanted]
    there = [one.logits.std() for one in wanted if one.appearance > 0 and np.abs(one.logits).max() < 1000]
    deviation = float(np.median(there))
    differences = [
        float(np.abs(one.logits - other.logits).max()) / deviation for one, other in zip(found, wanted, strict=True)
    ]
    flipped = sum((one.appearance > 0) != (other.appearance > 0) for one, other in zip(found, wanted, strict=True))
    overlaps = [_overlap(one.logits > 0, other.logits > 0) for one, other in zip(found, wanted, strict=True)]
    worst = int(np.argmax(differences))
    return {
        "compared": len(found),
        "there": sum(one.appearance > 0 for one in wanted),
        "there_differs": flipped,
        "deviation": round(deviation, 3),
        "largest": float(f"{differences[worst]:.3g}"),
        "median": float(f"{np.median(differences):.3g}"),
        "worst": found[worst].what,
        "iou_least": round(min(overlaps), 5),
        "iou_mean": round(float(np.mean(overlaps)), 5),
        "area": round(float(np.mean([(one.logits > 0).mean() for one in wanted])), 3),
    }


def _overlap(one: Mask, other: Mask) -> float:
    either = int((one | other).sum())
    return 1.0 if either == 0 else int((one & other).sum()) / either


def say(**figures: Any) -> None:
    """One line of JSON."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("--model", choices=list(CONFIGS), default="sam2.1:base_plus")
    parser.add_argument("--device", default="auto", help="of both: auto, cpu or cuda")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "auto"], help="auto: as served")
    parser.add_argument("--last", type=int, default=FRAMES - 1, help="tracks no frame behind it, for a short trial")
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda" if given.device != "cpu" and torch.cuda.is_available() else "cpu")
    script = [action for action in SCRIPT if _frames_of(action) <= given.last]
    frames = pictures(given.last + 1, SIDE)
    with tempfile.TemporaryDirectory() as name:
        folder, begun, spec = Path(name), time.perf_counter(), get_spec(given.model)
        predictor, wanted = expected(given, script, frames, device)
        torch.save({"model": predictor.state_dict()}, folder / "meta.pt")
        write_checkpoint_network(spec, folder / "meta.pt", folder / NETWORK_FILE)
        say(model=given.model, device=device.type, actions=len(script), frames=len(frames), s=_since(begun))
        del predictor
        files = [png(one) for one in frames]
        failed = False
        for dtype in given.dtypes:
            settings = Settings(engine="torch", device=given.device, torch_dtype=dtype, torch_compile="off")
            engine: Any = load_engine(with_memory(spec, True), folder, settings)
            begun = time.perf_counter()
            figures = compare(list(by_engine(engine, files, script)), wanted)
            engine.close()
            say(dtype=dtype, numbers=engine.encoder_numbers, **figures, s=_since(begun))
            failed |= dtype == "float32" and (figures["largest"] > BAR or figures["there_differs"] > 0)
    sys.exit(int(failed))


def expected(
    given: argparse.Namespace, script: Sequence[Action], frames: Sequence[npt.NDArray[np.uint8]], device: torch.device
) -> tuple[Any, list[Found]]:
    """A predictor of Meta's whose objects are there in most frames, and what it finds."""
    mean, deviation = (torch.tensor(each).reshape(3, 1, 1) for each in (_MEAN, _DEVIATION))
    pixels = torch.stack([torch.from_numpy(one).permute(2, 0, 1).float() / 255 for one in frames])
    pixels = ((pixels - mean) / deviation).to(device)
    for seed in _SEEDS:
        predictor = make_predictor(given.source, given.model, seed).to(device)
        if len(frames) > EMPTY[-1]:
            if not set_appearance(predictor, pixels):
                continue
        else:
            shift_appearance(predictor, _SURE)
        begun = time.perf_counter()
        found = list(by_meta(MetaVideo(predictor, pixels, (SIDE, SIDE)), script, SIDE))
        there = sum(one.appearance > 0 for one in found) / len(found)
        say(seed=seed, there=round(there, 3), meta_s=_since(begun))
        if _THERE[0] <= there <= _THERE[1] or len(frames) <= EMPTY[-1]:
            return predictor, found
    raise SystemExit("no seed gives objects that come and go")


def _since(begun: float) -> float:
    return round(time.perf_counter() - begun, 1)


def _frames_of(action: Action) -> int:
    return max(action.first, action.last) if isinstance(action, Follow) else action.frame


def png(picture: npt.NDArray[np.uint8]) -> EncodedImage:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG", compress_level=1)
    return EncodedImage(buffer.getvalue(), max_bytes=2**24, max_pixels=2**24)


if __name__ == "__main__":
    main()

"""What people do with a video, done by the oracle and by the package."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.oracles.video import Seen, VideoOracle
from triton_sam.backend.video.track_session import FrameMasks, Limits, TrackSession
from triton_sam.core.geometry import Frame
from triton_sam.core.prompts import ObjectPrompt
from triton_sam.core.video.memory_traits import MemoryTraits
from triton_sam.engines.base import Embedding

WIDTH, HEIGHT = 320, 240
#: In the order in which they were done: (what, object -> its result).
Results = list[tuple[str, dict[int, "Found"]]]


@dataclass(frozen=True)
class Click:
    """Points and a box, all that the object has in the frame, in original pixels."""

    frame: int
    name: int
    points: tuple[tuple[float, float], ...] = ()
    labels: tuple[int, ...] = ()
    box: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Paint:
    """A mask: everything inside a rectangle, original pixels, or nothing."""

    frame: int
    name: int
    rectangle: tuple[int, int, int, int]

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros((HEIGHT, WIDTH), bool)
        x0, y0, x1, y1 = self.rectangle
        mask[y0:y1, x0:x1] = True
        return mask


@dataclass(frozen=True)
class Follow:
    """Tracking from one frame to another, backward if that comes before it."""

    first: int
    last: int


@dataclass(frozen=True)
class Clear:
    frame: int
    name: int


@dataclass(frozen=True)
class Remove:
    name: int


Action = Click | Paint | Follow | Clear | Remove

EMPTY = range(24, 27)
LENGTH = 60
#: Three objects, one of them added in the middle, an occlusion, a correction in two clicks, backward, one removed.
MAIN: tuple[Action, ...] = (
    Click(0, 1, ((100, 80),), (1,)),
    Click(0, 2, box=(150, 50, 250, 150)),
    Follow(0, 19),
    Paint(20, 3, (63, 101, 144, 187)),
    Follow(20, 36),
    Click(30, 1, ((200, 180),), (1,)),
    Click(30, 1, ((200, 180), (40, 30)), (1, 0)),
    Follow(30, 45),
    Remove(2),
    Follow(46, 59),
    Follow(40, 18),
)
#: Prompts in more frames than SAM 3 attends to, prompts taken away, and corrections of a single object.
MANY_PROMPTS: tuple[Action, ...] = (
    Click(3, 1, ((100, 80), (220, 60)), (1, 0)),
    Click(5, 1, box=(60, 50, 160, 150)),
    Paint(9, 1, (33, 31, 124, 103)),
    Follow(3, 12),
    Click(7, 1, ((110, 90),), (1,)),
    Click(11, 1, ((120, 90), (10, 10)), (1, 0)),
    Click(12, 1, ((90, 60),), (0,)),
    Follow(11, 20),
    Clear(9, 1),
    Follow(20, 6),
    Paint(16, 2, (0, 0, 0, 0)),
    Click(16, 2, ((250, 200),), (1,)),
    Follow(16, 22),
)


@dataclass(frozen=True, eq=False)
class Found:
    """[h,w] logits, and the scores of the mask and of being there."""

    logits: npt.NDArray[np.float32]
    appearance: float
    score: float


def run_oracle(oracle: VideoOracle, script: Iterable[Action]) -> Results:
    results: Results = []
    for action in script:
        if isinstance(action, Follow):
            reverse = action.last < action.first
            count = abs(action.last - action.first)
            for frame, found in oracle.propagate(action.first, count, reverse=reverse):
                results.append((f"frame {frame} of {action}", {name: _seen(one) for name, one in found.items()}))
        elif isinstance(action, Clear):
            oracle.clear_prompts(action.frame, action.name)
        elif isinstance(action, Remove):
            oracle.remove_object(action.name)
        elif isinstance(action, Paint):
            seen = oracle.add_mask(action.frame, action.name, action.mask)
            results.append((str(action), {action.name: _seen(seen)}))
        else:
            points, labels = np.array(action.points).reshape(-1, 2), np.array(action.labels, np.int32)
            box = None if action.box is None else np.array(action.box)
            results.append(
                (str(action), {action.name: _seen(oracle.add_points(action.frame, action.name, points, labels, box))})
            )
    return results


def _seen(seen: Seen) -> Found:
    return Found(seen.logits[0, 0].numpy(), float(seen.appearance), float(seen.score))


class SessionRun:
    """A script in a session of the package.

    Args:
        engine: a tracking engine.
        oracle: whose features are the embeddings: that engines encode alike is another test's matter.
    """

    def __init__(self, engine: Any, oracle: VideoOracle, traits: MemoryTraits, limits: Limits | None = None) -> None:
        self.engine, self.oracle = engine, oracle
        self.forgotten: dict[int, list[int]] = {}
        self.session = TrackSession(traits, limits or Limits(), oracle.length)

    def run(self, script: Iterable[Action]) -> Results:
        results: Results = []
        for action in script:
            if isinstance(action, Follow):
                way = -1 if action.last < action.first else 1
                for frame in range(action.first, action.last + way, way):
                    step = self.session.track(frame, self.embedding(frame), reverse=way < 0)
                    results.append((f"frame {frame} of {action}", self._done(step)))
            elif isinstance(action, Clear):
                self.session.clear(action.frame, action.name)
            elif isinstance(action, Remove):
                self.session.remove(action.name)
            else:
                prompt = None if isinstance(action, Paint) else _prompt(action)
                mask = action.mask if isinstance(action, Paint) else None
                step = self.session.prompt(action.frame, action.name, self.embedding(action.frame), prompt, mask)
                results.append((str(action), {action.name: self._done(step)[action.name]}))
        return results

    def embedding(self, frame: int) -> Embedding:
        features = self.oracle.features(frame)
        coarse = self.oracle._without_memory(features)
        by_width = {part.shape[1]: part.numpy() for part in (coarse, *features.fine)}
        spec = self.engine.spec
        tensors = {name: by_width[shape[1]] for name, shape in spec.encoder.outputs}
        return self.engine.adopt(Frame(WIDTH, HEIGHT, spec.side, spec.resize), tensors)

    def _done(self, step: Any) -> dict[int, Found]:
        masks: FrameMasks = step.finish(self.engine.track(step.rows) if step.rows else [])
        self.forgotten |= masks.forgotten
        found = {}
        for one in masks.masks:
            assert one.decoded.logits is not None
            found[one.name] = Found(one.decoded.logits[0], one.appearance, float(one.decoded.scores[0]))
        return found


def _prompt(click: Click) -> ObjectPrompt:
    points = np.array(click.points, np.float32).reshape(-1, 2)
    box = None if click.box is None else np.array(click.box, np.float32)
    return ObjectPrompt(points, np.array(click.labels, np.int32), box)


def assert_same(given: Results, wanted: Results, share: float) -> None:
    """Asserts that logits and scores differ by less than a share of the deviation of the logits of masks that were
    found."""
    found = [one.logits for _, objects in wanted for one in objects.values() if 0 < np.abs(one.logits).max() < 1000]
    deviation = float(np.median([logits.std() for logits in found]))
    assert [what for what, _ in given] == [what for what, _ in wanted]
    for (what, objects), (_, expected) in zip(given, wanted, strict=True):
        assert objects.keys() == expected.keys(), what
        for name, one in expected.items():
            there = objects[name].appearance > 0
            assert there == (one.appearance > 0), f"{what}, object {name}: {one.appearance}"
            difference = float(np.abs(objects[name].logits - one.logits).max())
            assert difference <= share * deviation, f"{what}, object {name}: {difference / deviation:.2g}"
            assert abs(objects[name].score - one.score) <= share, f"{what}, object {name}: score"

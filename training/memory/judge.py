"""Judges a memory by the evaluation clips, in the network of the training: quick on a GPU, without a server.

``python -m training.memory.judge CHECKPOINT MEMORY`` writes J for each clip: with the first frame's true mask, with one
click, and for the image model that is clicked again at the centre of its last mask.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from training.memory.clips import CLIPS, FRAMES, Clip, evaluation_clip
from training.memory.network import SIDE, TRAITS, Frame, Memory, MemoryModel, given_logits, lost
from triton_sam.export.checkpoint import read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys

_POINTERS = 16

Masks = npt.NDArray[np.bool_]


def jaccard(found: Masks, true: Masks) -> float:
    """IoU of two masks; 1 if both are empty, as usual for videos."""
    either = int((found | true).sum())
    return float((found & true).sum()) / either if either else 1.0


def mean_jaccard(found: Masks, true: Masks) -> float:
    """Of frames 2 to the last."""
    return float(np.mean([jaccard(one, other) for one, other in zip(found[1:], true[1:], strict=True)]))


def judge(model: MemoryModel, clips: Sequence[Clip]) -> dict[str, dict[str, float]]:
    """For each way of following, the mean J of each clip, and ``mean`` over them."""
    frames = [_pixels(model, [clip.frames[number] for clip in clips]) for number in range(FRAMES)]
    ways: dict[str, Callable[[], list[Tensor]]] = {
        "mask": lambda: _tracked(model, frames, clips, clicked=False),
        "click": lambda: _tracked(model, frames, clips, clicked=True),
        "image model": lambda: _clicked_again(model, frames, clips),
    }
    results: dict[str, dict[str, float]] = {}
    for way, follow in ways.items():
        found = _enlarged(follow(), clips)
        each = {clip.name: mean_jaccard(masks, clip.masks) for clip, masks in zip(clips, found, strict=True)}
        first = [jaccard(masks[0], clip.masks[0]) for clip, masks in zip(clips, found, strict=True)]
        hidden = [each[clip.name] for clip in clips if clip.hidden]
        summary = {"mean": float(np.mean(list(each.values()))), "mean if hidden": float(np.mean(hidden or [0.0]))}
        results[way] = summary | {"first frame": float(np.mean(first))} | each
    return results


def _pixels(model: MemoryModel, frames: Sequence[npt.NDArray[np.uint8]]) -> Tensor:
    """[N,3,512,512] in [0,1]."""
    stacked = torch.from_numpy(np.stack(frames)).to(model.places.device).permute(0, 3, 1, 2).float() / 255
    return functional.interpolate(stacked, (SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False)


def _tracked(model: MemoryModel, frames: Sequence[Tensor], clips: Sequence[Clip], *, clicked: bool) -> list[Tensor]:
    """[N,128,128] logits of each frame."""
    first = model.encode(frames[0])
    there = torch.ones(len(clips), dtype=torch.bool, device=frames[0].device)
    if clicked:
        found = model.click(first, *_clicks(clips, there.device))
        logits, token = found.logits.float(), found.token
    else:
        masks = torch.from_numpy(np.stack([clip.masks[0] for clip in clips])).to(there.device)[:, None].float()
        large = (functional.interpolate(masks, (SIDE, SIDE), mode="bilinear", antialias=True) >= 0.5).float()
        logits, token = given_logits(large), model.given(first, large)
    start = Memory(model.remember(first, logits, hard=True, there=there), model.point(token, there))
    results, kept = [logits], list[Memory]()
    for number in range(1, len(frames)):
        frame = model.encode(frames[number])
        recent = kept[-(TRAITS.memories - 1) :]
        pointers = kept[-(_POINTERS - 1) :]
        away = [number, *range(len(pointers), 0, -1)]
        distances = torch.tensor(away, device=there.device).float()[None].expand(len(clips), -1) / (_POINTERS - 1)
        ages = [0, *range(len(recent), 0, -1)]
        found = model.track(frame, [start, *recent], ages, [start, *pointers], distances)
        seen = found.appearance > 0
        logits = lost(found.logits.float(), seen)
        kept.append(Memory(model.remember(frame, logits, hard=False, there=seen), model.point(found.token, seen)))
        results.append(logits)
    return results


def _clicked_again(model: MemoryModel, frames: Sequence[Tensor], clips: Sequence[Clip]) -> list[Tensor]:
    points, labels = _clicks(clips, frames[0].device)
    results = []
    cells = torch.arange(SIDE // 4, device=points.device) * 4 + 2.0
    for frame in frames:
        seen: Frame = model.encode(frame)
        logits = model.click(seen, points, labels).logits.float()
        mask = (logits > 0).float()
        area = mask.sum((1, 2)).clamp(min=1)
        centre = torch.stack([(mask.sum(1) * cells).sum(1) / area, (mask.sum(2) * cells).sum(1) / area], -1)[:, None]
        points = torch.where((mask.sum((1, 2)) > 0)[:, None, None], centre, points)
        results.append(logits)
    return results


def _clicks(clips: Sequence[Clip], device: torch.device) -> tuple[Tensor, Tensor]:
    """Points [N,1,2] in model pixels and labels [N,1]."""
    scale = [SIDE / length for length in reversed(clips[0].masks.shape[1:])]
    points = [[(at + 0.5) * by for at, by in zip(clip.click(), scale, strict=True)] for clip in clips]
    return torch.tensor(points, device=device)[:, None], torch.ones(len(clips), 1, device=device)


def _enlarged(logits: Sequence[Tensor], clips: Sequence[Clip]) -> list[Masks]:
    """[T,H,W] of each clip."""
    size = clips[0].masks.shape[1:]
    large = [
        functional.interpolate(one[:, None], size, mode="bilinear", align_corners=False)[:, 0] > 0 for one in logits
    ]
    return list(torch.stack(large, 1).cpu().numpy())


def load(checkpoint: Path, memory: Path) -> MemoryModel:
    """The network in float32 with a memory that was trained."""
    weights = map_keys(read_checkpoint(checkpoint)).tensors | load_file(memory)
    return MemoryModel(weights)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("memory", type=Path)
    parser.add_argument("--clips", type=int, default=CLIPS)
    options = parser.parse_args()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        clips = list(pool.map(evaluation_clip, range(options.clips)))
    model = load(options.checkpoint, options.memory).to("cuda" if torch.cuda.is_available() else "cpu")
    with torch.inference_mode():
        json.dump(judge(model, clips), sys.stdout, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Trains the memory of ``sam2:tiny_video``: ``python -m training.memory.train PHOTOGRAPHS CUTOUTS CHECKPOINT OUT``.

The published image encoder and mask decoder stay as they are. It takes a quarter of an hour of an H200, and can go on
from where it was stopped.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from training.memory.network import SIDE, MemoryModel, is_memory, learns
from training.memory.scenes import Bank, Composer, make_bank
from training.memory.steps import Figures, track_scene
from triton_sam.export.checkpoint import read_checkpoint
from triton_sam.export.checkpoint_keys import map_keys

SEED = 26
_WARM_UP, _KEEPING = 0.03, 0.998
#: Share of the training in which fewer and fewer memories are made of true masks.
_TAUGHT = 0.35
#: Shares of the training until which clips are half as long, with more objects, and after which they are longer.
_SHORTER_UNTIL, _LONGER_AFTER = 0.2, 0.75
_EVERY = 100


def main() -> int:
    options = _options()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(SEED)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    weights = map_keys(read_checkpoint(options.checkpoint)).tensors
    model = MemoryModel(weights | (load_file(options.start) if options.start else {})).to(device)
    say(f"{sum(one.numel() for one in model.parameters() if one.requires_grad) / 1e6:.2f} M parameters on {device}")
    composer = Composer(_bank(options, device), SEED if options.resume is None else SEED + 1)
    run = Run(model, composer, options)
    run.train()
    run.save(options.out)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photographs", type=Path, help="folder of training.memory.photographs")
    parser.add_argument("cutouts", type=Path, help="file of training.memory.cutouts")
    parser.add_argument("checkpoint", type=Path, help="the published image model")
    parser.add_argument("out", type=Path, help="folder for the weights and for what a later run goes on from")
    parser.add_argument("--steps", type=int, default=5000, help="of the whole training")
    parser.add_argument("--seconds", type=float, default=900, help="of the whole training, if that is over sooner")
    parser.add_argument("--resume", type=Path, help="state.pt of an earlier run")
    parser.add_argument("--start", type=Path, help="memory.safetensors to begin with, in place of random numbers")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds of the training at which this run ends")
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--frames", type=int, default=8)
    parser.add_argument("--longer", type=int, default=16, help="frames of a clip near the end of the training")
    parser.add_argument("--rows", type=int, default=32, help="objects of a step")
    parser.add_argument("--rate", type=float, default=4e-4, help="highest learning rate")
    return parser.parse_args()


def _bank(options: argparse.Namespace, device: str) -> Bank:
    started = time.monotonic()
    photographs = [Image.open(path).convert("RGB") for path in sorted(options.photographs.glob("*.jpg"))]
    with np.load(options.cutouts) as found:
        numbers, masks = found["photographs"], np.unpackbits(found["masks"], axis=2)[:, :, :SIDE].astype(bool)
    bank = make_bank(photographs, numbers.tolist(), masks, SEED, device)
    say(f"{len(bank.photographs)} photographs and {len(bank.cuts)} cut-outs in {time.monotonic() - started:.0f} s")
    return bank


class Run:
    """A part of the training, from its start or from where an earlier run ended."""

    def __init__(self, model: MemoryModel, composer: Composer, options: argparse.Namespace) -> None:
        self._model, self._composer, self._options = model, composer, options
        self._learned = {name: one for name, one in model.network.named_parameters() if learns(name)}
        rates = {"lr": options.rate, "betas": (0.9, 0.95), "weight_decay": 0.02, "fused": model.places.is_cuda}
        self._optimiser = torch.optim.AdamW(self._learned.values(), **rates)
        self._random = torch.Generator(model.places.device).manual_seed(SEED)
        self._step, self._passed = 0, 0.0
        self._mean = {name: one.detach().clone() for name, one in self._learned.items()}
        if options.resume is not None:
            self._resume(options.resume)

    def _resume(self, path: Path) -> None:
        state = torch.load(path, map_location=self._model.places.device, weights_only=True)
        with torch.no_grad():
            for name, one in self._learned.items():
                one.copy_(state["weights"][name])
        self._mean, self._step, self._passed = state["mean"], state["step"], state["passed"]
        self._optimiser.load_state_dict(state["optimiser"])
        self._random.manual_seed(SEED + self._step)

    def train(self) -> None:
        """Until the steps or the seconds are over."""
        options, started, earlier = self._options, time.monotonic(), self._passed
        sums: list[Figures] = []
        self._model.train(False)  # nothing in it drops out
        if self._step == 0 and options.start is None:
            scene = self._composer.scene(4, 2)
            with torch.no_grad(), self._cast():
                frame = self._model.encode(scene.frames.flatten(0, 1))
            self._model.fit_norm(frame)
        while True:
            self._passed = earlier + time.monotonic() - started
            done = max(self._step / options.steps, self._passed / options.seconds)
            if done >= 1 or self._passed >= options.until:
                break
            sums.append(self._take_step(done))
            self._step += 1
            if self._step % _EVERY == 0:
                self._tell(sums)
                sums.clear()
        say(f"{self._step} steps in {self._passed:.0f} s")

    def _take_step(self, done: float) -> Figures:
        options = self._options
        rate = options.rate * min(1.0, done / _WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * done)) + 1e-6
        for group in self._optimiser.param_groups:
            group["lr"] = rate
        truth = max(0.0, 1 - done / _TAUGHT)
        frames = (
            options.frames // 2 if done < _SHORTER_UNTIL else options.frames if done < _LONGER_AFTER else options.longer
        )
        share = options.frames / frames
        scene = self._composer.scene(max(2, round(options.clips * share)), frames)
        with self._cast():
            figures = track_scene(self._model, scene, max(2, round(options.rows * share)), truth, self._random)
        self._optimiser.zero_grad(set_to_none=True)
        figures.loss.backward()
        torch.nn.utils.clip_grad_norm_(self._learned.values(), 1.0)
        self._optimiser.step()
        with torch.no_grad():
            kept = min(_KEEPING, (self._step + 1) / (self._step + 10))
            torch._foreach_lerp_(list(self._mean.values()), [one.detach() for one in self._learned.values()], 1 - kept)
        return Figures(figures.loss.detach(), figures.overlap, figures.right)

    def _cast(self) -> torch.autocast:
        return torch.autocast(self._model.places.device.type, torch.bfloat16)

    def _tell(self, sums: list[Figures]) -> None:
        loss, overlap, right = (
            torch.stack([getattr(one, name) for one in sums]).mean().item() for name in ("loss", "overlap", "right")
        )
        say(f"step {self._step}, {self._passed:.0f} s, loss {loss:.3f}, IoU {overlap:.3f}, there or not {right:.3f}")

    def save(self, folder: Path) -> None:
        """The mean of the last weights in half precision, and the state to go on from."""
        folder.mkdir(parents=True, exist_ok=True)
        known = {name: one for name, one in self._model.network.named_parameters() if is_memory(name)}
        halved = {name: one.half().contiguous().cpu() for name, one in (known | self._mean).items()}
        save_file(halved, folder / "memory.safetensors")
        state = {"mean": self._mean, "step": self._step, "passed": self._passed}
        weights = {name: one.detach() for name, one in self._learned.items()}
        torch.save({**state, "weights": weights, "optimiser": self._optimiser.state_dict()}, folder / "state.pt")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

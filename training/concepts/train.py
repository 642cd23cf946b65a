"""Trains ``sam3:shapes``: ``python -m training.concepts.train OUT --seconds 500``.

In several calls with ``--state FILE``: ``--part 0 0.5``, then ``--part 0.5 1`` goes on from FILE. README.md has more.
``--scenes 2 --seconds 60`` shows on a processor that it runs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from training.concepts.clicks import answer_clicks
from training.concepts.hints import Hints
from training.concepts.losses import Targets, find_loss, generous_overlap, mask_loss, whole_loss, xyxy
from training.concepts.network import ConceptNetwork, Found, load_weights, network_weights, plain_masks
from training.concepts.scenes import Batch, Phrases, Scenes
from training.concepts.words import TOKENS, make_tokenizer

SEED = 27
_WARM_UP, _KEEPING, _DECAY, _CLIP = 100, 0.9985, 0.03, 1.0
#: Share of the concepts for whose things masks are made; they cost as much as everything else.
_MASKED = 0.4
#: Things of a concept whose masks are compared.
_THINGS = 10
_CLICKS = 0.5
_EVERY = 100


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--scenes", type=int, default=64)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--begin", type=Path, help="a trained network to begin with, without hints")
    parser.add_argument("--state", type=Path, help="a file to go on with, if it is there, and to write at the end")
    parser.add_argument("--part", type=float, nargs=2, default=(0.0, 1.0), help="of the whole training, which this is")
    parser.add_argument("--plain", action="store_true", help="does not compile the network's layers")
    parser.add_argument("--ways", type=int, default=40, help="phrases for each combination of attributes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    training = Training(options)
    training.run()
    training.save()
    training.save_state()
    say(json.dumps(training.validate(20)))
    return 0


class Training:
    """The network, its running mean, and what it learns from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        cuda = self._device == "cuda"
        torch.manual_seed(SEED)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        plain_masks()
        compiles = cuda and not options.plain
        self.network, self._mean = (ConceptNetwork().to(self._device) for _ in range(2))
        if options.begin is not None:
            load_weights(self.network, {name: one.float() for name, one in load_file(options.begin).items()})
        self._mean.eval().load_state_dict(self.network.state_dict())
        if compiles:
            compile_layers(self.network)
        phrases = Phrases(torch.device(self._device), SEED, options.ways)
        self._scenes = Scenes(self._device, SEED, phrases, fast=cuda)
        self._held_out = Scenes(self._device, SEED + 1, phrases)
        self._random = torch.Generator(self._device).manual_seed(SEED)
        self._hints = Hints().to(self._device)
        self._learning = [one for one in (*self.network.parameters(), *self._hints.parameters()) if one.requires_grad]
        groups = [
            {"params": [one for one in self._learning if one.ndim > 1], "weight_decay": _DECAY},
            {"params": [one for one in self._learning if one.ndim <= 1], "weight_decay": 0.0},
        ]
        self._rate, self._newer = (torch.zeros((), device=self._device) for _ in range(2))
        rate = self._rate if cuda else options.rate
        self._optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=cuda, capturable=cuda)
        self._steps = 0
        self._told: dict[str, Tensor] = {}
        self._sums = torch.zeros(0)
        if options.state is not None and options.state.exists():
            self._load_state(options.state)

    def run(self) -> None:
        """Steps until the time is over, on a GPU by a CUDA graph: it would wait for the processor otherwise."""
        called = time.monotonic()
        graph = self._captured() if self._device == "cuda" else None
        begun = told = time.monotonic()
        say(f"ready after {begun - called:.0f} s, graph: {graph is not None}")
        first, last = self._options.part
        while (share := (time.monotonic() - begun) / max(1.0, self._options.seconds + called - begun)) < 1:
            done = first + (last - first) * share
            rate = self._options.rate * min(1.0, (self._steps + 1) / _WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * done))
            self._rate.fill_(rate)
            self._newer.fill_(1 - min(_KEEPING, self._steps / (self._steps + 20)))
            if graph is None:
                self.step()
            else:
                graph.replay()
            self._steps += 1
            if self._steps % _EVERY == 0:
                values = (self._sums / _EVERY).tolist()
                self._sums.zero_()
                now = time.monotonic()
                line = " ".join(f"{name} {value:.3f}" for name, value in zip(self._told, values, strict=True))
                say(f"{now - begun:.0f} s, step {self._steps}, {(now - told) / _EVERY * 1e3:.0f} ms: {line}")
                told = now
            if self._steps % (10 * _EVERY) == 0:
                say(json.dumps(self.validate(4)))
                self.save()

    def _captured(self) -> torch.cuda.CUDAGraph:
        """A step as a graph; one that nothing was compiled for, if that cannot be had."""
        try:
            return self._capture()
        except RuntimeError:
            say(traceback.format_exc())
        for layer in _several(self.network):
            layer._compiled_call_impl = None
        # The half-made graph keeps the old ones.
        self._scenes = Scenes(self._device, SEED, self._scenes.phrases, fast=True)
        self._random = torch.Generator(self._device).manual_seed(SEED)
        return self._capture()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """After some steps to warm up."""
        self._rate.fill_(1e-6)
        self._newer.fill_(1.0)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        self._sums.zero_()
        graph = torch.cuda.CUDAGraph()
        for random in (self._scenes.random, self._random):
            graph.register_generator_state(random)
        with torch.cuda.graph(graph):
            self.step()
        return graph

    def step(self) -> None:
        """One step on fresh scenes; adds up the parts of its loss."""
        batch = self._scenes.batch(self._options.scenes)
        with torch.autocast(self._device, dtype=torch.bfloat16, enabled=self._device == "cuda"):
            parts = self.losses(batch)
        self._optimiser.zero_grad(set_to_none=True)
        torch.stack([value for value in parts.values() if value.requires_grad]).sum().backward()
        for one in self._learning:
            if one.grad is not None:
                torch.nan_to_num_(one.grad, 0.0, 0.0, 0.0)
        parts["norm"] = torch.nn.utils.clip_grad_norm_(self._learning, _CLIP)
        self._optimiser.step()
        with torch.no_grad():
            means, news = list(self._mean.parameters()), list(self.network.parameters())
            moves = torch._foreach_sub(news, means)
            torch._foreach_mul_(moves, self._newer)
            torch._foreach_add_(means, moves)
            self._told = {name: value.detach() for name, value in parts.items()}
            values = torch.stack([value.float() for value in self._told.values()])
            if not len(self._sums):
                self._sums = torch.zeros_like(values)
            self._sums += values

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        """The parts of the loss."""
        network = self.network
        features = network.backbone(batch.images)
        found, maps, rows = look(network, features, batch)
        targets = targets_of(batch, rows)
        parts, chosen = find_loss(found, targets)
        whole = covered(batch)
        if self._options.begin is None:
            parts["shown"], parts["shapes"], things = self._hints.shown(maps[-1], batch)
            parts["covered"] = self._hints.covered(found.fused, whole, things[rows])
            parts["named"] = self._hints.named(found.prompt[:, :TOKENS], batch)
            parts["shapes"] = parts["shapes"].detach()  # told, and not learned from
        # Masks for concepts of something, as many in each step.
        order = targets.valid.any(1).float() + torch.rand(len(rows), generator=self._random, device=self._device)
        some = order.topk(max(1, int(_MASKED * len(rows)))).indices
        parts["masks"], parts["whole"] = self._mask_loss(found, maps, batch, (some, rows[some], chosen[some], whole))
        clicked, parts["click_iou"] = answer_clicks(network, features, batch, self._random)
        parts["clicks"] = _CLICKS * clicked
        parts["click_iou"] = parts["click_iou"].detach()
        return parts

    def _mask_loss(
        self, found: Found, maps: list[Tensor], batch: Batch, pairs: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Of some things of the concepts ``some``, and of where these concepts are at all."""
        some, rows, matched, whole = pairs
        pixels, said = self.network.pixels(
            [one.index_select(0, rows) for one in maps],
            found.fused.index_select(0, some),
            found.prompt.index_select(0, some),
            found.prompt_mask[some],
        )
        chance = torch.rand(matched.shape, generator=self._random, device=self._device)
        things = (chance + (matched >= 0)).topk(_THINGS, dim=1).indices
        matched = matched.gather(1, things)
        queries = found.queries[-1].index_select(0, some)
        queries = queries.gather(1, matched.clamp(min=0)[..., None].expand(-1, -1, queries.shape[2]))
        logits = self.network.masks(queries, pixels)
        masks = mask_loss(logits, batch.masks[rows[:, None], things].float() / 9, matched >= 0)
        return masks, whole_loss(said, whole[some])

    @torch.no_grad()
    def validate(self, batches: int) -> dict[str, Any]:
        """On held-out scenes of the same generator: F1 of boxes at IoU 0.5, and silence where there is nothing."""
        right = said = true = silent = nothing = 0
        overlaps = []
        for _ in range(batches):
            batch = self._held_out.batch(self._options.scenes)
            with torch.autocast(self._device, dtype=torch.bfloat16, enabled=self._device == "cuda"):
                features = self._mean.backbone(batch.images)
                found, _, rows = look(self._mean, features, batch)
                overlaps.append(answer_clicks(self._mean, features, batch, self._random)[1])
            targets = targets_of(batch, rows)
            scores = found.logits[-1].sigmoid() * found.presence[-1].sigmoid()[:, None]
            answered = scores > 0.5
            _, overlap = generous_overlap(xyxy(found.boxes[-1])[:, None], targets.boxes[:, :, None])
            fits = (overlap > 0.5) & answered[:, None] & targets.valid[..., None]
            right += int(torch.minimum(fits.any(2).sum(), fits.any(1).sum()))
            said, true = said + int(answered.sum()), true + int(targets.valid.sum())
            absent = ~targets.valid.any(1)
            nothing += int(absent.sum())
            silent += int((absent & ~answered.any(1)).sum())
        return {
            "step": self._steps,
            "f1": round(2 * right / max(1, said + true), 4),
            "precision": round(right / max(1, said), 4),
            "recall": round(right / max(1, true), 4),
            "silent": round(silent / max(1, nothing), 4),
            "clicks": round(float(torch.stack(overlaps).mean()), 4),
        }

    def _load_state(self, file: Path) -> None:
        state = torch.load(file, map_location=self._device, weights_only=True)
        for name, one in self._saved().items():
            one.load_state_dict(state[name])
        for group in self._optimiser.param_groups:
            group["lr"] = self._rate if self._device == "cuda" else self._options.rate
        self._steps = state["steps"]
        for random in (self._scenes.random, self._random):  # other scenes than before
            random.manual_seed(SEED + self._steps)

    def save_state(self) -> None:
        """All that a second call goes on with."""
        if self._options.state is not None:
            state = {name: one.state_dict() for name, one in self._saved().items()}
            torch.save(state | {"steps": self._steps}, self._options.state)

    def _saved(self) -> dict[str, Any]:
        parts = ("network", self.network), ("mean", self._mean), ("hints", self._hints), ("optimiser", self._optimiser)
        return dict(parts)

    def save(self) -> None:
        """The running mean in half precision, and the tokenizer."""
        weights = {name: one.detach().half().cpu().contiguous() for name, one in network_weights(self._mean).items()}
        save_file(weights, self._options.out / "network.safetensors")
        make_tokenizer().save(str(self._options.out / "tokenizer.json"))


def compile_layers(network: ConceptNetwork) -> None:
    """Layers that occur several times are compiled once, and what makes maps for masks.

    Those of the text encoder are not: in a capture transformers gives them another kind of mask, and they would be
    compiled anew in the middle of it.
    """
    for layer in _several(network):
        layer.compile(dynamic=False)


def _several(network: ConceptNetwork) -> list[nn.Module]:
    detector = network.detector
    return [
        *network.tracker.vision_encoder.backbone.layers,
        *detector.geometry_encoder.layers,
        *detector.detr_encoder.layers,
        *detector.detr_decoder.layers,
        detector.mask_decoder.pixel_decoder,
    ]


def look(network: ConceptNetwork, features: Tensor, batch: Batch) -> tuple[Found, list[Tensor], Tensor]:
    """All concepts of all scenes; the maps of the scenes, and the scenes' numbers, one for each concept."""
    concepts = batch.tokens.shape[1]
    rows = torch.arange(len(features), device=features.device).repeat_interleave(concepts)
    maps, positions = network.pyramid(features)
    image, places = (one[:, None].expand(-1, concepts, -1, -1, -1).flatten(0, 1) for one in (maps[-1], positions))
    text = network.text(batch.tokens.flatten(0, 1))
    asked = (batch.token_mask, batch.exemplars, batch.labels)
    found = network.find(image, places, text, *(one.flatten(0, 1) for one in asked))
    return found, maps, rows


def targets_of(batch: Batch, rows: Tensor) -> Targets:
    return Targets(batch.boxes[rows], (batch.found & batch.there[:, None]).flatten(0, 1))


def covered(batch: Batch) -> Tensor:
    """[B*C,96,96], the share of each cell that belongs to the concept."""
    masks = batch.masks.flatten(2).to(torch.bfloat16)
    return (torch.bmm(batch.found.to(masks.dtype), masks).float() / 9).clamp(max=1).reshape(-1, *batch.masks.shape[2:])


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

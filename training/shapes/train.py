"""Trains ``vlm:shapes`` from nothing: ``python -m training.shapes.train OUT`` (minutes on a GPU)."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path

import torch

from training.shapes.data import batches
from training.shapes.evaluate import evaluate
from training.shapes.network import make_network, make_processor
from training.shapes.tokens import make_tokenizer

SEED = 1
_WARM_UP = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the model, as transformers saves one")
    parser.add_argument("--scenes", type=int, default=200_000, help="scenes to train on")
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=420, help="training ends after this time at the latest")
    parser.add_argument("--rate", type=float, default=8e-4, help="highest learning rate")
    options = parser.parse_args()
    torch.manual_seed(SEED)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = make_tokenizer()
    network = make_network(tokenizer).to(device)
    say(f"{sum(weight.numel() for weight in network.parameters()) / 1e6:.2f} M parameters on {device}")
    images, tokens, labels = load(options.scenes, device)
    train(network, images, tokens, labels, options)
    network.to(torch.float16).save_pretrained(options.out)
    make_processor(tokenizer).save_pretrained(options.out)
    result = evaluate(options.out, scenes=200)
    (options.out / "accuracy.json").write_text(json.dumps(result, indent=2) + "\n")
    say(json.dumps(result))
    return 0


def load(scenes: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images [N,3,128,128] uint8, tokens and labels [N,Q,144] int16, all on the device."""
    started = time.monotonic()
    size = min(500, scenes)
    parts = []
    for batch in batches(max(1, scenes // size), size, SEED, workers=max(1, (os.cpu_count() or 2) - 1)):
        parts.append(
            [torch.from_numpy(array) for array in (batch.images, batch.tokens.astype("i2"), batch.labels.astype("i2"))]
        )
    images, tokens, labels = (torch.cat([part[index] for part in parts]).to(device) for index in range(3))
    say(f"{len(images)} scenes in {time.monotonic() - started:.0f} s")
    return images, tokens, labels


def train(
    network: torch.nn.Module,
    images: torch.Tensor,
    tokens: torch.Tensor,
    labels: torch.Tensor,
    options: argparse.Namespace,
) -> None:
    """Only answers count for the loss. The learning rate follows the share of steps or of time, the larger one."""
    optimiser = torch.optim.AdamW(network.parameters(), lr=options.rate, betas=(0.9, 0.98), weight_decay=0.05)
    started = time.monotonic()
    network.train()
    for step in range(options.steps):
        done = max(step / options.steps, (time.monotonic() - started) / options.seconds)
        if done >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = options.rate * min(1.0, done / _WARM_UP) * 0.5 * (1 + math.cos(math.pi * done)) + 1e-6
        rows = torch.randint(len(images), (options.batch,), device=images.device)
        columns = torch.randint(tokens.shape[1], (options.batch,), device=images.device)
        asked, told = tokens[rows, columns].long(), labels[rows, columns].long()
        length = int((asked != network.config.text_config.pad_token_id).sum(1).max())
        asked, told = asked[:, :length], told[:, :length]
        pixels = images[rows].float().div_(127.5).sub_(1.0)
        with torch.autocast(images.device.type, torch.bfloat16):
            loss = network(
                input_ids=asked,
                attention_mask=(asked != network.config.text_config.pad_token_id).long(),
                pixel_values=pixels,
                labels=told,
            ).loss
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        if step % 250 == 0:
            say(f"step {step}, {time.monotonic() - started:.0f} s, loss {loss.item():.4f}")
    say(f"{step + 1} steps in {time.monotonic() - started:.0f} s, last loss {loss.item():.4f}")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

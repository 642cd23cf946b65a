"""Scenes and questions as arrays, made by all cores before the training begins."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from training.shapes.network import IMAGE_TOKENS
from training.shapes.scenes import SIDE, ask, draw, make_scene
from training.shapes.tokens import IMAGE, make_tokenizer

LENGTH = 144
IGNORED = -100
QUESTIONS_A_SCENE = 6


@dataclass(frozen=True)
class Batch:
    """``images`` [N,3,128,128] uint8; ``tokens`` and ``labels`` [N,Q,144] int64, padded at the right."""

    images: npt.NDArray[np.uint8]
    tokens: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


def batches(count: int, size: int, seed: int, workers: int) -> Iterator[Batch]:
    """``count`` batches of ``size`` scenes each; equal seeds give equal scenes."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(_make, [(size, seed * 1_000_003 + index) for index in range(count)])


def _make(job: tuple[int, int]) -> Batch:
    size, seed = job
    rng = random.Random(seed)
    tokenizer = make_tokenizer()
    images = np.empty((size, 3, SIDE, SIDE), np.uint8)
    tokens = np.full((size, QUESTIONS_A_SCENE, LENGTH), tokenizer.pad_token_id, np.int64)
    labels = np.full_like(tokens, IGNORED)
    for row in range(size):
        scene = make_scene(rng)
        images[row] = np.asarray(draw(scene)).transpose(2, 0, 1)
        for column in range(QUESTIONS_A_SCENE):
            question = ask(scene, rng)
            prompt, answer = as_texts(_worn(question.text, rng), question.answer)
            asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            told = tokenizer(answer, add_special_tokens=False)["input_ids"]
            whole = asked + told
            tokens[row, column, : len(whole)] = whole
            labels[row, column, len(asked) : len(whole)] = told
    return Batch(images, tokens, labels)


def as_texts(question: str, answer: str) -> tuple[str, str]:
    """(what the model reads, what it shall say), as the chat template and the processor make them."""
    return f"USER: {IMAGE * IMAGE_TOKENS}\n{question} ASSISTANT:", f" {answer}</s>"


def _worn(question: str, rng: random.Random) -> str:
    """As people type: sometimes in small letters, sometimes without the sign at the end."""
    if rng.random() < 0.25:
        question = question[0].lower() + question[1:]
    return question.rstrip("?.") if rng.random() < 0.15 else question

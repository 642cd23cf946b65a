"""Prompts that a function gives: a detector, or whatever a user has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from triton_sam.batch.records import Executor, ItemPrompt, Outcome, Work
from triton_sam.client.user_input import checked_entry
from triton_sam.errors import InvalidInput

#: An image's path -> its prompts: boxes (x0, y0, x1, y1) or dicts as :meth:`SAM2TritonClient.segment` takes them.
PromptsOf = Callable[[Path], Iterable[Any]]


class PromptingExecutor:
    """Asks a function for the prompts of each image, on the thread that submits it."""

    def __init__(self, executor: Executor, prompts: PromptsOf) -> None:
        self._executor = executor
        self._prompts = prompts
        self._refused: list[Outcome] = []

    def room(self) -> int:
        return self._executor.room()

    def submit(self, work: Work) -> None:
        try:
            if work.item.page is not None:
                raise InvalidInput("a function is given a path, and this file has several images")
            prompts = [prompt_of(entry, number) for number, entry in enumerate(self._prompts(work.item.path))]
        except Exception as error:  # the function is the user's
            self._refused.append(Outcome(work, failure=f"its prompts failed: {type(error).__name__}: {error}"))
        else:
            self._executor.submit(replace(work, prompts=prompts))

    def finished(self, timeout: float) -> Sequence[Outcome]:
        if self._refused:
            refused, self._refused = self._refused, []
            return refused
        return self._executor.finished(timeout)

    def describe(self) -> str:
        return self._executor.describe()

    def close(self, *, at_once: bool) -> None:
        self._executor.close(at_once=at_once)


def prompt_of(entry: Any, number: int) -> ItemPrompt:
    """A box, or a dict with points, labels and box; InvalidInput for anything else."""
    given = checked_entry(entry if isinstance(entry, Mapping) else {"box": entry}, number)
    if given.mask_input is not None:
        raise InvalidInput("prompts of a batch job are points and boxes, not masks")
    box = None
    if given.box is not None:
        x0, y0, x1, y1 = map(float, given.box)
        box = (x0, y0, x1, y1)
    points = tuple((float(x), float(y)) for x, y in given.points)
    return ItemPrompt(box, points, tuple(int(label) for label in given.labels))

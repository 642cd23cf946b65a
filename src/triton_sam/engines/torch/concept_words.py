"""Reads texts on the device, each once: features are kept by their words."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from triton_sam.engines.tokenizing import TextTokenizer
from triton_sam.engines.torch.compiled_steps import is_near, load_compiled
from triton_sam.engines.torch.concept_text import TextStep
from triton_sam.engines.torch.fetching import Fetcher
from triton_sam.engines.torch.graphs import Steps, bucket, new_stream
from triton_sam.errors import SetupError

#: Texts whose features are kept, 33 kB each at full size.
_KEPT = 512


class Read(NamedTuple):
    """A text as the detector takes it.

    Attributes:
        features: [T,C] float32 on the device.
        mask: [T] float32 on the device, 1 where there is a token.
    """

    features: Tensor
    mask: Tensor


class WordReader:
    """The text encoder with fixed numbers of texts. It runs on the current stream, under its caller's lock."""

    COUNTS: ClassVar[tuple[int, ...]] = (1, 4)

    def __init__(
        self, step: TextStep, tokenizer: TextTokenizer, fetcher: Fetcher, stream: torch.cuda.Stream | None
    ) -> None:
        """
        Args:
            step: on the fetcher's device.
            stream: on which it is captured, and on which it runs; None: it is not captured.
        """
        self._step, self._tokenizer, self._fetcher, self._stream = step, tokenizer, fetcher, stream
        self._tokens = step.inputs(self.COUNTS[-1], fetcher.device)[0]
        self._steps: dict[int, Steps] = {}
        self._kept: OrderedDict[str, Read] = OrderedDict()

    def warm_up(self) -> None:
        """Captures every number of texts."""
        for count in reversed(self.COUNTS):
            self._steps[count] = self._made(count, self._step)

    def _made(self, count: int, function: Callable[..., Any]) -> Steps:
        return Steps(function, [self._tokens[:count]], self._stream)

    def compiled(self, count: int, folder: Path) -> Callable[[], None]:
        """Compiled code for ``count`` texts; a function that uses it from now on. SetupError if it is wrong."""
        device = self._fetcher.device
        function = load_compiled(folder, self._step, device)
        with torch.inference_mode(), torch.cuda.stream(new_stream(device) if self._stream is not None else None):
            (tokens,) = self._step.inputs(count, device)
            tokens.random_(len(self._step.words))
            if not is_near(function(tokens), self._step(tokens)):
                raise SetupError(f"the compiled text encoder for {count} texts gives other features")

        def use() -> None:
            self._steps[count] = self._made(count, function).instead_of(self._steps_for(count))

        return use

    def _steps_for(self, count: int) -> Steps:
        if count not in self._steps:
            self._steps[count] = self._made(count, self._step)
        return self._steps[count]

    def check(self, text: str) -> None:
        """Raises InvalidInput for a text with too many tokens."""
        if text not in self._kept:
            self._tokenizer.encode(text)

    def read(self, texts: Sequence[str]) -> tuple[list[Read], Callable[[], list[float]]]:
        """Features of texts, and a function that tells, once the device is done, how many milliseconds each took."""
        missing = list(dict.fromkeys(text for text in texts if text not in self._kept))
        spent: dict[str, Callable[[], float]] = {}
        for some in _parts(missing, self.COUNTS[-1]):
            spent |= dict.fromkeys(some, self._encode(some))
        found = []
        for text in texts:
            self._kept.move_to_end(text)
            found.append(self._kept[text])
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return found, lambda: [spent[text]() if text in spent else 0.0 for text in texts]

    def _encode(self, texts: Sequence[str]) -> Callable[[], float]:
        """Keeps the features of a few texts. What it returns tells the milliseconds for each."""
        tokens = [self._tokenizer.encode(text) for text in texts]
        sent = self._fetcher.host(2, len(texts), self._tokens.shape[1], dtype=torch.int64)
        sent.numpy()[:] = [[ids for ids, _ in tokens], [mask for _, mask in tokens]]
        finish = self._timer(len(texts))
        self._tokens[: len(texts)].copy_(sent[0], non_blocking=True)
        masks = sent[1].to(self._fetcher.device, non_blocking=True).float()
        (features,) = self._steps_for(bucket(len(texts), self.COUNTS)).run()
        for text, one, mask in zip(texts, features[: len(texts)].clone(), masks, strict=True):
            self._kept[text] = Read(one, mask)
        return finish()

    def _timer(self, texts: int) -> Callable[[], Callable[[], float]]:
        """Starts to measure; the function ends that, and returns one for the milliseconds of each of the texts."""
        if self._stream is None:
            begun = time.perf_counter()

            def finish() -> Callable[[], float]:
                taken = 1e3 * (time.perf_counter() - begun) / texts
                return lambda: taken

            return finish
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        first.record()

        def record() -> Callable[[], float]:
            last.record()
            return lambda: float(first.elapsed_time(last)) / texts

        return record


def _parts(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    return (texts[start : start + most] for start in range(0, len(texts), most))

"""Questions, and somebody who listens to their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from triton_sam.engines.vlm.base import Ending, Engine, Message, Options, Question


class Heard:
    """Remembers; gone after ``leaves_after`` pieces, raises at the piece of number ``raises_at``."""

    def __init__(self, leaves_after: int | None = None, raises_at: int | None = None) -> None:
        self.pieces: list[str] = []
        self.ending: Ending | None = None
        self._leaves_after, self._raises_at = leaves_after, raises_at

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def piece(self, text: str) -> None:
        assert text
        assert self.ending is None
        if len(self.pieces) == self._raises_at:
            raise ConnectionError("this listener is broken")
        self.pieces.append(text)

    def end(self, ending: Ending) -> None:
        assert self.ending is None
        self.ending = ending

    def is_gone(self) -> bool:
        return self._leaves_after is not None and len(self.pieces) >= self._leaves_after


def picture(number: int = 0) -> Image.Image:
    """Several that differ in size and colour."""
    generator = np.random.default_rng(number)
    height, width = (int(side) for side in generator.integers(40, 120, 2))
    return Image.fromarray(generator.integers(0, 255, (height, width, 3), dtype=np.uint8))


def question(texts: str | Sequence[str], number: int = 0, **options: Any) -> Question:
    """User and assistant in turn; image ``number``."""
    texts = [texts] if isinstance(texts, str) else texts
    turns = tuple(Message("assistant" if place % 2 else "user", text) for place, text in enumerate(texts))
    return Question(picture(number), str(number), turns, Options(**{"max_new_tokens": 24, **options}))


def ask(engine: Engine, *questions: Question, listeners: Sequence[Heard] | None = None) -> list[Heard]:
    """All in one batch."""
    heard = list(listeners or (Heard() for _ in questions))
    engine.answer([engine.prepare(question) for question in questions], heard)
    return heard

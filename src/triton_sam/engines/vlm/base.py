"""What goes into a vision-language engine and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from PIL import Image

from triton_sam.errors import InvalidInput

_NOTHING = Image.new("RGB", (1, 1))


@dataclass(frozen=True, slots=True)
class Options:
    """How an answer is generated.

    Attributes:
        temperature: 0 takes the likeliest token always.
        top_p: tokens are drawn from the likeliest that together have this probability.
        seed: the same seed draws the same tokens, whoever else is in the batch; None draws one.
        stop: the answer ends before the first of these texts.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; ``role`` is user or assistant."""

    role: str
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """An image, what is asked about it, and how to answer.

    Attributes:
        image: RGB, upright.
        image_key: the same for the same image file.
        messages: ends with the user's; the image belongs to the first of theirs.
        size: width and height of the image, also when its pixels are gone.
    """

    image: Image.Image
    image_key: str
    messages: tuple[Message, ...]
    options: Options
    size: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        if self.size == (0, 0):
            object.__setattr__(self, "size", self.image.size)

    def without_image(self) -> Question:
        """The same without its pixels, which may be hundreds of megabytes and are of no use once they are read."""
        return replace(self, image=_NOTHING)

    @property
    def text(self) -> str:
        """What is asked, for models that take one question at a time."""
        self.require_one_message()
        return self.messages[0].text

    def require_one_message(self) -> None:
        """InvalidInput for a conversation."""
        if len(self.messages) != 1:
            raise InvalidInput("this model answers one question at a time: send one message of the user, no history")


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known at the end of an answer.

    Attributes:
        reason: ``stop`` or ``length``.
        entities: ``{"phrase", "start", "end", "boxes"}``, boxes in original pixels; None where the model has none.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int
    entities: Sequence[Mapping[str, Any]] | None = field(default=None)


class Listener(Protocol):
    """Who asked one question. Called from the engine's threads, one call at a time."""

    def piece(self, text: str) -> None:
        """The next piece of the answer, never empty."""

    def end(self, ending: Ending) -> None:
        """The answer is complete."""

    def is_gone(self) -> bool:
        """Whether nobody waits any more."""


class Engine(Protocol):
    """A loaded model.

    Attributes:
        batch: how many questions it answers at a time; 1 where its code takes one.
        concurrent: whether several threads may call :meth:`answer` at a time.
        nbytes: memory of its weights.
    """

    batch: int
    concurrent: bool
    nbytes: int

    def prepare(self, question: Question) -> Any:
        """Tokens and pixels of a question; InvalidInput where it cannot be asked. May run beside :meth:`answer`."""

    def answer(self, prepared: Sequence[Any], listeners: Sequence[Listener]) -> None:
        """Generates all answers in one batch; those whose listener is gone end within two tokens."""

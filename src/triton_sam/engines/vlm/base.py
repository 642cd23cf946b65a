"""The interface of vision-language engines and its data types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from PIL import Image

from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import Task

_NOTHING = Image.new("RGB", (1, 1))


@dataclass(frozen=True, slots=True)
class Options:
    """How an answer is generated.

    Attributes:
        temperature: 0 always takes the likeliest token.
        top_p: tokens are sampled from the likeliest ones that together have this probability.
        seed: the same seed samples the same tokens, whatever else is in the batch; None takes a random one.
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
    """An image, a conversation about it, and the generation options.

    Attributes:
        image: RGB, upright.
        image_key: the same for the same image file.
        messages: ends with the user's; the image belongs to the user's first.
        size: (width, height) of the image, also after its pixels are dropped.
        task: the message is an object's name for DETECT and POINT.
    """

    image: Image.Image
    image_key: str
    messages: tuple[Message, ...]
    options: Options
    size: tuple[int, int] = (0, 0)
    task: Task = Task.ANSWER

    def __post_init__(self) -> None:
        if self.size == (0, 0):
            object.__setattr__(self, "size", self.image.size)

    def without_image(self) -> Question:
        """A copy without the pixels, which may be hundreds of megabytes and are not needed after ``prepare``."""
        return replace(self, image=_NOTHING)

    @property
    def text(self) -> str:
        """The only message, for models that take one question at a time."""
        self.require_one_message()
        return self.messages[0].text

    def require_one_message(self) -> None:
        """Raises InvalidInput for a conversation."""
        if len(self.messages) != 1:
            raise InvalidInput("this model answers one question at a time: send one user message without history")


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an answer.

    Attributes:
        reason: ``stop`` or ``length``.
        entities: ``{"phrase", "start", "end", "boxes"}``, boxes in original pixels; None if the model has none.
        regions: ``{"label", "box"}`` or ``{"label", "point"}`` in original pixels; None for the task ANSWER.
    """

    reason: str
    prompt_tokens: int
    completion_tokens: int
    entities: Sequence[Mapping[str, Any]] | None = field(default=None)
    regions: Sequence[Mapping[str, Any]] | None = None


class Listener(Protocol):
    """Receives the answer to one question. Called from the engine's threads, one call at a time."""

    def piece(self, text: str) -> None:
        """Takes the next piece of the answer, never empty."""

    def end(self, ending: Ending) -> None:
        """Takes the end of the answer."""

    def is_gone(self) -> bool:
        """Whether the client has cancelled."""


class Engine(Protocol):
    """A loaded model.

    Attributes:
        batch: how many questions it answers at a time.
        concurrent: whether several threads may call :meth:`answer` at a time.
        nbytes: memory of its weights.
    """

    batch: int
    concurrent: bool
    nbytes: int

    def prepare(self, question: Question) -> Any:
        """Tokens and pixels of a question; InvalidInput if it is not valid. May run in parallel to :meth:`answer`."""

    def answer(self, prepared: Sequence[Any], listeners: Sequence[Listener]) -> None:
        """Generates all answers in one batch. An answer whose listener is gone ends within two tokens."""

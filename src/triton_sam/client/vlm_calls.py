"""Requests to vision-language models as tensors, and their responses as answers. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import wire
from triton_sam.errors import InvalidInput
from triton_sam.models.vlm_specs import STREAM_SUFFIX, Task

#: A text, or a conversation ``[{"role": "user", "content": "..."}, ...]`` that ends with the user.
Prompt = str | Sequence[Mapping[str, str]]
_OUTPUTS = ("generated_text", "finish_reason", "usage_json")


@dataclass(frozen=True, slots=True)
class Entity:
    """A phrase of an answer, and its boxes in the image.

    Attributes:
        span: (start, end) of the phrase in the answer's text; None if it is in the prompt.
        boxes: x0, y0, x1, y1 of each occurrence, original pixels.
    """

    phrase: str
    span: tuple[int, int] | None
    boxes: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Region:
    """A thing that a model has found: a box or a point, original pixels.

    Attributes:
        box: x0, y0, x1, y1.
        point: x, y.
    """

    label: str
    box: tuple[float, float, float, float] | None = None
    point: tuple[float, float] | None = None

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Region:
        """From JSON; LookupError, TypeError or ValueError if it is none."""
        if entry.get("box") is not None:
            x0, y0, x1, y1 = map(float, entry["box"])
            return cls(str(entry["label"]), box=(x0, y0, x1, y1))
        x, y = map(float, entry["point"])
        return cls(str(entry["label"]), point=(x, y))

    def as_dict(self) -> dict[str, Any]:
        """For JSON: ``{"label", "box"}`` or ``{"label", "point"}``."""
        return {"label": self.label} | ({"point": list(self.point)} if self.point else {"box": list(self.box or ())})

    def as_prompt(self) -> dict[str, Any]:
        """The prompt of one object for a segmenter."""
        return {"points": [list(self.point)], "labels": [1]} if self.point else {"box": list(self.box or ())}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a model.

    Attributes:
        finish_reason: ``stop`` if the model ended it, ``length`` if it was cut at max_new_tokens.
        entities: of models that ground their phrases, such as kosmos2.
        regions: if the call had a task other than ANSWER.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    entities: tuple[Entity, ...] = field(default=())
    regions: tuple[Region, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


# Many parameters: the options of one generation, as users know them from other APIs.
def vlm_call(
    model_name: str,
    image: bytes,
    prompt: Prompt,
    *,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    grounds: bool = True,
    task: Task = Task.ANSWER,
) -> wire.Call:
    """The request of one generation; the server chooses options that are None. InvalidInput for wrong types.

    Args:
        image: the bytes of an image file.
        grounds: whether to request boxes, which only some models have.
        task: for DETECT and POINT the prompt is the name of an object.
    """
    inputs: dict[str, npt.NDArray[Any]] = wire.image_inputs(image)
    if isinstance(prompt, str):
        inputs["prompt"] = _text(prompt, "prompt")
    else:
        inputs["messages_json"] = _text(json.dumps(_messages(prompt), ensure_ascii=False), "prompt")
    for name, integer, dtype in (("max_new_tokens", max_new_tokens, np.int32), ("seed", seed, np.int64)):
        if integer is not None:
            inputs[name] = _integer(name, integer, dtype)
    for name, number in (("temperature", temperature), ("top_p", top_p)):
        if number is not None:
            inputs[name] = _number(name, number)
    if stop:
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise InvalidInput(f"stop must be a text or a list of texts, not {stop!r}")
        inputs["stop"] = np.array([_text(text, "stop")[0] for text in texts], dtype=object)
    outputs = (*_OUTPUTS, "entities_json") if grounds else _OUTPUTS
    if task is not Task.ANSWER:
        inputs["task"] = _text(task.value, "task")
        outputs = (*outputs, "regions_json")
    return wire.Call(str(model_name).removeprefix("vlm:") + STREAM_SUFFIX, inputs, outputs)


def collected(pieces: Sequence[Mapping[str, Any]]) -> Answer:
    """The pieces of a stream as one answer."""
    last = pieces[-1]
    usage, entities, regions = (_document(last, f"{name}_json") for name in ("usage", "entities", "regions"))
    return Answer(
        "".join(wire.text_of(piece, "generated_text") for piece in pieces),
        wire.text_of(last, "finish_reason"),
        int(usage.get("prompt_tokens", 0)) if usage else 0,
        int(usage.get("completion_tokens", 0)) if usage else 0,
        tuple(_entity(entry) for entry in entities or ()),
        tuple(Region.of(entry) for entry in regions or ()),
    )


def _document(piece: Mapping[str, Any], name: str) -> Any:
    return json.loads(wire.text_of(piece, name)) if name in piece else None


def _entity(entry: Mapping[str, Any]) -> Entity:
    span = None if entry["start"] is None else (int(entry["start"]), int(entry["end"]))
    boxes = tuple((float(x0), float(y0), float(x1), float(y1)) for x0, y0, x1, y1 in entry["boxes"])
    return Entity(str(entry["phrase"]), span, boxes)


def _messages(prompt: Any) -> list[dict[str, str]]:
    try:
        messages = [{"role": message["role"], "content": message["content"]} for message in prompt]
    except (TypeError, LookupError):
        messages = []
    if not messages or not all(isinstance(text, str) for message in messages for text in message.values()):
        raise InvalidInput('a prompt must be a text, or a list of messages like {"role": "user", "content": "..."}')
    return messages


def _text(value: str, name: str) -> npt.NDArray[Any]:
    try:
        return wire.text_tensor(value)
    except UnicodeEncodeError:
        raise InvalidInput(f"the {name} contains half of a surrogate pair: send well-formed Unicode") from None


def _integer(name: str, value: Any, kind: type[np.signedinteger[Any]]) -> npt.NDArray[Any]:
    limits = np.iinfo(kind)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not limits.min <= value <= limits.max:
        raise InvalidInput(f"{name} must be an integer of {limits.bits} bits, not {value!r}")
    return np.array([value], kind)


def _number(name: str, value: Any) -> npt.NDArray[Any]:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InvalidInput(f"{name} must be a number, not {value!r}")
    return np.array([value], np.float32)

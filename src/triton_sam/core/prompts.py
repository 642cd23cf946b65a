"""Prompts: parsing and validation, in original pixels.

The JSON form (``prompt_json``)::

    {"points": [[x, y], ...], "labels": [1, 0, ...], "boxes": [[x0, y0, x1, y1], ...],
     "mask_input": <low-res logits>, "multimask": false, "format": "png", "clean": null,
     "objects": [{"points": ..., "labels": ..., "box": ..., "mask_input": ...}, ...]}

Points, one box and a mask at the top level describe ONE object. Several boxes without points are one object each.
Any other prompt with several objects uses ``objects``. ``{"everything": {...}, "format": "rle"}`` asks for all masks of
the image instead (:mod:`~triton_sam.core.everything.options`), and ``text`` or ``exemplars`` ask for all instances of a
concept (:mod:`~triton_sam.core.concepts.request`); neither takes another kind of prompt beside it.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.core.concepts.request import CONCEPT_KEYS, ConceptLimits, ConceptRequest, concepts_from
from triton_sam.core.everything.options import EVERYTHING_FORMATS, EverythingOptions, everything_from
from triton_sam.core.json_values import kind, short
from triton_sam.core.mask_cleaning import Cleaning, cleaning_from
from triton_sam.core.masks import FORMATS
from triton_sam.core.prompt_values import box_row, is_empty, label_row, number_rows, refuse_unknown
from triton_sam.errors import InvalidInput, Unsupported
from triton_sam.settings import Settings

_OBJECT_KEYS = frozenset({"points", "labels", "box", "boxes", "mask_input"})
_PROMPT_KEYS = _OBJECT_KEYS | CONCEPT_KEYS | {"objects", "multimask", "format", "image_size", "clean", "everything"}


@dataclass(frozen=True, slots=True, eq=False)
class ObjectPrompt:
    """The prompt of one object.

    Attributes:
        points: [P,2] float32, original pixels, xy.
        labels: [P] int32, 1 foreground, 0 background.
        box: [4] float32 x0, y0, x1, y1 in original pixels, or None.
        mask_input: [h,w] float32 low-resolution logits of an earlier response, or None.
    """

    points: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    box: npt.NDArray[np.float32] | None = None
    mask_input: npt.NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """One request: one or more objects and the format of the response."""

    objects: tuple[ObjectPrompt, ...]
    multimask: bool = False
    format: str = "png"
    image_size: tuple[int, int] | None = None
    """(width, height); only needed with an embedding that the server no longer has."""
    clean: Cleaning | None = None
    """What is cleaned away from full-size masks; None for nothing."""
    everything: EverythingOptions | None = None
    """What is looked for in the whole image; then there are no objects."""
    concepts: ConceptRequest | None = None
    """What is looked for by its name or by examples; then there are no objects."""

    def check_kinds(self, known: Collection[str], model_id: str) -> None:
        """Raises Unsupported for a kind of prompt that the model does not take, for example text."""
        if self.concepts is not None and "text" not in known:
            raise Unsupported(
                f"{model_id} takes points, boxes and masks, not text or exemplars: set up a model that does, "
                "for example with `triton-sam setup sam3`"
            )
        if self.everything is not None and "everything" not in known:
            raise Unsupported(f"{model_id} takes points, boxes and masks, not everything")

    def check_inside(self, width: int, height: int) -> None:
        """Raises InvalidInput that names the first point or box outside a ``width`` x ``height`` image."""
        for looked_for in (self.everything, self.concepts):
            if looked_for is not None:
                looked_for.check_inside(width, height)
        for which, prompt in enumerate(self.objects):
            where = f" of object {which}" if len(self.objects) > 1 else ""
            for index, (x, y) in enumerate(prompt.points.tolist()):
                if not (0 <= x <= width and 0 <= y <= height):
                    raise InvalidInput(
                        f"point {index}{where} ({x:g}, {y:g}) lies outside the image of {width} x {height} pixels"
                    )
            if prompt.box is not None:
                x0, y0, x1, y1 = prompt.box.tolist()
                if not (x0 >= 0 and y0 >= 0 and x1 <= width and y1 <= height):
                    raise InvalidInput(
                        f"the box{where} ({x0:g}, {y0:g}, {x1:g}, {y1:g}) reaches outside the image "
                        f"of {width} x {height} pixels: clip it"
                    )


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Limits of one request.

    Attributes:
        mask_side: side of ``mask_input``; None takes any square, if the model is not known.
    """

    max_points: int = 256
    max_objects: int = 64
    max_bytes: int = 32 * 1024 * 1024
    mask_side: int | None = 256
    max_concepts: int = 16
    max_instances: int = 200

    @classmethod
    def of(cls, settings: Settings, mask_side: int) -> PromptLimits:
        """The limits of the settings, for a model."""
        return cls(
            settings.max_points,
            settings.max_objects,
            settings.max_prompt_bytes,
            mask_side,
            settings.max_concepts,
            settings.max_instances,
        )


def parse_prompt(text: str | bytes, limits: PromptLimits | None = None) -> Prompt:
    """``prompt_json`` -> Prompt; InvalidInput if it is not valid."""
    limits = limits or PromptLimits()
    return prompt_from_mapping(prompt_document(text, limits), limits)


def prompt_document(text: str | bytes, limits: PromptLimits) -> dict[str, Any]:
    """The JSON object in ``prompt_json``; InvalidInput if it is none, or too long."""
    if len(text) > limits.max_bytes:
        raise InvalidInput(f"prompt_json has {len(text):,} bytes and {limits.max_bytes:,} are allowed")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"prompt_json is not JSON ({error})") from None
    if not isinstance(document, dict):
        raise InvalidInput(f'prompt_json is a JSON object like {{"points": [[x, y]]}}, not {kind(document)}')
    return document


def prompt_from_mapping(document: Mapping[str, Any], limits: PromptLimits | None = None) -> Prompt:
    """The parsed JSON form -> Prompt, with the same checks as :func:`parse_prompt`."""
    limits = limits or PromptLimits()
    refuse_unknown(document, _PROMPT_KEYS, "prompt_json")
    everything = everything_from(document.get("everything"))
    if everything is not None:
        return _everything(everything, document)
    concepts = concepts_from(document, ConceptLimits(limits.max_concepts, limits.max_points, limits.max_instances))
    objects = _objects(document, limits)
    if concepts is not None:
        _refuse_beside_concepts(document)
    elif not objects:
        raise InvalidInput("the prompt is empty: give at least one point, box, mask_input or object")
    multimask = document.get("multimask", False)
    if not isinstance(multimask, bool):
        raise InvalidInput(f"multimask is true or false, not {short(multimask)}")
    answer_format = document.get("format", "png")
    if answer_format not in FORMATS:
        raise InvalidInput(f"format is one of {', '.join(FORMATS)}, not {short(answer_format)}")
    clean = cleaning_from(document.get("clean"))
    if clean is not None and answer_format == "logits":
        raise InvalidInput("clean is for full-size masks: choose the format png, rle, polygon or bits, or leave it out")
    size = _image_size(document.get("image_size"))
    return Prompt(tuple(objects), multimask, answer_format, size, clean, concepts=concepts)


def _refuse_beside_concepts(document: Mapping[str, Any]) -> None:
    beside = sorted(key for key in (*_OBJECT_KEYS, "objects") if not is_empty(document.get(key)))
    if beside:
        raise InvalidInput(
            f"{beside[0]} cannot be combined with text or exemplars: send them in two requests, with one image_key"
        )
    if document.get("multimask"):
        raise InvalidInput("text and exemplars find one mask for each instance: leave multimask out")


def _everything(options: EverythingOptions, document: Mapping[str, Any]) -> Prompt:
    beside = sorted(key for key in (*_OBJECT_KEYS, *CONCEPT_KEYS, "objects") if not is_empty(document.get(key)))
    if beside:
        raise InvalidInput(f"{beside[0]} cannot be combined with everything: leave one of them out")
    if document.get("multimask"):
        raise InvalidInput("everything has its own multimask_output: leave multimask out")
    if cleaning_from(document.get("clean")) is not None:
        raise InvalidInput("everything has its own min_mask_region_area: leave clean out")
    answer_format = document.get("format", EVERYTHING_FORMATS[0])
    if answer_format in FORMATS and answer_format not in EVERYTHING_FORMATS:
        raise InvalidInput(
            f"everything is too large as {answer_format}: choose the format {', '.join(EVERYTHING_FORMATS)}"
        )
    if answer_format not in EVERYTHING_FORMATS:
        raise InvalidInput(
            f"format of everything is one of {', '.join(EVERYTHING_FORMATS)}, not {short(answer_format)}"
        )
    size = _image_size(document.get("image_size"))
    return Prompt((), options.multimask_output, answer_format, image_size=size, everything=options)


def object_prompt(
    points: Any = None,
    labels: Any = None,
    box: Any = None,
    mask_input: Any = None,
    *,
    limits: PromptLimits | None = None,
    where: str = "",
) -> ObjectPrompt | None:
    """Validated arrays for one object; None if its prompt is empty.

    Args:
        points: [P,2] xy in original pixels; labels: [P], all foreground if left out.
        box: [4]; mask_input: [h,w], [1,h,w], or base64 of its little-endian float32 bytes.
        where: "" or " of object 3", for the error messages.
    """
    limits = limits or PromptLimits()
    if isinstance(points, np.ndarray):
        points = points.tolist()
    if isinstance(points, list | tuple) and len(points) > limits.max_points:  # before each of them is checked
        raise InvalidInput(f"{len(points):,} points{where} are too many: {limits.max_points} are allowed")
    point_array = number_rows(points, 2, f"points{where}")
    label_array = label_row(labels, len(point_array), where)
    box_array = None if is_empty(box) else box_row(box, where)
    mask = None if mask_input is None else _mask_input(mask_input, limits.mask_side, where)
    if not len(point_array) and box_array is None and mask is None:
        return None
    return ObjectPrompt(point_array, label_array, box_array, mask)


def _objects(document: Mapping[str, Any], limits: PromptLimits) -> list[ObjectPrompt]:
    listed = document.get("objects")
    if listed is None:
        return _one_or_many(document, limits)
    if not isinstance(listed, list):
        raise InvalidInput(f"objects is a list, not {kind(listed)}")
    beside = sorted(key for key in _OBJECT_KEYS if not is_empty(document.get(key)))
    if beside:
        raise InvalidInput(f"{beside[0]} cannot be combined with objects: move it into one of them")
    if len(listed) > limits.max_objects:
        raise InvalidInput(f"{len(listed):,} objects are too many: {limits.max_objects} are allowed")
    objects = []
    for index, entry in enumerate(listed):
        if not isinstance(entry, dict):
            raise InvalidInput(f"object {index} is a JSON object with points or a box, not {kind(entry)}")
        refuse_unknown(entry, _OBJECT_KEYS, f"object {index}")
        found = _one_or_many(entry, limits, f" of object {index}")
        if len(found) != 1:
            raise InvalidInput(f"object {index} needs points, one box or a mask_input")
        objects += found
    return objects


def _one_or_many(entry: Mapping[str, Any], limits: PromptLimits, where: str = "") -> list[ObjectPrompt]:
    boxes = [] if is_empty(entry.get("boxes")) else entry["boxes"]
    if not isinstance(boxes, list):
        raise InvalidInput(f"boxes{where} is a list of [x0, y0, x1, y1], not {kind(boxes)}")
    if not is_empty(entry.get("box")):
        boxes = [*boxes, entry["box"]]
    has_more = not is_empty(entry.get("points")) or entry.get("mask_input") is not None
    if len(boxes) > 1 and has_more:
        raise InvalidInput(f"several boxes{where} with points are ambiguous: use objects, one box in each")
    if len(boxes) > limits.max_objects:
        raise InvalidInput(f"{len(boxes):,} boxes are too many: {limits.max_objects} are allowed")
    for index, box in enumerate(boxes):
        if is_empty(box):
            raise InvalidInput(f"box {index}{where} is empty: give x0, y0, x1, y1")
    shared = {
        "points": entry.get("points"),
        "labels": entry.get("labels"),
        "mask_input": entry.get("mask_input"),
    }
    prompts = (object_prompt(box=box, **shared, limits=limits, where=where) for box in (boxes or [None]))
    return [prompt for prompt in prompts if prompt is not None]


def _mask_input(value: Any, side: int | None, where: str) -> npt.NDArray[np.float32]:
    wanted = f"mask_input{where} is {'a square of' if side is None else f'{side} x {side}'} low-resolution logits"
    try:
        if isinstance(value, str):
            mask = np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
        else:
            mask = np.asarray(value)
            if mask.dtype.kind not in "fiu":
                raise TypeError("no numbers")
            with np.errstate(over="ignore"):  # values beyond float32 become infinite and are refused below
                mask = mask.astype(np.float32)
    except (ValueError, TypeError, binascii.Error):
        raise InvalidInput(f"{wanted}, as numbers or as base64 of little-endian float32") from None
    if side is None:
        side = math.isqrt(mask.size)
    if not side or mask.size != side * side or (mask.ndim > 1 and mask.shape[-2:] != (side, side)):
        raise InvalidInput(f"{wanted}, not {mask.size:,} numbers of shape {list(mask.shape)}")
    if not np.isfinite(mask).all():
        raise InvalidInput(f"{wanted}, and some are not finite")
    square: npt.NDArray[np.float32] = mask.reshape(side, side).astype(np.float32)
    return square


def mask_to_base64(mask: npt.ArrayLike) -> str:
    """Low-resolution logits -> the text form of ``mask_input``."""
    return base64.b64encode(np.asarray(mask, dtype="<f4").tobytes()).decode("ascii")


def _image_size(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if (
        isinstance(value, list | tuple)
        and len(value) == 2
        and all(isinstance(side, int) and not isinstance(side, bool) and 0 < side <= 100_000 for side in value)
    ):
        return int(value[0]), int(value[1])
    raise InvalidInput(f"image_size is [width, height] in pixels, not {short(value)}")

"""Masks of what a vision-language model points at: the request, the segmenter's part, and the result."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.client import wire
from triton_sam.client.core import ClientCore, Segmentation, read_segmentation, segment_request
from triton_sam.client.link import ModelLink
from triton_sam.client.transport import Transport
from triton_sam.client.user_input import ImageLike
from triton_sam.client.vlm_calls import Answer, Region, vlm_call
from triton_sam.core.images import EncodedImage, file_bytes
from triton_sam.core.labelled_overlay import labelled_overlay
from triton_sam.core.mask_cleaning import cleaning_from
from triton_sam.core.masks import decode
from triton_sam.core.prompts import PromptLimits
from triton_sam.core.rle import BoolArray, rle
from triton_sam.errors import InternalError, InvalidInput
from triton_sam.models.vlm_specs import Task
from triton_sam.settings import Settings, get_settings

#: The segmenter of a server that is Triton itself; the service has a default of its own.
_DEFAULT_SEGMENTER = "sam2"
_NO_LIMIT = 2**62
Clean = int | Mapping[str, int] | None


@dataclass(frozen=True, slots=True, eq=False)
class Grounded:
    """What a vision-language model has found in an image, with its masks.

    Attributes:
        text: the model's answer; empty for models that only give boxes or points.
        regions: the labels, with the boxes or points that the segmenter was given.
        masks: [N,H,W], one for each region, original pixels.
        scores: [N], the segmenter's own estimate of each mask's IoU.
        found: how many regions the model gave; at most max_regions are segmented, and fewer of a very large image.
        image_key: of the image on the segmenter; None without regions.
    """

    text: str
    regions: tuple[Region, ...]
    masks: BoolArray
    scores: npt.NDArray[np.float32]
    found: int
    image_key: str | None

    @property
    def labels(self) -> list[str]:
        """[N] what each mask is of."""
        return [region.label for region in self.regions]

    def overlay(self, picture: Image.Image) -> Image.Image:
        """The picture, of the image's size, with masks, boxes, points and labels drawn over it."""
        return labelled_overlay(
            picture,
            self.masks,
            self.labels,
            [region.box for region in self.regions],
            [region.point for region in self.regions],
        )

    def as_dict(self) -> dict[str, Any]:
        """For JSON: each region with its score and its mask as COCO RLE."""
        regions = [
            region.as_dict() | {"score": round(float(score), 4), "rle": rle(mask)}
            for region, score, mask in zip(self.regions, self.scores, self.masks, strict=True)
        ]
        return {"text": self.text, "found": self.found, "image_key": self.image_key, "regions": regions}


@dataclass(frozen=True, slots=True, eq=False)
class GroundRequest:
    """A validated request; ``image`` are the bytes of a file."""

    model: str
    image: bytes
    text: str
    task: Task
    segmenter: str | None
    max_regions: int | None
    clean: Clean

    @classmethod
    def of(
        cls,
        model_name: str,
        image: ImageLike,
        text: str,
        task: Task | str,
        segmenter: str | None,
        max_regions: int | None,
        clean: Clean,
    ) -> GroundRequest:
        """Reads a file or encodes a PNG; InvalidInput for wrong values."""
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput("there is nothing to look for: give a question, or the name of an object")
        tasks = [kind.value for kind in Task if kind is not Task.ANSWER]
        if task not in tasks:
            raise InvalidInput(f"task must be one of {', '.join(tasks)}, not {task!r}")
        if max_regions is not None and (isinstance(max_regions, bool) or max_regions < 1):
            raise InvalidInput(f"max_regions must be at least 1, not {max_regions!r}")
        cleaning_from(clean)
        return cls(model_name, file_bytes(image), text, Task(task), segmenter, max_regions, clean)

    def to_model(self) -> wire.Call:
        """The question to the vision-language model on Triton."""
        return vlm_call(self.model, self.image, self.text, task=self.task)

    def to_service(self, headers: Mapping[str, str]) -> wire.Call:
        """The whole request to the triton-sam service.

        Args:
            headers: those that the connection sends with every request; one that names the image is kept.
        """
        document: dict[str, Any] = {"question": self.text, "task": self.task.value}
        document |= {
            name: value
            for name, value in (
                ("segmenter", self.segmenter),
                ("max_regions", self.max_regions),
                ("clean", self.clean if self.clean is None or isinstance(self.clean, int) else dict(self.clean)),
            )
            if value is not None
        }
        inputs = wire.image_inputs(self.image) | {"ground_json": wire.text_tensor(json.dumps(document))}
        named = wire.IMAGE_HEADER in {name.lower() for name in headers}
        return wire.Call(self.model, inputs, ("result_json",), headers={} if named else wire.image_headers(self.image))


def read_grounded(outputs: wire.Outputs) -> Grounded:
    """The service's response."""
    try:
        result = json.loads(wire.text_of(outputs, "result_json"))
        entries = result["regions"]
        masks = [decode(entry["mask"]) for entry in entries]
        return Grounded(
            str(result["text"]),
            tuple(Region.of(entry) for entry in entries),
            np.stack(masks) if masks else _no_masks(int(result["width"]), int(result["height"])),
            np.array([entry["score"] for entry in entries], np.float32),
            int(result["found"]),
            result["image_key"],
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InternalError(f"the service's response cannot be read ({type(error).__name__})") from error


class RegionSegmenter:
    """Makes masks of regions on Triton. Thread-safe; connects when it is first used."""

    def __init__(
        self, connect: Callable[[], Transport], *, retries: int, longest_wait: float, headers: Mapping[str, str]
    ) -> None:
        """
        Args:
            connect: makes the connection.
            headers: those that the connection sends with every request.
        """
        self._connect = connect
        self._options: dict[str, Any] = {"retries": retries, "longest_wait": longest_wait, "headers": headers}
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._links: dict[str, ModelLink] = {}

    def grounded(self, request: GroundRequest, answer: Answer) -> Grounded:
        """The model's answer with masks of its regions; without regions the segmenter is not asked."""
        size = EncodedImage(request.image, max_bytes=_NO_LIMIT, max_pixels=_NO_LIMIT).size  # the server has limits
        wanted = request.max_regions or PromptLimits().max_objects
        regions = answer.regions[: min(wanted, most_masks(size, get_settings()))]
        if not regions:
            return Grounded(answer.text, (), _no_masks(*size), np.zeros(0, np.float32), 0, None)
        found = self._segmentation(request, regions)
        masks = found.masks
        order = np.argsort(masks.objects, kind="stable")
        return Grounded(
            answer.text,
            regions,
            masks.masks[order],
            masks.scores[order],
            len(answer.regions),
            str(found.result["image_key"]),
        )

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            if self._transport is not None:
                self._transport.close()

    def _segmentation(self, request: GroundRequest, regions: Sequence[Region]) -> Segmentation:
        objects = [region.as_prompt() for region in regions]
        wanted = segment_request(
            None, None, None, None, objects=objects, multimask=False, form="bits", clean=request.clean
        )
        link = self._link(request.segmenter or _DEFAULT_SEGMENTER)
        image = link.core.image(request.image)
        inputs = wire.prompt_inputs(image.data, wanted.document)
        return read_segmentation(link.infer(inputs, wanted.outputs, headers=image.headers))

    def _link(self, segmenter: str) -> ModelLink:
        with self._lock:
            if self._transport is None:
                self._transport = self._connect()
            link = self._links.get(segmenter)
            if link is None:
                link = self._links[segmenter] = ModelLink(self._transport, ClientCore(segmenter, **self._options))
            return link


def most_masks(size: tuple[int, int], settings: Settings) -> int:
    """How many masks a segmenter makes of an image in one answer, at least 1.

    Args:
        size: width and height of the image.
    """
    return max(1, settings.max_answer_pixels // (size[0] * size[1]))


def _no_masks(width: int, height: int) -> BoolArray:
    return np.zeros((0, height, width), np.bool_)

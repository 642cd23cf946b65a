"""``segment`` of both segmentation clients: masks of objects at clicks, or of all instances of concepts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy.typing as npt

from triton_sam.client import core
from triton_sam.client.concepts import (
    Concept,
    ConceptSegmentation,
    asks_for_concepts,
    concept_request,
    read_concepts,
)
from triton_sam.client.core import ClickRequest, Segmentation
from triton_sam.client.everything import refuse_both
from triton_sam.client.user_input import ImageLike
from triton_sam.client.wire import Outputs
from triton_sam.errors import InvalidInput

DEFAULT_SESSION = "default"
_Read = Callable[[Outputs], Segmentation]


class BlockingSegment(ABC):
    """The method of :class:`~triton_sam.SAM2TritonClient`."""

    @abstractmethod
    def set_image(self, image: ImageLike) -> Any:
        """Makes an image the current one."""

    @abstractmethod
    def _click(self, request: ClickRequest, key: str | None = None) -> Outputs:
        """Sends a prompt on the image with this key, or on the current one."""

    # Many parameters: a concept, and the options of its response.
    @overload
    def segment(
        self,
        *,
        image: ImageLike | None = None,
        image_key: str | None = None,
        text: str | Sequence[str] | None = None,
        exemplars: npt.ArrayLike | None = None,
        exemplar_labels: npt.ArrayLike | None = None,
        concepts: Sequence[Concept] | None = None,
        score_threshold: float | None = None,
        max_instances: int | None = None,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> ConceptSegmentation: ...

    # Many parameters: a prompt, and the options of its response.
    @overload
    def segment(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        *,
        image: ImageLike | None = None,
        image_key: str | None = None,
        objects: Sequence[Mapping[str, Any]] | None = None,
        multimask: bool = False,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> Segmentation: ...

    # Many parameters: a prompt of either kind, and the options of its response.
    def segment(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        *,
        image: ImageLike | None = None,
        image_key: str | None = None,
        objects: Sequence[Mapping[str, Any]] | None = None,
        multimask: bool = False,
        text: str | Sequence[str] | None = None,
        exemplars: npt.ArrayLike | None = None,
        exemplar_labels: npt.ArrayLike | None = None,
        concepts: Sequence[Concept] | None = None,
        score_threshold: float | None = None,
        max_instances: int | None = None,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> Segmentation:
        """Predicts masks at the image's original size: of one object or several, or of all instances of concepts.

        Args:
            points, labels, box, mask_input: one object, as in :meth:`predict`.
            image: as in :meth:`set_image`, which it calls; None for the current image.
            image_key: instead of an image, the key of one that the server has encoded.
            objects: several, each ``{"points": ..., "labels": ..., "box": ..., "mask_input": ...}``.
            text: finds all instances of what it names, "yellow bus"; a list looks for each text separately.
            exemplars: [E,4] boxes around examples, x0, y0, x1, y1 in original pixels, with a text or without;
                exemplar_labels: [E], 0 for a box around what is not meant.
            concepts: several, each ``{"text": ..., "exemplars": ..., "exemplar_labels": ...}``.
            score_threshold: instances with a higher score are found; the server's default is 0.5.
            max_instances: of each concept, those with the highest scores.
            format: how masks are sent, and what :attr:`Segmentation.encoded` holds: bits, png, rle or polygon.
            clean: fills holes and removes islands with fewer pixels than this; ``{"holes": 64, "islands": 0}`` for
                one kind only. The default cleans nothing.

        Returns:
            The masks; those of concepts as a :class:`ConceptSegmentation`, which may have none.
        """
        refuse_both(image, image_key)
        request, read = _request(
            {"points": points, "labels": labels, "box": box, "mask_input": mask_input, "objects": objects},
            {"text": text, "exemplars": exemplars, "exemplar_labels": exemplar_labels, "concepts": concepts},
            {"score_threshold": score_threshold, "max_instances": max_instances},
            multimask=multimask,
            form=format,
            clean=clean,
        )
        if image is not None:
            self.set_image(image)
        return read(self._click(request, image_key))


class AsyncSegment(ABC):
    """The method of :class:`~triton_sam.SpeculativeSAM2Client`."""

    @abstractmethod
    def set_image(self, image: ImageLike) -> None:
        """Makes an image the current one."""

    @abstractmethod
    async def _outputs(self, request: ClickRequest, session_id: str, image_key: str | None = None) -> Outputs | None:
        """Sends a prompt on the image with this key, or on the current one; None if it was cancelled."""

    # Many parameters: a concept, and the options of its response.
    @overload
    async def segment_async(
        self,
        *,
        session_id: str = DEFAULT_SESSION,
        image: ImageLike | None = None,
        image_key: str | None = None,
        text: str | Sequence[str] | None = None,
        exemplars: npt.ArrayLike | None = None,
        exemplar_labels: npt.ArrayLike | None = None,
        concepts: Sequence[Concept] | None = None,
        score_threshold: float | None = None,
        max_instances: int | None = None,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> ConceptSegmentation | None: ...

    # Many parameters: a prompt, and the options of its response.
    @overload
    async def segment_async(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        session_id: str = DEFAULT_SESSION,
        *,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        image: ImageLike | None = None,
        image_key: str | None = None,
        objects: Sequence[Mapping[str, Any]] | None = None,
        multimask: bool = False,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> Segmentation | None: ...

    # Many parameters: a prompt of either kind, and the options of its response.
    async def segment_async(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        session_id: str = DEFAULT_SESSION,
        *,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        image: ImageLike | None = None,
        image_key: str | None = None,
        objects: Sequence[Mapping[str, Any]] | None = None,
        multimask: bool = False,
        text: str | Sequence[str] | None = None,
        exemplars: npt.ArrayLike | None = None,
        exemplar_labels: npt.ArrayLike | None = None,
        concepts: Sequence[Concept] | None = None,
        score_threshold: float | None = None,
        max_instances: int | None = None,
        format: str = "bits",
        clean: int | Mapping[str, int] | None = None,
    ) -> Segmentation | None:
        """Predicts full-size masks, as :meth:`SAM2TritonClient.segment` does; None if it was cancelled."""
        refuse_both(image, image_key)
        request, read = _request(
            {"points": points, "labels": labels, "box": box, "mask_input": mask_input, "objects": objects},
            {"text": text, "exemplars": exemplars, "exemplar_labels": exemplar_labels, "concepts": concepts},
            {"score_threshold": score_threshold, "max_instances": max_instances},
            multimask=multimask,
            form=format,
            clean=clean,
        )
        if image is not None:
            self.set_image(image)
        outputs = await self._outputs(request, session_id, image_key)
        return None if outputs is None else read(outputs)


def _request(
    clicks: dict[str, Any],
    concepts: dict[str, Any],
    limits: dict[Literal["score_threshold", "max_instances"], Any],
    *,
    multimask: bool,
    form: str,
    clean: int | Mapping[str, int] | None,
) -> tuple[ClickRequest, _Read]:
    """The request for a prompt of either kind, and what reads its response."""
    if not asks_for_concepts(*concepts.values(), *limits.values()):
        return core.segment_request(**clicks, multimask=multimask, form=form, clean=clean), core.read_segmentation
    beside = next((name for name, value in clicks.items() if value is not None), "multimask" if multimask else None)
    if beside is not None:
        raise InvalidInput(
            f"{beside} cannot be combined with text or exemplars: call segment twice, the image is sent once"
        )
    return concept_request(**concepts, **limits, form=form, clean=clean), read_concepts

"""SAM2TritonClient: set an image once, then click."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from triton_sam.client import wire
from triton_sam.client.link import ModelLink
from triton_sam.client.transport import Transport, connect
from triton_sam.client.user_prompts import checked, checked_entry
from triton_sam.core.images import file_bytes
from triton_sam.core.masks import MaskSet
from triton_sam.errors import ImageExpired, InvalidInput, TritonSamError
from triton_sam.settings import get_settings

ImageLike = str | PathLike[str] | bytes | npt.NDArray[Any] | Image.Image


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """A server's answer at the image's original size.

    Attributes:
        result: ``result_json`` as the server sent it.
        packed: the masks as bits where they travelled as a tensor.
    """

    result: Mapping[str, Any]
    packed: npt.NDArray[np.uint8] | None = None

    @property
    def masks(self) -> MaskSet:
        """The masks as booleans; from ``format`` bits (the default), png or rle."""
        return wire.mask_set(self.result, self.packed)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """[N] predicted IoU of each mask."""
        return np.array([entry["score"] for entry in self.result["masks"]], np.float32)

    @property
    def encoded(self) -> list[dict[str, Any]]:
        """The masks in the form that was asked for, each with ``score`` and ``object``."""
        return list(self.result["masks"])

    @property
    def timings_ms(self) -> dict[str, float]:
        """What the server spent on each step."""
        return dict(self.result["timings_ms"])


@dataclass(frozen=True, slots=True)
class _CurrentImage:
    data: bytes
    key: str
    headers: Mapping[str, str]


class SAM2TritonClient:
    """A promptable model on a Triton server.

    Thread-safe: threads may share one client and its image. The image is sent once and kept as an embedding on the
    server; when that has expired, the client sends it again by itself, once.
    """

    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        timeout: float = 120.0,
        retries: int = 4,
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: Callable[[], str] | None = None,
        transport: Transport | None = None,
    ) -> None:
        """
        Args:
            url: ``localhost:8000`` (HTTP), ``https://host`` or ``grpc://host:8001``; default TRITON_URL, then
                localhost:8000.
            model_type: name of the segmenter on the server (``sam2``, ``sam2.1_large``), or a catalogue id
                (``sam2.1:large``), which is looked for there when it is first needed.
            timeout: seconds for one request, an encode on a slow machine included.
            retries: how often a busy server (UNAVAILABLE) is asked again, with growing pauses.
            session_id: lets the server serve this client in turn with others, and cancel its waiting requests.
            headers: sent with every request, for example an authorisation. Each request also has ``x-image-key``, the
                image's SHA-256, by which a proxy finds its server among several; one of yours takes its place.
            request_id: makes a request's id, which stands in the server's log beside what fails.
            transport: takes the place of the network, for tests.
        """
        if timeout <= 0 or retries < 0:
            raise InvalidInput("timeout must be above 0 and retries not below 0")
        self.model_type = model_type
        transport = transport or connect(wire.Address.parse(url or get_settings().url), timeout, dict(headers or {}))
        marks = {"session_id": session_id} if session_id else None
        self._link = ModelLink(transport, model_type, retries, marks, request_id)
        self._names_images = wire.IMAGE_HEADER not in {name.lower() for name in headers or {}}
        self._lock = threading.Lock()
        self._image: _CurrentImage | None = None

    def set_image(self, image: ImageLike) -> str:
        """Encodes an image on the server and makes it the one that is clicked on.

        Args:
            image: a path, the bytes of an image file, [H,W(,3|4)] uint8 (RGB), or a Pillow image.

        Returns:
            The image's key on the server.
        """
        data = file_bytes(image)
        current = self._encoded(data, wire.image_headers(data) if self._names_images else {})
        with self._lock:
            self._image = current
        return current.key

    def predict(
        self,
        point_coords: npt.ArrayLike | None = None,
        point_labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        multimask_output: bool = False,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Low-resolution logits for one object, as segment-anything's ``predict`` has them.

        Args:
            point_coords: [P,2] xy in original pixels; point_labels: [P], 1 foreground, 0 background.
            box: [4] x0, y0, x1, y1 in original pixels.
            mask_input: [1,256,256] logits of an earlier answer (SAM 3: [1,288,288]).
            multimask_output: three masks instead of the best one.

        Returns:
            masks [1,M,256,256] (SAM 3: 288) float32 logits (threshold at 0) and their predicted IoU [1,M].
        """
        prompt = checked(point_coords, point_labels, box, mask_input)
        document = wire.prompt_document([prompt], multimask=bool(multimask_output), form="logits")
        outputs = self._click(document, ("low_res_logits", "scores"))
        # Copies: the arrays must stay writable and outlive the transport's buffers.
        return np.array(outputs["low_res_logits"], np.float32), np.array(outputs["scores"], np.float32)

    def segment(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        *,
        objects: Sequence[Mapping[str, Any]] | None = None,
        multimask: bool = False,
        format: str = "bits",
    ) -> Segmentation:
        """Masks at the original size, for one object or several in one request.

        Args:
            points, labels, box, mask_input: one object, as in :meth:`predict`.
            objects: several, each ``{"points": ..., "labels": ..., "box": ..., "mask_input": ...}``.
            format: how masks travel and what :attr:`Segmentation.encoded` holds: bits, png, rle or polygon.
        """
        if objects is not None:
            if any(value is not None for value in (points, labels, box, mask_input)):
                raise InvalidInput("give either one object or a list of objects, not both")
            prompts = [checked_entry(entry, index) for index, entry in enumerate(objects)]
        else:
            prompts = [checked(points, labels, box, mask_input)]
        if not prompts:
            raise InvalidInput("the list of objects is empty: give at least one")
        document = wire.prompt_document(prompts, multimask=multimask, form=format)
        outputs = self._click(document, ("result_json", "masks") if format == "bits" else ("result_json",))
        packed = outputs.get("masks")
        return Segmentation(json.loads(wire.text_of(outputs, "result_json")), packed)

    def is_ready(self) -> bool:
        """Whether the server answers and has the model loaded."""
        try:
            return self._link.transport.is_ready(self._link.name())
        except TritonSamError:
            return False

    def close(self) -> None:
        """Closes the connection."""
        self._link.transport.close()

    def __enter__(self) -> SAM2TritonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _click(self, document: Mapping[str, Any], outputs: Sequence[str]) -> Mapping[str, npt.NDArray[Any]]:
        with self._lock:
            image = self._image
        if image is None:
            raise InvalidInput("there is no image yet: call set_image first")
        try:
            return self._link.infer(wire.click_inputs(image.key, document), outputs, headers=image.headers)
        except ImageExpired:  # made again, once: twice in a row means a cache that is too small
            key = self._encode_again(image)
            return self._link.infer(wire.click_inputs(key, document), outputs, headers=image.headers)

    def _encoded(self, data: bytes, headers: Mapping[str, str]) -> _CurrentImage:
        return _CurrentImage(data, self._link.encode(data, headers=headers), headers)

    def _encode_again(self, image: _CurrentImage) -> str:
        """The key of an image that has expired; another one than before where a newer version answers now."""
        renewed = self._encoded(image.data, image.headers)
        with self._lock:
            if self._image is image:
                self._image = renewed
        return renewed.key

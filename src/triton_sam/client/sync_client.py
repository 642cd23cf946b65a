"""SAM2TritonClient: the blocking segmentation client."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from triton_sam.client import core
from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.concepts import ConceptSegmentation
from triton_sam.client.core import ClickRequest, ClientCore, ImageFile, Segmentation
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.everything import EverythingRun, OnProgress, refuse_both
from triton_sam.client.follower import Follower
from triton_sam.client.link import ModelLink
from triton_sam.client.segment_methods import BlockingSegment
from triton_sam.client.transport import Transport
from triton_sam.client.user_input import ImageLike
from triton_sam.client.wire import Call, OnMessage, Outputs
from triton_sam.core.deep_pixels import Window
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.errors import InvalidInput, TritonSamError

__all__ = ["ConceptSegmentation", "SAM2TritonClient", "Segmentation"]


@dataclass(frozen=True, slots=True, eq=False)
class _CurrentImage:
    image: ImageFile
    key: str


class SAM2TritonClient(BlockingSegment):
    """A client for a promptable segmentation model, on a Triton server or behind the triton-sam service.

    Thread-safe: threads may share one client and its image. The image is sent once, and the server keeps its embedding.
    If that has expired, the client sends the image again automatically, once.
    """

    # Many parameters: options that users set one by one, and the network's replacement for tests.
    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        token: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        session_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        request_id: Callable[[], str] | None = None,
        background: bool = False,
        transport: Transport | None = None,
        async_transport: AsyncTransport | None = None,
    ) -> None:
        """
        Args:
            url: Triton's ``localhost:8000`` (HTTP), ``https://host`` or ``grpc://host:8001``, or the service's
                ``http://host:8080`` or ``https://host``; the client finds out which of them answers. Default
                TRITON_URL, then localhost:8000.
            model_type: Triton name of the segmenter (``sam2``, ``sam2.1_large``), or a catalogue id
                (``sam2.1:large``), which is looked up on the server when it is first needed.
            token: API token of the service; default TRITON_SAM_TOKEN.
            timeout: seconds for one request, including an encode on a slow machine.
            retries: how often a request is repeated if the server is busy (UNAVAILABLE), with growing pauses, or
                those that the service asks for with ``Retry-After``, as long as they fit into the timeout.
            session_id: names this client's session, so that the server can serve sessions in turn and cancel
                its queued requests.
            headers: sent with every request, for example ``authorization``. Requests about an image also have
                ``x-image-key``, the image's SHA-256, by which a proxy routes them to one of several servers;
                an ``x-image-key`` given here replaces it.
            request_id: makes a request's id, which the server's log shows beside errors.
            background: whether no person waits for the responses, as in a batch job: the server takes the requests of
                others first. They may wait for long, so choose a long timeout.
            transport, async_transport: replace the network, for tests.
        """
        if timeout <= 0 or retries < 0:
            raise InvalidInput("timeout must be above 0 and retries not below 0")
        self.model_type = model_type
        endpoint = Endpoint(url, timeout, headers, token)
        parameters: dict[str, str | bool] = {"session_id": session_id} if session_id else {}
        if background:
            parameters["background"] = True
        self._core = ClientCore(
            model_type,
            retries=retries,
            longest_wait=timeout,
            headers=headers,
            parameters=parameters,
            request_id=request_id,
        )
        self._link = ModelLink(transport or endpoint.transport(), self._core, self._follow)
        self._async_transport = async_transport or endpoint.async_transport()  # connects when it is first used
        self._follower: Follower | None = None
        self._lock = threading.Lock()
        self._current: _CurrentImage | None = None
        self._closed = False

    def set_image(
        self, image: ImageLike, *, page: int | None = None, channel: int | None = None, window: Window | None = None
    ) -> str:
        """Encodes an image on the server and makes it the current one, to which prompts refer.

        Args:
            image: a path, the bytes of an image file, a Pillow image, or an array: [H,W], [H,W,3] RGB or [H,W,4] RGBA.
                8 bits are taken as they are. Other integers up to 65535 are scaled by the smallest bit depth that holds
                the brightest pixel; floats from 0 to 1 and from 0 to 255 stay so; any other range is stretched.
            page, channel: of a file with several, from 0 on; a channel is shown as grey.
            window: (low, high) in the image's own values: low becomes black and high white.

        Returns:
            The image's key on the server.
        """
        self._check_open()
        choice = ImageChoice(page, channel, window)
        current = self._encoded(self._core.image(chosen_bytes(image, choice)))
        with self._lock:
            self._current = current
        return current.key

    def predict(
        self,
        point_coords: npt.ArrayLike | None = None,
        point_labels: npt.ArrayLike | None = None,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        multimask_output: bool = False,
        *,
        text: str | None = None,
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Predicts low-resolution logits for one object, as segment-anything's ``predict`` does.

        Args:
            point_coords: [P,2] xy in original pixels; point_labels: [P], 1 foreground, 0 background.
            box: [4] x0, y0, x1, y1 in original pixels.
            mask_input: [1,256,256] logits of an earlier prediction (SAM 3: [1,288,288]).
            multimask_output: three masks instead of the best one.
            text: refused, because :meth:`segment` takes it.

        Returns:
            masks [1,M,256,256] (SAM 3: 288) float32 logits (threshold at 0) and their predicted IoU [1,M].
        """
        core.refuse_text(text)
        request = core.predict_request(point_coords, point_labels, box, mask_input, multimask=multimask_output)
        return core.read_prediction(self._click(request))

    def everything(
        self,
        image: ImageLike | None = None,
        *,
        image_key: str | None = None,
        output_mode: str = "binary_mask",
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Finds everything in an image, as segment-anything's ``SamAutomaticMaskGenerator`` does.

        Args:
            image: as in :meth:`set_image`, which it calls; None for the current image.
            image_key: instead of an image, the key of one that the server has encoded.
            output_mode: ``binary_mask`` ([H,W] bool), ``uncompressed_rle`` or ``coco_rle``.
            on_progress: called on this thread as points are done. The time limit then counts from the last progress,
                else it is that of one request. If it raises, the server stops.
            options: ``points_per_side``, ``region`` and others; the guide "Everything in an image" lists them all.

        Returns:
            A dict for each mask: ``segmentation``, ``area``, ``bbox`` ([x, y, w, h]), ``predicted_iou``,
            ``point_coords``, ``stability_score`` and ``crop_box``, in original pixels.
        """
        run = EverythingRun(options, output_mode, on_progress)
        refuse_both(image, image_key)
        if image is not None:
            self.set_image(image)
        return run.records(self._click(run.request, image_key))

    def is_ready(self) -> bool:
        """Whether the server responds and has the model loaded."""
        try:
            self._check_open()
            return self._link.transport.is_ready(self._link.name())
        except TritonSamError:
            return False

    def close(self) -> None:
        """Closes the connection; the client cannot be used any more."""
        with self._lock:
            self._closed = True
        if self._follower is not None:
            self._follower.close()
        self._link.transport.close()

    def __enter__(self) -> SAM2TritonClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the client is closed: make a new one")

    def _follow(self, call: Call, on_message: OnMessage) -> Outputs:
        """The last message of a call that is followed. Its connection and thread are made at first use."""
        with self._lock:
            self._check_open()
            if self._follower is None:
                self._follower = Follower(self._async_transport)
        return self._follower.follow(call, on_message)

    def _click(self, request: ClickRequest, key: str | None = None) -> Outputs:
        """Sends a prompt on the image with this key, or on the current one."""
        self._check_open()
        with self._lock:
            current = self._current
        if key is not None and (current is None or current.key != key):
            return self._link.run(self._core.click(key, None, request))
        if current is None:
            raise InvalidInput("there is no image yet: call set_image first")
        flow = self._core.click(current.key, current.image, request)
        return self._link.run(flow, lambda: self._encode_again(current))

    def _encoded(self, image: ImageFile) -> _CurrentImage:
        return _CurrentImage(image, self._link.encode(image))

    def _encode_again(self, expired: _CurrentImage) -> str:
        """The new key of an image that has expired; it differs if a newer model version encodes it."""
        renewed = self._encoded(expired.image)
        with self._lock:
            if self._current is expired:
                self._current = renewed
        return renewed.key

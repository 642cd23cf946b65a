"""SpeculativeSAM2Client: many predictions begun, the worthless ones never computed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import tenacity

from triton_sam.client import wire
from triton_sam.client.async_transport import AsyncTransport, connect_async
from triton_sam.client.dispatch import Dispatcher, Outputs, Send, Ticket
from triton_sam.client.io_thread import IoThread, running_loop
from triton_sam.client.link import ModelLink, retry_options
from triton_sam.client.pending_images import PendingImage, PendingImages
from triton_sam.client.sync_client import ImageLike, Segmentation
from triton_sam.client.transport import Transport, connect
from triton_sam.client.user_prompts import checked
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput
from triton_sam.settings import get_settings

Prediction = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]
DEFAULT_SESSION = "default"


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """What became of a session's requests; ``pending`` ones are the rest."""

    requested: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    latest_wins: bool = False

    @property
    def pending(self) -> int:
        return self.requested - self.completed - self.cancelled - self.failed


class SpeculativeSAM2Client:
    """An asyncio client for hovering: begin predictions freely, cancel all but the newest, await that one.

    Cancelled predictions are dropped by the server before they are computed. Plain calls (``set_image``,
    ``cancel_session_requests``) never wait for the network inside an event loop. Threads and event loops may share one
    client; its connections live on a thread of their own. Sessions are independent, also of other clients' sessions
    with the same name.
    """

    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        timeout: float = 120.0,
        retries: int = 4,
        latest_wins: bool = False,
        max_in_air: int = 64,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        async_transport: AsyncTransport | None = None,
    ) -> None:
        """
        Args:
            url: ``localhost:8000`` (HTTP) or ``grpc://host:8001``; default TRITON_URL, then localhost:8000.
            model_type: as in :class:`~triton_sam.SAM2TritonClient`.
            timeout: seconds for one request, an encode on a slow machine included.
            retries: how often a busy server is asked again, with growing pauses.
            latest_wins: in sessions that say nothing else, a new prediction supersedes the older ones by itself.
            max_in_air: requests on the way at a time; more wait in the client, where cancelling them is free.
            headers: sent with every request, for example an authorisation.
            transport, async_transport: take the place of the network, for tests.
        """
        if timeout <= 0 or retries < 0 or max_in_air < 1:
            raise InvalidInput("timeout must be above 0, retries not below 0 and max_in_air at least 1")
        address = wire.Address.parse(url or get_settings().url)
        self.model_type = model_type
        self._latest_wins = latest_wins
        self._retries = retries
        self._link = ModelLink(transport or connect(address, timeout, dict(headers or {})), model_type, retries)
        self._io = IoThread("triton-sam-io")
        self._dispatcher = Dispatcher(
            async_transport or connect_async(address, timeout, dict(headers or {})),
            self._io.loop,
            max_in_air=max_in_air,
        )
        self._images = PendingImages(self._link, lambda model, session: self._dispatcher.tell(model, session, before=2))
        self._lock = threading.Lock()
        self._statuses: dict[str, SessionStatus] = {}
        self._closed = False

    # -- the image -------------------------------------------------------------------------------------------

    def set_image(self, image: ImageLike) -> None:
        """Makes an image the one that is clicked on.

        Inside an event loop it returns at once, the image is read and encoded in the background, and predictions wait
        for that; what goes wrong is raised by them and by :meth:`image_ready`. Elsewhere it returns, or raises, when
        the image is encoded. An encode that is superseded by another image and waited for by nobody is dropped.

        Args:
            image: a path, the bytes of an image file, [H,W(,3|4)] uint8 (RGB), or a Pillow image.
        """
        self._check_open()
        self._images.set(image, wait=running_loop() is None)

    async def image_ready(self) -> str:
        """Waits until the present image is encoded; its key on the server, or what went wrong."""
        image = self._images.take()
        try:
            return await self._images.key(image)
        finally:
            self._images.release(image)

    # -- predictions -----------------------------------------------------------------------------------------

    async def predict_async(
        self,
        point_coords: npt.ArrayLike | None = None,
        point_labels: npt.ArrayLike | None = None,
        session_id: str = DEFAULT_SESSION,
        *,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        multimask_output: bool = False,
    ) -> Prediction | None:
        """Low-resolution logits for one object, as :meth:`SAM2TritonClient.predict` gives them.

        Args:
            point_coords: [P,2] xy in original pixels; point_labels: [P], 1 foreground, 0 background.
            box: [4] x0, y0, x1, y1 in original pixels; mask_input: [1,256,256] logits of an earlier answer.

        Returns:
            masks [1,M,256,256] (SAM 3: 288) float32 logits and their predicted IoU [1,M]; None where the prediction
            was cancelled or superseded. Every error is raised.
        """
        prompt = checked(point_coords, point_labels, box, mask_input)
        document = wire.prompt_document([prompt], multimask=bool(multimask_output), form="logits")
        outputs = await self._answer(document, ("low_res_logits", "scores"), session_id)
        if outputs is None:
            return None
        return np.array(outputs["low_res_logits"], np.float32), np.array(outputs["scores"], np.float32)

    async def segment_async(
        self,
        points: npt.ArrayLike | None = None,
        labels: npt.ArrayLike | None = None,
        session_id: str = DEFAULT_SESSION,
        *,
        box: npt.ArrayLike | None = None,
        mask_input: npt.ArrayLike | None = None,
        multimask: bool = False,
        format: str = "bits",
    ) -> Segmentation | None:
        """Full-size masks of one object, as :meth:`SAM2TritonClient.segment` gives them; None where cancelled."""
        prompt = checked(points, labels, box, mask_input)
        document = wire.prompt_document([prompt], multimask=multimask, form=format)
        names = ("result_json", "masks") if format == "bits" else ("result_json",)
        outputs = await self._answer(document, names, session_id)
        if outputs is None:
            return None
        return Segmentation(json.loads(wire.text_of(outputs, "result_json")), outputs.get("masks"))

    async def _answer(self, document: Mapping[str, Any], names: Sequence[str], session_id: str) -> Outputs | None:
        ticket = self._begin(document, names, session_id)
        try:
            return await self._dispatcher.wait(ticket)
        except Cancelled:
            return None

    def _begin(self, document: Mapping[str, Any], names: Sequence[str], session_id: str) -> Ticket:
        self._check_open()
        image = self._images.take()

        async def work(send: Send) -> Outputs:
            key = await self._images.key(image)
            try:
                return await self._click(send, key, document, names)
            except ImageExpired:  # made again, once: twice in a row means a cache that is too small
                return await self._click(send, await self._images.renewed_key(image, key), document, names)

        with self._lock:
            status = self._statuses.get(session_id) or SessionStatus(latest_wins=self._latest_wins)
            self._statuses[session_id] = replace(status, requested=status.requested + 1)
        ticket = self._dispatcher.start(work, session_id, latest_wins=status.latest_wins)
        ticket.future.add_done_callback(lambda future: self._count(session_id, image, future))
        return ticket

    async def _click(self, send: Send, key: str, document: Mapping[str, Any], names: Sequence[str]) -> Outputs:
        name = self._link.known_name
        if name is None:
            name = await asyncio.get_running_loop().run_in_executor(None, self._link.name)
        call = wire.Call(name, wire.click_inputs(key, document), names)
        async for attempt in tenacity.AsyncRetrying(**retry_options(self._retries)):
            with attempt:
                return await send(call)
        raise AssertionError("tenacity raises when it gives up")

    # -- sessions --------------------------------------------------------------------------------------------

    def configure_session(self, session_id: str, *, latest_wins: bool) -> None:
        """Says whether a new prediction of this session supersedes the older ones by itself."""
        with self._lock:
            status = self._statuses.get(session_id) or SessionStatus()
            self._statuses[session_id] = replace(status, latest_wins=latest_wins)

    def cancel_session_requests(self, session_id: str, *, keep_latest: bool = True) -> int:
        """Drops the session's requests that were not computed yet, all or all but the newest.

        Returns:
            How many were dropped; their predictions give None at once.
        """
        return self._dispatcher.cancel(session_id, keep_latest=keep_latest)

    def get_session_status(self, session_id: str) -> SessionStatus:
        """How many requests the session has made, and what became of them."""
        with self._lock:
            return self._statuses.get(session_id) or SessionStatus(latest_wins=self._latest_wins)

    def cleanup_session(self, session_id: str) -> int:
        """Cancels everything of a session and forgets it; returns how many requests were cancelled."""
        count = self._dispatcher.cancel(session_id)
        with self._lock:
            self._statuses.pop(session_id, None)
        return count

    def _count(self, session_id: str, image: PendingImage, future: concurrent.futures.Future[Outputs]) -> None:
        cancelled = future.cancelled() or isinstance(future.exception(), Cancelled)
        name = "cancelled" if cancelled else "completed" if future.exception() is None else "failed"
        with self._lock:
            status = self._statuses.get(session_id)
            if status is not None and status.pending > 0:  # it may have been cleaned up, and begun anew, meanwhile
                changed: dict[str, Any] = {name: getattr(status, name) + 1}
                self._statuses[session_id] = replace(status, **changed)
        self._images.release(image)

    # -- the end ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the client is closed: make a new one")

    def close(self) -> None:
        """Cancels what is pending and closes the connections; inside an event loop use :meth:`aclose`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._images.close()
            self._io.submit(self._dispatcher.close()).result()
        finally:
            self._io.close()
            self._link.transport.close()

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def __aenter__(self) -> SpeculativeSAM2Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


async def queue_multiple_requests(
    client: SpeculativeSAM2Client,
    coords_list: Sequence[npt.ArrayLike],
    labels_list: Sequence[npt.ArrayLike],
    session_id: str = DEFAULT_SESSION,
) -> list[asyncio.Task[Prediction | None]]:
    """Begins one prediction for each entry, in order; returns their tasks when all have been begun.

    Args:
        coords_list: [P,2] xy in original pixels for each prediction; labels_list: [P] each.
    """
    if len(coords_list) != len(labels_list):
        raise InvalidInput(f"{len(coords_list)} entries of coordinates have {len(labels_list)} of labels")
    tasks = [
        asyncio.create_task(client.predict_async(coords, labels, session_id))
        for coords, labels in zip(coords_list, labels_list, strict=True)
    ]
    await asyncio.sleep(0)  # each task runs to its first wait, which is the server's answer
    return tasks


async def wait_for_latest_result(
    tasks: Iterable[asyncio.Task[Prediction | None]],
    client: SpeculativeSAM2Client,
    session_id: str = DEFAULT_SESSION,
) -> Prediction | None:
    """The answer of the newest task that was not cancelled; None where all were. An error is raised.

    When it comes, whatever the session has under way that is older than its newest request is worthless, and cancelled.
    """
    newest_first = list(tasks)[::-1]
    for index, task in enumerate(newest_first):
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # it is we who are cancelled
            result = None
        except Exception:
            client.cancel_session_requests(session_id, keep_latest=False)
            await asyncio.gather(*newest_first[index + 1 :], return_exceptions=True)
            raise
        if result is not None:
            client.cancel_session_requests(session_id)
            await asyncio.gather(*newest_first[index + 1 :], return_exceptions=True)
            return result
    return None

"""SpeculativeSAM2Client: the asyncio segmentation client, with predictions that can be cancelled."""

from __future__ import annotations

import asyncio
import concurrent.futures
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy.typing as npt

from triton_sam.client import core, flows
from triton_sam.client.async_transport import AsyncTransport
from triton_sam.client.cleanup import Cleanup
from triton_sam.client.concepts import ConceptSegmentation
from triton_sam.client.core import ClickRequest, ClientCore, Prediction, Segmentation
from triton_sam.client.dispatch import Dispatcher, Send
from triton_sam.client.endpoint import Endpoint
from triton_sam.client.everything import EverythingRun, OnProgress, refuse_both
from triton_sam.client.flows import EncodeAgain, Infer, ListServed, Pause, ReadParameters, Step
from triton_sam.client.io_thread import IoThread, running_loop
from triton_sam.client.link import ModelLink
from triton_sam.client.pending_images import PendingImage, PendingImages
from triton_sam.client.segment_methods import DEFAULT_SESSION, AsyncSegment
from triton_sam.client.session_book import Destination, Ticket
from triton_sam.client.session_statuses import SessionStatus, SessionStatuses
from triton_sam.client.transport import Transport
from triton_sam.client.user_input import ImageLike
from triton_sam.client.wire import Outputs
from triton_sam.core.deep_pixels import Window
from triton_sam.core.image_choice import ImageChoice
from triton_sam.errors import Cancelled, InvalidInput

__all__ = [
    "ConceptSegmentation",
    "Prediction",
    "Segmentation",
    "SessionStatus",
    "SpeculativeSAM2Client",
    "queue_multiple_requests",
    "wait_for_latest_result",
]


class SpeculativeSAM2Client(AsyncSegment):
    """An asyncio client for hovering: start predictions freely, cancel all but the newest, await that one.

    The server drops cancelled predictions before they are computed. Plain calls (``set_image``,
    ``cancel_session_requests``) never wait for the network inside an event loop. Threads and event loops may share one
    client; its connections run on a separate thread. Sessions are independent, also of other clients' sessions
    with the same name.
    """

    # Many parameters: nine options that users set one by one, as in SAM2TritonClient, and the old name of one of them.
    def __init__(
        self,
        url: str | None = None,
        model_type: str = "sam2",
        *,
        token: str | None = None,
        timeout: float = 120.0,
        retries: int = 4,
        latest_wins: bool = False,
        max_in_flight: int = 64,
        headers: Mapping[str, str] | None = None,
        background: bool = False,
        transport: Transport | None = None,
        async_transport: AsyncTransport | None = None,
        max_in_air: int | None = None,
    ) -> None:
        """
        Args:
            url, model_type, token: as in :class:`~triton_sam.SAM2TritonClient`. Through the service, sessions with
                latest_wins use its WebSocket.
            timeout: seconds for one request, including an encode on a slow machine.
            retries: how often a request is repeated if the server is busy, with growing pauses.
            latest_wins: the default of sessions: a new prediction supersedes the session's older ones.
            max_in_flight: the most requests in flight; further ones wait in the client, where cancelling them is free.
            headers: as in :class:`~triton_sam.SAM2TritonClient`, ``x-image-key`` included.
            background: as in :class:`~triton_sam.SAM2TritonClient`. Through the service it uses no WebSocket.
            transport, async_transport: replace the network, for tests.
            max_in_air: deprecated name of ``max_in_flight``.
        """
        if max_in_air is not None:
            warnings.warn("max_in_air is deprecated: use max_in_flight", DeprecationWarning, stacklevel=2)
            max_in_flight = max_in_air
        if timeout <= 0 or retries < 0 or max_in_flight < 1:
            raise InvalidInput("timeout must be above 0, retries not below 0 and max_in_flight at least 1")
        endpoint = Endpoint(url, timeout, headers, token)
        self.model_type = model_type
        parameters = {"background": True} if background else None
        self._core = ClientCore(
            model_type, retries=retries, longest_wait=timeout, headers=headers, parameters=parameters
        )
        self._link = ModelLink(transport or endpoint.transport(), self._core)
        self._io = IoThread("triton-sam-io")
        self._dispatcher = dispatcher = Dispatcher(
            async_transport or endpoint.async_transport(), self._io.loop, max_in_flight=max_in_flight
        )

        def cancel_encode(model: str, image: PendingImage) -> None:
            dispatcher.send_cancel(Destination.of(model, image.headers), image.session, before=2)

        self._images = PendingImages(self._link, cancel_encode)
        self._cleanup = Cleanup(self, partial(_shut_down, self._images, self._io, dispatcher, self._link.transport))
        self._statuses = SessionStatuses(latest_wins=latest_wins)
        self._closed = False

    # -- the image -------------------------------------------------------------------------------------------

    def set_image(
        self, image: ImageLike, *, page: int | None = None, channel: int | None = None, window: Window | None = None
    ) -> None:
        """Makes an image the current one, to which prompts refer.

        Inside an event loop it returns at once. The image is then read and encoded in the background; predictions
        wait for it and raise its errors, as :meth:`image_ready` does. Outside an event loop it returns, or raises,
        when the image is encoded. The encode of a replaced image is cancelled if no prediction waits for it.

        Args:
            image, page, channel, window: as in :meth:`SAM2TritonClient.set_image`.
        """
        self._check_open()
        self._images.set(image, ImageChoice(page, channel, window), wait=running_loop() is None)

    async def image_ready(self) -> str:
        """Waits until the current image is encoded; returns its key on the server, or raises the encode's error."""
        image = self._images.acquire()
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
        text: str | None = None,
    ) -> Prediction | None:
        """Predicts low-resolution logits for one object, as :meth:`SAM2TritonClient.predict` does.

        Args:
            point_coords: [P,2] xy in original pixels; point_labels: [P], 1 foreground, 0 background.
            box: [4] x0, y0, x1, y1 in original pixels; mask_input: [1,256,256] logits of an earlier prediction.
            text: refused, because :meth:`segment_async` takes it.

        Returns:
            masks [1,M,256,256] (SAM 3: 288) float32 logits and their predicted IoU [1,M]; None if the prediction
            was cancelled or superseded. Every error is raised.
        """
        core.refuse_text(text)
        request = core.predict_request(point_coords, point_labels, box, mask_input, multimask=multimask_output)
        outputs = await self._outputs(request, session_id)
        return None if outputs is None else core.read_prediction(outputs)

    async def everything_async(
        self,
        image: ImageLike | None = None,
        session_id: str = DEFAULT_SESSION,
        *,
        image_key: str | None = None,
        output_mode: str = "binary_mask",
        on_progress: OnProgress | None = None,
        **options: Any,
    ) -> list[dict[str, Any]] | None:
        """Finds everything in an image, as :meth:`SAM2TritonClient.everything` does; None if cancelled.

        ``on_progress`` is called on the event loop of the caller. Cancelling the task stops the server.
        """
        run = EverythingRun(options, output_mode, on_progress)
        refuse_both(image, image_key)
        if image is not None:
            self.set_image(image)
        start = partial(self._start, session_id=session_id, image_key=image_key)
        try:
            outputs = await run.through(self._dispatcher, start)
        except Cancelled:
            return None
        return await asyncio.to_thread(run.records, outputs)

    async def _outputs(self, request: ClickRequest, session_id: str, image_key: str | None = None) -> Outputs | None:
        ticket = self._start(request, session_id, image_key)
        try:
            return await self._dispatcher.wait(ticket)
        except Cancelled:
            return None

    def _start(self, request: ClickRequest, session_id: str, image_key: str | None = None) -> Ticket:
        """Sends a prompt on the image with this key, or on the current one."""
        self._check_open()
        image = self._images.acquire() if image_key is None else PendingImage.known(image_key)

        async def work(send: Send) -> Outputs:
            key = await self._images.key(image)
            flow = self._core.click(key, image.file, request)
            return await flows.run_async(flow, lambda step: self._perform(step, send, image))

        status = self._statuses.count_request(session_id)
        ticket = self._dispatcher.start(work, session_id, latest_wins=status.latest_wins)

        def settled(future: concurrent.futures.Future[Outputs]) -> None:
            self._statuses.count_outcome(session_id, future)
            self._images.release(image)

        ticket.future.add_done_callback(settled)
        return ticket

    async def _perform(self, step: Step, send: Send, image: PendingImage) -> Any:
        match step:
            case Infer(call, on_message):
                return await send(call, on_message)
            case EncodeAgain(expired_key):
                return await self._images.renewed_key(image, expired_key)
            case Pause(seconds):
                await asyncio.sleep(seconds)
                return None
            case ReadParameters(model):
                return await asyncio.to_thread(self._link.transport.parameters, model)
            case ListServed():
                return await asyncio.to_thread(self._link.served)

    # -- sessions --------------------------------------------------------------------------------------------

    def configure_session(self, session_id: str, *, latest_wins: bool) -> None:
        """Sets whether a new prediction of this session supersedes its older ones."""
        self._statuses.configure(session_id, latest_wins=latest_wins)

    def cancel_session_requests(self, session_id: str, *, keep_latest: bool = True) -> int:
        """Cancels the session's requests that were not computed yet, all or all but the newest.

        Returns:
            The number of cancelled requests; their predictions return None at once.
        """
        return self._dispatcher.cancel(session_id, keep_latest=keep_latest)

    def get_session_status(self, session_id: str) -> SessionStatus:
        """The session's requests, counted by outcome."""
        return self._statuses.get(session_id)

    def cleanup_session(self, session_id: str) -> int:
        """Cancels all requests of a session and forgets it; returns the number of cancelled requests."""
        count = self._dispatcher.cancel(session_id)
        self._statuses.forget(session_id)
        return count

    # -- closing ---------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("the client is closed: make a new one")

    def close(self) -> None:
        """Cancels pending requests and closes the connections; inside an event loop use :meth:`aclose`."""
        self._closed = True
        self._cleanup()

    async def aclose(self) -> None:
        """As :meth:`close`, without blocking the event loop."""
        await asyncio.get_running_loop().run_in_executor(None, self.close)

    async def __aenter__(self) -> SpeculativeSAM2Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _shut_down(images: PendingImages, io: IoThread, dispatcher: Dispatcher, transport: Transport) -> None:
    try:
        images.close()
        io.submit(dispatcher.close()).result()
    finally:
        io.close()
        transport.close()


async def queue_multiple_requests(
    client: SpeculativeSAM2Client,
    coords_list: Sequence[npt.ArrayLike],
    labels_list: Sequence[npt.ArrayLike],
    session_id: str = DEFAULT_SESSION,
) -> list[asyncio.Task[Prediction | None]]:
    """Starts one prediction for each entry, in order; returns their tasks when all have started.

    Args:
        coords_list: [P,2] xy in original pixels for each prediction; labels_list: [P] each.
    """
    if len(coords_list) != len(labels_list):
        raise InvalidInput(f"{len(coords_list)} entries of coordinates and {len(labels_list)} of labels: give as many")
    tasks = [
        asyncio.create_task(client.predict_async(coords, labels, session_id))
        for coords, labels in zip(coords_list, labels_list, strict=True)
    ]
    await asyncio.sleep(0)  # each task runs until it waits for the server's response
    return tasks


async def wait_for_latest_result(
    tasks: Iterable[asyncio.Task[Prediction | None]],
    client: SpeculativeSAM2Client,
    session_id: str = DEFAULT_SESSION,
) -> Prediction | None:
    """Waits for the newest task that was not cancelled; returns its result, or None if all were. Errors are raised.

    When the result arrives, the session's other requests, except for its newest, are obsolete and are cancelled.
    """
    newest_first = list(tasks)[::-1]
    for index, task in enumerate(newest_first):
        try:
            result = await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.cancelled():
                raise  # this coroutine was cancelled, not the task
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

"""Images that are encoded in the background, and cancelled when they are no longer needed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from triton_sam.client.core import ImageFile
from triton_sam.client.link import ModelLink
from triton_sam.client.user_input import ImageLike
from triton_sam.client.wire import IMAGE_SESSION
from triton_sam.core.image_choice import ImageChoice, chosen_bytes
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput, TritonSamError


@dataclass(eq=False, slots=True)
class PendingImage:
    """An image that is being encoded, or has been.

    Attributes:
        session: the session of its encode on the server, used by no other request.
        key: its key on the server.
        file: set as soon as it was read.
        waiting: predictions on it that have no response yet.
        unwanted: it was replaced, and no prediction waits for it.
        renewing: the encode after it expired, while that runs.
    """

    session: str
    key: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)
    file: ImageFile | None = None
    waiting: int = 0
    unwanted: bool = False
    renewing: concurrent.futures.Future[str] | None = None

    @classmethod
    def known(cls, key: str) -> PendingImage:
        """An image that the server has encoded for someone else, so that it cannot be encoded again here."""
        image = cls("", waiting=1)
        image.key.set_result(key)
        return image

    @property
    def headers(self) -> Mapping[str, str]:
        """Sent with every request about the image; empty until it was read."""
        return {} if self.file is None else self.file.headers


class PendingImages:
    """The current image of a client, and replaced ones that predictions still wait for. Thread-safe."""

    def __init__(self, link: ModelLink, cancel: Callable[[str, PendingImage], None]) -> None:
        """
        Args:
            cancel: called with (model, image); sends the server a cancel for the image's encode without waiting.
        """
        self._link = link
        self._cancel = cancel
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="triton-sam-image")
        self._lock = threading.Lock()
        self._current: PendingImage | None = None

    def set(self, image: ImageLike, choice: ImageChoice, *, wait: bool) -> None:
        """Starts an encode. The image becomes the current one at once, or with ``wait`` when the encode succeeded."""
        entry = PendingImage(f"{IMAGE_SESSION}{uuid.uuid4().hex}")
        if not wait:
            self._make_current(entry)
        self._pool.submit(self._encode, entry, image, choice)
        if wait:
            try:
                entry.key.result()
            except BaseException:  # Ctrl-C too
                self._drop(entry)
                raise
            self._make_current(entry)

    def acquire(self) -> PendingImage:
        """The current image, which is not dropped before :meth:`release`."""
        with self._lock:
            if self._current is None:
                raise InvalidInput("there is no image yet: call set_image first")
            self._current.waiting += 1
            return self._current

    def release(self, image: PendingImage) -> None:
        """Ends :meth:`acquire`."""
        with self._lock:
            image.waiting -= 1
        self._drop_if_unwanted(image)

    async def key(self, image: PendingImage) -> str:
        """The image's key, once it is encoded.

        Each caller gets its own exception, because one that is raised repeatedly grows with each traceback.
        """
        try:
            return await _shared(image.key)
        except Cancelled:
            raise ImageExpired("the image was replaced before it was encoded: set it again") from None
        except TritonSamError as error:
            raise type(error)(*error.args) from None

    async def renewed_key(self, image: PendingImage, expired: str) -> str:
        """Encodes an expired image again, once for all predictions that found it expired."""
        with self._lock:
            if image.renewing is None and image.key.result() == expired:
                assert image.file is not None  # it has been encoded
                image.renewing = self._pool.submit(self._link.encode, image.file)
            renewing = image.renewing
        if renewing is None:
            return image.key.result()
        # Outside the lock, because the callback runs at once if the renewal has ended already.
        renewing.add_done_callback(lambda renewed: self._renewed(image, renewed))
        try:
            return await _shared(renewing)
        except TritonSamError as error:
            raise type(error)(*error.args) from None

    def close(self) -> None:
        """Cancels the encode that runs, and waits for the threads."""
        with self._lock:
            image = self._current
        if image is not None:
            self._drop(image)
        self._pool.shutdown(wait=True)

    def _make_current(self, entry: PendingImage) -> None:
        with self._lock:
            previous, self._current = self._current, entry
        if previous is not None:
            self._drop_if_unwanted(previous)

    def _encode(self, entry: PendingImage, image: ImageLike, choice: ImageChoice) -> None:
        try:
            if entry.unwanted:
                raise Cancelled("the image was replaced before it was sent")
            # Before the check below: a drop sets ``unwanted`` first and then reads the file's headers for its cancel.
            entry.file = self._link.core.image(chosen_bytes(image, choice))
            self._link.name()  # may have to ask the server, so also before the check
            if entry.unwanted:
                raise Cancelled("the image was replaced before it was sent")
            entry.key.set_result(self._link.encode(entry.file, {"session_id": entry.session, "sequence": 1}))
        except BaseException as error:
            entry.key.set_exception(error)

    def _drop_if_unwanted(self, image: PendingImage) -> None:
        """Cancels the encode of an image that is no longer current and that no prediction waits for."""
        with self._lock:
            wanted = image is self._current or image.waiting > 0
        if not wanted:
            self._drop(image)

    def _drop(self, image: PendingImage) -> None:
        image.unwanted = True
        name = self._link.core.known_name
        if not image.key.done() and name is not None:
            self._cancel(name, image)

    def _renewed(self, image: PendingImage, renewed: concurrent.futures.Future[str]) -> None:
        """Runs also if the renewal failed or no caller waits for it: the next prediction then tries again."""
        with self._lock:
            if image.renewing is renewed:
                image.renewing = None
                if not renewed.cancelled() and renewed.exception() is None:
                    image.key = renewed


async def _shared(future: concurrent.futures.Future[str]) -> str:
    """The result of a future that several tasks await: cancelling one of them does not cancel the future."""
    inner = asyncio.wrap_future(future)
    # Tasks that still wait get the exception; for cancelled ones asyncio would log it as "never retrieved".
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(inner)

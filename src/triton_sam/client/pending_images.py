"""Images on their way to a server: read and encoded in the background, dropped when nobody wants them any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import ImageLike
from triton_sam.core.images import file_bytes
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput, TritonSamError


@dataclass(eq=False, slots=True)
class PendingImage:
    """An image on its way to the server, or there.

    Attributes:
        session: its encode's own, on the server.
        key: the server's name for it; data: its file, as soon as that was read.
        waiting: predictions on it that have no answer yet.
        unwanted: it was replaced, and no prediction waits for it.
    """

    session: str
    key: concurrent.futures.Future[str] = field(default_factory=concurrent.futures.Future)
    data: bytes | None = None
    waiting: int = 0
    unwanted: bool = False
    renewing: concurrent.futures.Future[str] | None = None


class PendingImages:
    """The present image of a client, and those that predictions still wait for. Thread-safe."""

    def __init__(self, link: ModelLink, cancel: Callable[[str, str], None]) -> None:
        """
        Args:
            cancel: (model, session) -> tells the server to drop the session's encode; does not wait.
        """
        self._link = link
        self._cancel = cancel
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="triton-sam-image")
        self._lock = threading.Lock()
        self._current: PendingImage | None = None

    def set(self, image: ImageLike, *, wait: bool) -> None:
        """Begins an encode; with ``wait`` the image becomes the present one when that has succeeded, else at once."""
        entry = PendingImage(f"image {uuid.uuid4().hex}")
        if not wait:
            self._make_current(entry)
        self._pool.submit(self._encode, entry, image)
        if wait:
            try:
                entry.key.result()
            except BaseException:  # Ctrl-C too
                self._drop(entry)
                raise
            self._make_current(entry)

    def take(self) -> PendingImage:
        """The present image, which is not dropped before :meth:`release`."""
        with self._lock:
            if self._current is None:
                raise InvalidInput("there is no image yet: call set_image first")
            self._current.waiting += 1
            return self._current

    def release(self, image: PendingImage) -> None:
        """Ends :meth:`take`."""
        with self._lock:
            image.waiting -= 1
        self._drop_if_unwanted(image)

    async def key(self, image: PendingImage) -> str:
        """The image's key; each caller gets an exception of its own, because one that is raised again grows."""
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
                assert image.data is not None  # it was encoded from something
                image.renewing = self._pool.submit(self._link.encode, image.data)
            renewing = image.renewing
        if renewing is None:
            return image.key.result()
        # Outside of the lock, because a renewal that has ended already calls at once.
        renewing.add_done_callback(lambda renewed: self._renewed(image, renewed))
        try:
            return await _shared(renewing)
        except TritonSamError as error:
            raise type(error)(*error.args) from None

    def close(self) -> None:
        """Tells the server to drop what is being encoded, and waits for the threads."""
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

    def _encode(self, entry: PendingImage, image: ImageLike) -> None:
        try:
            if not entry.unwanted:
                entry.data = file_bytes(image)
                self._link.name()  # asked for before the look below, because it may take a while
            if entry.unwanted:
                raise Cancelled("the image was replaced before it was sent")
            entry.key.set_result(self._link.encode(entry.data or b"", {"session_id": entry.session, "sequence": 1}))
        except BaseException as error:
            entry.key.set_exception(error)

    def _drop_if_unwanted(self, image: PendingImage) -> None:
        """Cancels the encode of an image that is no longer the present one and that no prediction waits for."""
        with self._lock:
            wanted = image is self._current or image.waiting > 0
        if not wanted:
            self._drop(image)

    def _drop(self, image: PendingImage) -> None:
        image.unwanted = True
        name = self._link.known_name
        if not image.key.done() and name is not None:
            self._cancel(name, image.session)

    def _renewed(self, image: PendingImage, renewed: concurrent.futures.Future[str]) -> None:
        """Also where nobody waited for it, or it failed: the next one who finds the image expired tries again."""
        with self._lock:
            if image.renewing is renewed:
                image.renewing = None
                if not renewed.cancelled() and renewed.exception() is None:
                    image.key = renewed


async def _shared(future: concurrent.futures.Future[str]) -> str:
    """The result of a future that others wait for too: who is cancelled does not take it with him."""
    inner = asyncio.wrap_future(future)
    # What went wrong is told to those who still wait; asyncio would print it for each one who does not.
    inner.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(inner)

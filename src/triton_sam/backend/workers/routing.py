"""Which device an image belongs to, so that it is encoded once and its clicks find it.

Every Triton process remembers where images are. For one that it does not know it asks the image's *home*: a worker that
all processes find by the key alone, and which keeps the list of its keys. So two processes that get a new image at the
same time send it to the same device.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from triton_sam.backend.workers.device_link import DeviceLink

_PLACES_KEPT = 65536


def home_of(key: str, devices: Sequence[int]) -> int:
    """The device that decides about a key: the same for all processes, and few keys change it if a device is lost."""
    return max(devices, key=lambda device: hashlib.blake2b(f"{device}/{key}".encode(), digest_size=8).digest())


class Router:
    """Finds the devices of images. Thread-safe."""

    def __init__(self, links: Sequence[DeviceLink]) -> None:
        self._links = links
        self._lock = threading.Lock()
        self._places: OrderedDict[str, int] = OrderedDict()
        #: How many new images and videos went to each device.
        self._given = [0] * len(links)

    @property
    def ready(self) -> list[int]:
        """Indexes of the devices that can compute."""
        return [index for index, link in enumerate(self._links) if link.ready]

    def least_loaded(self) -> int | None:
        """The ready device with the fewest requests in flight; None if no device is ready.

        Of several, the one that was given the fewest before: videos that are opened one after the other take turns.
        """
        place = min(self.ready, key=lambda index: (self._links[index].load, self._given[index]), default=None)
        if place is not None:
            self._given[place] += 1
        return place

    def find(self, key: str, *, new: bool, then: Callable[[int | None], None]) -> None:
        """Calls ``then`` with the device of an image, or with None if no device has it.

        Args:
            new: whether the image comes with the request, so that it can go to any device.
        """
        known = self._known(key)
        ready = self.ready
        if known is not None and known in ready:
            then(known)
            return
        if not ready:
            then(None)
            return
        wanted = self.least_loaded() if new else None

        def decided(place: int | None) -> None:
            if place is not None:
                self._note(key, place)
                then(place)
            elif new:
                then(self.least_loaded())  # its home was lost meanwhile
            else:
                self._ask_all(key, then)

        home = self._links[home_of(key, ready)]
        home.ask({"is": "place", "key": key, "wanted": wanted, "ready": ready}, decided)

    def find_embedding(self, name: str, then: Callable[[int | None], None]) -> None:
        """Calls ``then`` with the device that has an embedding by its hash, or with the least loaded one."""
        self._ask_all(name, lambda place: then(self.least_loaded() if place is None else place))

    def forget(self, place: int) -> None:
        """Drops what is known of a lost device: others may have its images meanwhile, and the home knows which."""
        with self._lock:
            for key in [key for key, device in self._places.items() if device == place]:
                del self._places[key]

    def _ask_all(self, name: str, then: Callable[[int | None], None]) -> None:
        """Asks every device for an image. The home of an image may have been lost, and its list with it."""
        ready = self.ready
        left = len(ready)
        lock = threading.Lock()
        if not ready:
            then(None)
            return

        def answered(index: int, has: bool | None) -> None:
            nonlocal left
            with lock:
                if left <= 0:
                    return
                left = 0 if has else left - 1
                if left:
                    return
            if has:
                self._note(name, index)
            then(index if has else None)

        for index in ready:
            self._links[index].ask({"is": "has", "name": name}, lambda has, index=index: answered(index, has))  # type: ignore[misc]

    def _known(self, key: str) -> int | None:
        with self._lock:
            place = self._places.get(key)
            if place is not None:
                self._places.move_to_end(key)
            return place

    def _note(self, key: str, place: int) -> None:
        with self._lock:
            self._places[key] = place
            self._places.move_to_end(key)
            if len(self._places) > _PLACES_KEPT:
                self._places.popitem(last=False)

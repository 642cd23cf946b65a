"""The detector's pyramids of the images in which was looked last: to copy one is far quicker than to make it again."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor


class KeptPyramids:
    """Copies of the pyramid of one image at a time. On the current stream, under the lock of the pyramid's owner."""

    def __init__(self, pyramid: Sequence[Tensor], most: int) -> None:
        """
        Args:
            pyramid: where the detector reads. Its memory is taken once for each of ``most`` images, at once.
        """
        self._pyramid = list(pyramid)
        #: The memory, the least recently used one first, with the image's features; None: nothing is there.
        self._slots: OrderedDict[int, weakref.ref[Tensor] | None] = OrderedDict.fromkeys(range(most))
        self._copies = [[torch.empty_like(one) for one in self._pyramid] for _ in range(most)]

    def load(self, features: Tensor) -> bool:
        """Brings the pyramid of an image back; False if it is not kept."""
        for slot, kept in self._slots.items():
            if kept is not None and kept() is features:
                self._slots.move_to_end(slot)
                torch._foreach_copy_(self._pyramid, self._copies[slot])
                return True
        return False

    def save(self, features: Tensor) -> None:
        """Keeps the present pyramid, which is of this image."""
        if self._slots:
            unused = (slot for slot, kept in self._slots.items() if kept is None or kept() is None)
            slot = next(unused, next(iter(self._slots)))
            torch._foreach_copy_(self._copies[slot], self._pyramid)
            self._slots[slot] = weakref.ref(features)
            self._slots.move_to_end(slot)

    def forget(self) -> None:
        """They were made by other code."""
        self._slots = OrderedDict.fromkeys(self._slots)

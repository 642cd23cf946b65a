"""Writes large masks to memory that a client on this machine has offered: see :mod:`triton_sam.core.masks_memory`."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triton_sam.backend.requests import text_parameter
from triton_sam.core.masks_memory import LEAST_BYTES, PARAMETER, Place, receipt
from triton_sam.errors import InvalidInput


def place_of(parameters: dict[str, object]) -> Place | None:
    """Of a request's parameters; None if there is none. InvalidInput if it is malformed."""
    text = text_parameter(parameters, PARAMETER)
    place = Place.parse(text) if text else None
    if text and place is None:
        raise InvalidInput(f"the parameter {PARAMETER} is process/descriptor/token, not {text[:60]!r}")
    return place


def handed_over(masks: npt.NDArray[np.uint8], place: Place) -> npt.NDArray[np.uint8]:
    """What is sent of masks [K,H,ceil(W/8)]: a receipt if they could be written to the place, else they themselves."""
    if masks.nbytes < LEAST_BYTES:
        return masks
    try:
        return receipt(place, masks.shape) if _write(np.ascontiguousarray(masks), place) else masks
    except OSError:  # the client is on another machine, in another container, or somebody else's
        return masks


def _write(masks: npt.NDArray[np.uint8], place: Place) -> bool:
    """Whether the masks are at the place now. Any other file there is neither opened nor changed."""
    pinned = os.open(place.path, os.O_PATH | os.O_CLOEXEC)
    try:
        own = f"/proc/self/fd/{pinned}"
        # The name alone proves nothing: another mount namespace can show any file under it. The device does.
        if str(Path(own).readlink()) != f"/memfd:{place.name} (deleted)" or os.fstat(pinned).st_dev != _device():
            return False
        if os.fstat(pinned).st_size < masks.nbytes:
            return False
        descriptor = os.open(own, os.O_WRONLY | os.O_CLOEXEC)
    finally:
        os.close(pinned)
    try:
        left, at = masks.data.cast("B"), 0
        while len(left):
            written = os.pwrite(descriptor, left, at)
            left, at = left[written:], at + written
        return True
    finally:
        os.close(descriptor)


@functools.cache
def _device() -> int:
    """Of the kernel's own file system, on which files in memory are and nothing that has a path."""
    descriptor = os.memfd_create("triton-sam")
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)

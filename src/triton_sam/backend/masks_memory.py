"""Writes large masks to memory that a client on this machine has offered: see :mod:`triton_sam.core.masks_memory`."""

from __future__ import annotations

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
    """Whether the masks are at the place now. Any other file there is not opened, or left as it is."""
    wanted = f"/memfd:{place.name} (deleted)"
    if str(Path(place.path).readlink()) != wanted:
        return False
    descriptor = os.open(place.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        # Another file may have got that number meanwhile.
        if str(Path(f"/proc/self/fd/{descriptor}").readlink()) != wanted:
            return False
        if os.fstat(descriptor).st_size < masks.nbytes:
            return False
        left, at = masks.data.cast("B"), 0
        while len(left):
            written = os.pwrite(descriptor, left, at)
            left, at = left[written:], at + written
        return True
    finally:
        os.close(descriptor)

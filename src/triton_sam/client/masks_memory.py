"""Receives large masks of a server on this machine through memory: see :mod:`triton_sam.core.masks_memory`."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import secrets
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Address, Call, Outputs
from triton_sam.core.masks_memory import LEAST_BYTES, PARAMETER, Place, received_shape
from triton_sam.errors import InternalError

_OUTPUT = "masks"
#: The memory has room for answers so many times as large as the first one that did not fit.
_SPARE = 2
_MOST_BYTES = 2**28


class MasksMemory:
    """A file in memory. What it takes is given back when it is closed, or with the process, however that ends."""

    def __init__(self, nbytes: int) -> None:
        token = secrets.token_hex(16)
        descriptor = os.memfd_create(Place(os.getpid(), 0, token).name)
        self._close = weakref.finalize(self, os.close, descriptor)  # also for threads that end without a word
        os.ftruncate(descriptor, nbytes)
        self._map = mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ)
        self.place, self.nbytes = Place(os.getpid(), descriptor, token), nbytes

    def masks(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """A copy of what a server has written: the next answer goes to the same place."""
        count = math.prod(shape)
        if not 0 <= count <= self.nbytes:
            raise InternalError(f"the server's response cannot be read: {shape} are not the sizes of masks in memory")
        return np.array(np.frombuffer(self._map, np.uint8, count).reshape(shape))

    def close(self) -> None:
        self._map.close()
        self._close()


class LocalMasks:
    """The memory of each thread of a client, made when a large answer has come through the connection."""

    def __init__(self, address: Address) -> None:
        #: A server behind a tunnel looks as if it was here too: it cannot open the memory, and sends the masks.
        self._possible = address.is_loopback and hasattr(os, "memfd_create")
        self._own = threading.local()

    def infer(self, call: Call, send: Callable[[Call], Outputs]) -> Outputs:
        """The outputs of a call that ``send`` sends."""
        if not self._possible or _OUTPUT not in call.outputs:
            return send(call)
        memory = self._memory()
        offered = call
        if memory is not None:
            offered = replace(call, parameters={**call.parameters, PARAMETER: str(memory.place)})
        try:
            outputs = send(offered)
        except BaseException:
            self.close()  # the answer may still be written, when the memory would already belong to the next one
            raise
        masks = outputs.get(_OUTPUT)
        if masks is None:
            return outputs
        shape = None if memory is None else received_shape(masks, memory.place)
        if memory is not None and shape is not None:
            return {**outputs, _OUTPUT: memory.masks(shape)}
        if masks.nbytes >= LEAST_BYTES and (memory is None or memory.nbytes < masks.nbytes <= _MOST_BYTES):
            self._renew(min(_SPARE * masks.nbytes, _MOST_BYTES))
        return outputs

    def _memory(self) -> MasksMemory | None:
        memory: MasksMemory | None = getattr(self._own, "memory", None)
        if memory is not None and memory.place.process != os.getpid():  # of the process that this one was forked from
            self.close()
            return None
        return memory

    def _renew(self, nbytes: int) -> None:
        self.close()
        with contextlib.suppress(OSError):  # without it everything works too
            self._own.memory = MasksMemory(nbytes)

    def close(self) -> None:
        """Gives this thread's memory back."""
        memory: MasksMemory | None = getattr(self._own, "memory", None)
        if memory is not None:
            del self._own.memory
            memory.close()

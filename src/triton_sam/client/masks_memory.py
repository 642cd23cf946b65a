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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from triton_sam.client.wire import Address, Call, Outputs
from triton_sam.core.masks_memory import LEAST_BYTES, PARAMETER, Place, received_shape
from triton_sam.errors import ImageExpired, InternalError, InvalidInput, QueueFull

_OUTPUT = "masks"
#: The memory has room for answers so many times as large as the first one that did not fit.
_SPARE = 2
_MOST_BYTES = 2**28


class MasksMemory:
    """A file in memory. What it takes is given back when it is closed, or with the process, however that ends."""

    def __init__(self, nbytes: int) -> None:
        import fcntl  # Windows has neither this nor files in memory, and its clients do without them

        token = secrets.token_hex(16)
        name = Place(os.getpid(), 0, token).name
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self._close = weakref.finalize(self, _give_back, descriptor, name)  # also for threads that end without a word
        os.ftruncate(descriptor, nbytes)
        # Nobody can cut it off below this process, which would end it.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._map = mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ)
        self.place, self.nbytes = Place(os.getpid(), descriptor, token), nbytes

    def masks(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
        """A copy of what a server has written: the next answer goes to the same place."""
        count = math.prod(shape)
        if min(shape) < 0 or count > self.nbytes:
            raise InternalError(f"the server's response cannot be read: {shape} are not the sizes of masks in memory")
        return np.array(np.frombuffer(self._map, np.uint8, count).reshape(shape))

    def close(self) -> None:
        self._map.close()
        self._close()


def _give_back(descriptor: int, name: str) -> None:
    """Closes a file in memory, unless the program has done so and the number belongs to another file now."""
    with contextlib.suppress(OSError):
        if name in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            os.close(descriptor)


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
        except (InvalidInput, QueueFull, ImageExpired):
            raise  # this is the answer
        except BaseException:
            self.close()  # the answer may still be written, when the memory would already belong to the next one
            raise
        masks = outputs.get(_OUTPUT)
        if masks is None:
            return outputs
        shape = None if memory is None else received_shape(masks, memory.place)
        if memory is not None and shape is not None:
            outputs = {**outputs, _OUTPUT: memory.masks(shape)}
        elif masks.nbytes >= LEAST_BYTES and (memory is None or memory.nbytes < masks.nbytes <= _MOST_BYTES):
            self._renew(min(_SPARE * masks.nbytes, _MOST_BYTES))
        if self._own.__dict__.pop("sent_again", False):
            self.close()  # for the same reason: the first request may still be answered
        return outputs

    def sent_again(self) -> None:
        """Tells that this thread's present request was sent a second time."""
        self._own.sent_again = True

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

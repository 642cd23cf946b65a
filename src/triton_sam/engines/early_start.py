"""What a worker can begin before torch is imported: reading the weights, and creating the GPU's context.

Both are only hints: what is not done, or fails, is done again and reported by the engine.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import time
from pathlib import Path

log = logging.getLogger(__name__)


def read_ahead(file: Path) -> None:
    """Makes the system read a file into its cache, in the background."""
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)


def create_context(library: str = "libcuda.so.1") -> threading.Thread:
    """Creates the context of the first visible GPU on a thread; torch uses the same one, the device's primary context.

    Call it after ``CUDA_VISIBLE_DEVICES`` is final: the driver reads it here.
    """
    # As torch does before it initialises CUDA. Without it, older drivers load all kernels of all libraries.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    thread = threading.Thread(target=_create_context, args=(library,), name="context", daemon=True)
    thread.start()
    return thread


def _create_context(library: str) -> None:
    begun = time.perf_counter()
    with contextlib.suppress(OSError, AttributeError):  # there is no driver
        driver = ctypes.CDLL(library)  # its calls run without Python's lock
        device, context = ctypes.c_int(), ctypes.c_void_p()
        status = (
            driver.cuInit(0)
            or driver.cuDeviceGet(ctypes.byref(device), 0)
            or driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
        )
        if status != 0:
            log.info("the GPU's context is left to torch: CUDA error %d", status)
            return
        log.info("the GPU's context was created in %.1f s", time.perf_counter() - begun)

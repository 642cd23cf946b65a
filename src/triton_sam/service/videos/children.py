"""Runs work on files from strangers in a process of its own, within limits of memory, time and bytes written."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from triton_sam import errors
from triton_sam.errors import InternalError, InvalidInput, SetupError, TooLarge, TritonSamError
from triton_sam.service.videos.limits import VideoLimits

log = logging.getLogger(__name__)

_MAX_ANSWER = 256 * 1024
_TICK_SECONDS = 0.1
#: After the end of its output.
_EXIT_SECONDS = 5.0
#: Isolated, so that no file of the present folder is imported; then with the modules of this process.
_CODE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from triton_sam.service.videos.child_process import main
main()
"""
#: Fewer reservations of address space, which counts as memory; one thread for numpy, which computes next to nothing.
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "LC_ALL": "C.UTF-8"}


async def run_child(
    work: str, request: Mapping[str, Any], limits: VideoLimits, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The answer of :mod:`.child_process`. The process has ended when this returns, raises or is cancelled.

    Args:
        work: ``decode`` or ``export``.
        check: called several times a second; what it raises ends the work.
    """
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-c",
        _CODE,
        json.dumps(sys.path),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        env={name: os.environ[name] for name in ("PATH", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        | _ENVIRONMENT,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    document = {"work": work, "parent": os.getpid(), "limits": limits.document(), **request}
    reading = asyncio.ensure_future(_talked(child, json.dumps(document).encode()))
    try:
        deadline = asyncio.get_running_loop().time() + limits.seconds
        while not reading.done():
            await asyncio.wait([reading], timeout=_TICK_SECONDS)
            check()
            if not reading.done() and asyncio.get_running_loop().time() > deadline:
                raise TooLarge(f"the video takes longer than {limits.seconds:g} s to {work}: cut it, or scale it down")
        return _answer(*reading.result(), work)
    finally:
        reading.cancel()
        await _end(child)


async def _talked(child: asyncio.subprocess.Process, document: bytes) -> tuple[bytes, int]:
    """What the process writes, and how it ends: who has closed its output has nothing left to do."""
    answer = await _talk(child, document)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(child.wait(), _EXIT_SECONDS)
    await _end(child)
    return answer, child.returncode or 0


async def _talk(child: asyncio.subprocess.Process, document: bytes) -> bytes:
    """Sends the request; returns what the process writes until its end."""
    assert child.stdin is not None
    assert child.stdout is not None
    with contextlib.suppress(ConnectionError):
        child.stdin.write(document)
        await child.stdin.drain()
        child.stdin.close()
    answer = b""
    while part := await child.stdout.read(64 * 1024):
        answer += part
        if len(answer) > _MAX_ANSWER:
            return b""
    return answer


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # its own session: helpers of it end too
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await asyncio.shield(child.wait())


def _answer(text: bytes, code: int, work: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError:
        log.info("a process that had to %s a video ended with code %d", work, code)
        if code == -signal.SIGXCPU:
            raise TooLarge(f"the video takes too long to {work}: cut it, or scale it down") from None
        if code == -signal.SIGXFSZ:
            raise TooLarge("the frames of the video have too many bytes: cut it, or scale it down") from None
        raise InvalidInput(
            "the video cannot be read: it is damaged, or takes more memory than is allowed; convert it to H.264 in MP4"
        ) from None
    if "error" in answer:
        raise _as_error(str(answer["error"]), str(answer["message"]))
    return dict(answer)


def _as_error(name: str, message: str) -> TritonSamError:
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, SetupError):
        log.error("a video cannot be read here: %s", message)
        return errors.Unsupported("this service has no PyAV, which reads videos: its operator can install it")
    if isinstance(found, type) and issubclass(found, TritonSamError) and found.http_status < 500:
        return found(message)
    log.error("a process of videos has failed: %s", message)
    return InternalError("the service failed on this video: see its log")

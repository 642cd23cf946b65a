"""Connects a Triton process to a worker, and starts the worker if there is none."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from triton_sam.backend.core import hurry_threads, load_resizing
from triton_sam.backend.replies import ModelInfo
from triton_sam.backend.workers.channel import Channel, Message, connect
from triton_sam.backend.workers.options import WorkerOptions
from triton_sam.backend.workers.spare import SpareKeeper
from triton_sam.errors import SetupError

_RETRY_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Connected:
    """A worker that has loaded its model."""

    channel: Channel
    messages: Iterator[Message]
    info: ModelInfo


class WorkerConnector:
    """One worker, as one Triton process sees it."""

    def __init__(self, options: WorkerOptions, instance: int, spare: SpareKeeper | None = None) -> None:
        """
        Args:
            instance: number of this Triton process among those of its model.
            spare: used instead of a new process, and kept if the worker takes long to start.
        """
        self._options = options
        self._instance = instance
        self._spare = spare
        self._child: subprocess.Popen[bytes] | None = None
        self._served = False

    def connect(self) -> Connected | None:
        """The connection to a worker that is ready; None if it ended before that. Starts a worker if none listens."""
        try:
            channel = connect(self._options.address)
        except ConnectionRefusedError:
            self._start_worker()
            threading.Event().wait(_RETRY_SECONDS)
            return None
        except ConnectionError:  # it is about to end
            threading.Event().wait(_RETRY_SECONDS)
            return None
        except OSError as error:
            raise SetupError(f"{self._options.name} cannot be reached ({error})") from None
        messages = channel.messages()
        first = next(messages, None)
        if first is None:  # it died while it loaded
            channel.close()
            threading.Event().wait(_RETRY_SECONDS)
            return None
        if first.header["is"] == "failed":
            channel.close()
            raise SetupError(first.header["text"])
        if first.header["on_cpu"]:
            load_resizing()
        else:
            hurry_threads()
        with contextlib.suppress(OSError):
            channel.send({"is": "join", "instance": self._instance})
        self._served = True
        if self._spare is not None and first.header["starts_slowly"]:
            self._spare.keep(self._options)
        return Connected(channel, messages, ModelInfo(*first.header["info"]))

    def _start_worker(self) -> None:
        if os.getppid() != self._options.server:  # tritonserver has ended, and so will this process
            return
        if self._child is not None:
            status = self._child.poll()
            if status is None:
                return
            self._child = None
            if status != 0 and not self._served:
                raise SetupError(f"the worker of {self._options.name} ended with code {status} at its start")
        child = None if self._spare is None else self._spare.use(self._options)
        if child is not None:
            self._child = child
            return
        child = subprocess.Popen(self._options.command, stdin=subprocess.DEVNULL)
        # Its end is not left to the next start: another Triton process's worker may be quicker then.
        threading.Thread(target=child.wait, name="reaper", daemon=True).start()
        self._child = child

"""One of several processes of the service: :func:`main` is started by :mod:`triton_sam.service.process_pool`."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path

import uvicorn

from triton_sam import logs
from triton_sam.console import log_handler
from triton_sam.errors import ServerError, TritonSamError
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.service.app import create_app
from triton_sam.service.process_channel import Channel, Message, ServiceDescription
from triton_sam.service.routes.embedding_models import SharedEmbeddingModels
from triton_sam.service.shared_limits import SharedLimits
from triton_sam.service.shared_state import SharedState
from triton_sam.service.siblings import CancelHere, Siblings, clock_numbers
from triton_sam.service.telemetry.metrics import share_values
from triton_sam.service.upstream import LossCallback, Upstream, served_segmenters
from triton_sam.service.uvicorn_thread import freeze_garbage, uvicorn_config
from triton_sam.settings import Settings

#: A process that does not answer is stuck, and its requests cannot be cancelled.
_CANCEL_SECONDS = 2.0
_PR_SET_PDEATHSIG = 1


class SupervisorMirror:
    """The supervisor's status and its losses, as the parent tells them. Losses are reported on the channel's thread."""

    def __init__(self, status: Mapping[str, object]) -> None:
        self._status = status
        self._callbacks: list[LossCallback] = []

    def status(self) -> Mapping[str, object]:
        return self._status

    def on_loss(self, callback: LossCallback) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def update(self, message: Message) -> None:
        """Takes over a status and a loss. In this order: a request that the loss does not end sees the status."""
        self._status = message["status"]
        if "loss" in message:
            reason, models = message["loss"]
            for callback in list(self._callbacks):
                callback(reason, tuple(models))


class ChannelSiblings(Siblings):
    """The other processes, which the parent asks."""

    def __init__(self, channel: Channel, service: ServiceDescription, number: int) -> None:
        self.namespace = service.namespace
        self.number, self.count = number, service.processes
        self.folder = Path(service.folder) if service.processes > 1 else None
        self._channel = channel
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[int]] = {}
        self._cancel_here: CancelHere | None = None

    def sequence_numbers(self) -> Iterator[int]:
        return clock_numbers()

    def serve_cancels(self, cancel: CancelHere | None) -> None:
        self._cancel_here = cancel

    async def cancel(self, session: str) -> int:
        number = next(self._numbers)
        answer = self._asked[number] = Future()
        try:
            self._channel.send({"cancel": session, "number": number})
            return await asyncio.wait_for(asyncio.wrap_future(answer), _CANCEL_SECONDS)
        except asyncio.TimeoutError:
            return 0
        finally:
            del self._asked[number]

    def answer(self, message: Message) -> None:
        """Answers another process's question, on the channel's thread."""
        cancel = self._cancel_here
        count = 0 if cancel is None else cancel(message["cancel"])
        self._channel.send({"cancelled": count, "asker": message["asker"], "number": message["number"]})

    def take_answer(self, message: Message) -> None:
        """Takes the answer to a question of this process, on the channel's thread."""
        future = self._asked.get(message["number"])
        if future is not None:
            with contextlib.suppress(Exception):  # it may have been cancelled in this moment
                future.set_result(message["cancelled"])


class _Server(uvicorn.Server):
    """Tells the parent when it listens."""

    def __init__(self, config: uvicorn.Config, channel: Channel) -> None:
        super().__init__(config)
        self._channel = channel

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        freeze_garbage()
        self._channel.send({"started": True})


def main() -> None:
    """Serves until the parent says stop, or ends."""
    parent, descriptor = int(sys.argv[-2]), int(sys.argv[-1])
    _die_with(parent)
    channel = Channel(socket.socket(fileno=descriptor))
    message = channel.receive()
    if message is None:
        return
    try:
        _serve(channel, message)
    except TritonSamError as error:
        channel.send({"failed": str(error)})
        sys.exit(1)


def _serve(channel: Channel, message: Message) -> None:
    service, process = ServiceDescription(**message["service"]), int(message["process"])
    settings = Settings(**service.settings)
    logging.basicConfig(level=service.log_level, format="%(message)s", handlers=[log_handler()], force=True)
    logs.set_up(settings)
    mirror, siblings = SupervisorMirror(message["status"]), ChannelSiblings(channel, service, process)
    app = create_app(_upstream(service, mirror), settings, shared=_shared_state(service, process, siblings))
    server = _Server(uvicorn_config(app, service.host, service.port), channel)

    def follow_parent() -> None:
        while (news := channel.receive()) is not None:
            if "stop" in news:  # more may follow: the server may be lost while requests are finished
                server.should_exit = True
            elif "status" in news:
                mirror.update(news)
            elif "cancel" in news:
                siblings.answer(news)
            else:
                siblings.take_answer(news)
        server.should_exit = True

    with listening_socket(service.host, service.port) as listener:
        threading.Thread(target=follow_parent, name="parent", daemon=True).start()
        server.run([listener])


def _upstream(service: ServiceDescription, mirror: SupervisorMirror) -> Upstream:
    vlms = {name: get_vlm(model_id) for name, model_id in service.vlms.items()}
    return Upstream(
        status=mirror.status,
        segmenters=lambda: served_segmenters(Path(service.repository), service.segmenters),
        vlms=lambda: vlms,
        triton_url=service.triton_url,
        metrics_url=service.metrics_url,
        on_loss=mirror.on_loss,
    )


def _shared_state(service: ServiceDescription, process: int, siblings: Siblings) -> SharedState:
    share_values(service.metrics_folder, process)
    limits = SharedLimits(service.limits_file, service.processes)
    return SharedState(
        tally=limits.tally(process),
        buckets=(limits.caller_buckets(), limits.address_buckets()),
        siblings=siblings,
        embedding_models=SharedEmbeddingModels(service.embeddings_folder),
        metrics_folder=service.metrics_folder,
    )


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket of the service's port. Each process has its own, and Linux spreads new connections over them."""
    # With its protocol: asyncio turns Nagle's algorithm off only for sockets that name it. Otherwise the body of a
    # small response waits 40 ms for the client to acknowledge its head.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise ServerError(
            f"the service cannot listen on {host} port {port}: choose another with --service-port"
        ) from None
    return listener


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends, however that happens; and keeps a Ctrl-C for the parent only."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

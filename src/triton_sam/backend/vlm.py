"""The Triton model ``NAME_stream`` of a vision-language model: it runs the network and streams the answer.

torch is not imported before the first question, so that a server with several models starts at once.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from PIL import Image

from triton_sam.backend import triton_io
from triton_sam.backend.metrics import VLM_COUNTERS, TritonMetrics
from triton_sam.backend.parent_watch import end_after_parent
from triton_sam.backend.vlm_memory import MemoryLedger, free_memory
from triton_sam.backend.vlm_requests import VlmRequest
from triton_sam.backend.vlm_worker import VlmJob, VlmWorker
from triton_sam.engines.vlm.base import Ending, Engine
from triton_sam.errors import InternalError, InvalidInput, TritonSamError
from triton_sam.logs import about, set_up_model_log
from triton_sam.models.vlm_catalog import get_vlm
from triton_sam.models.vlm_weights import checkpoint_folder, part_folders
from triton_sam.server.in_flight import VLM_DIR_VARIABLE, InFlightCounter
from triton_sam.settings import get_settings

log = logging.getLogger(__name__)


class _StreamReply:
    """Streams the response of one request, and counts the request as answered at its end."""

    def __init__(self, model: TritonPythonModel, request: Any) -> None:
        self._model = model
        self._sender = request.get_response_sender()
        self._ticket: str | None = None
        self.request_id = triton_io.request_id_of(request)
        self._lock = threading.Lock()
        self._cancelled = False
        self.ended = False

    def enter(self, ticket: str) -> None:
        """Registers a ticket by which the request can be cancelled until its end."""
        self._model.enter(ticket, self)
        self._ticket = ticket

    def piece(self, text: str) -> None:
        self._send(_tensors(generated_text=text, finish_reason=""), last=False)

    def end(self, ending: Ending) -> None:
        usage = {"prompt_tokens": ending.prompt_tokens, "completion_tokens": ending.completion_tokens}
        outputs = {"generated_text": "", "finish_reason": ending.reason, "usage_json": json.dumps(usage)}
        if ending.entities is not None:
            outputs["entities_json"] = json.dumps(list(ending.entities))
        if ending.regions is not None:
            outputs["regions_json"] = json.dumps(list(ending.regions))
        self._model.metrics.count("vlm_tokens", ending.completion_tokens)
        self._send(_tensors(**outputs), last=True)

    def fail(self, error: TritonSamError) -> None:
        self._send(triton_io.refusal(error, error.stream_message), last=True)

    def acknowledge(self) -> None:
        """Ends a request that has no response, such as a cancel request."""
        self._send(None, last=True)

    def cancel(self) -> None:
        """Marks the request as cancelled by its client."""
        self._cancelled = True

    def is_gone(self) -> bool:
        with self._lock:  # Triton would crash if it were asked about a request that has ended
            if not (self._cancelled or self.ended):
                self._cancelled = triton_io.is_cancelled(self._sender)
            return self._cancelled or self.ended

    def _send(self, response: Any, *, last: bool) -> None:
        with self._lock:
            if self.ended:
                return
            self.ended = last
            triton_io.send(self._sender, response, last=last)
        if last:
            self._model.forget(self._ticket)


class TritonPythonModel:
    """The class that Triton's Python backend loads: one process for one vision-language model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the worker. The first question loads the weights."""
        end_after_parent()
        parameters = triton_io.parameters_of(json.loads(args["model_config"]))
        try:
            self._settings = get_settings()
            set_up_model_log(args["model_name"], self._settings)
            self._spec = get_vlm(parameters["vlm_id"])
        except TritonSamError as error:
            raise pb_utils.TritonModelException(str(error)) from None
        Image.MAX_IMAGE_PIXELS = self._settings.max_image_pixels
        self._checkpoint = parameters.get("checkpoint", "")
        self.metrics = TritonMetrics(self._spec.name, VLM_COUNTERS, {})
        self.metrics.begin()
        self._flight = InFlightCounter(args["model_name"])
        self._tickets: dict[str, _StreamReply] = {}
        folder = os.environ.get(VLM_DIR_VARIABLE) or str(self._settings.home / "run" / "vlm")
        self._memory = MemoryLedger(
            Path(folder),
            self._spec.name,
            budget=self._settings.vlm_memory_bytes,
            evicts=self._settings.vlm_when_full == "evict",
            free=free_memory,
        )
        self._worker = VlmWorker(self._spec.name, self._load, self._memory, self._settings, self.metrics.count)

    def execute(self, requests: list[Any]) -> None:
        """Passes every question to the worker, or refuses it at once if it is not valid."""
        for request in requests:
            self._flight.add(1)
            reply = _StreamReply(self, request)
            try:
                parameters = json.loads(request.parameters() or "{}")
                if "cancel" in parameters:
                    self._cancel(str(parameters["cancel"]), reply)
                else:
                    self._accept(request, reply, parameters.get("ticket"))
            except TritonSamError as error:
                reply.fail(error)
            except Exception as error:
                log.exception("a request could not be read", extra=about(reply.request_id))
                reply.fail(InternalError(f"reading the request failed on the server ({type(error).__name__})"))

    def finalize(self) -> None:
        """Finishes the answers in progress."""
        self._worker.close()
        self._flight.close()

    def forget(self, ticket: str | None) -> None:
        """Removes an answered request."""
        if ticket is not None:
            self._tickets.pop(ticket, None)
        self._flight.add(-1)

    def enter(self, ticket: str, reply: _StreamReply) -> None:
        """Registers a request's ticket, by which it can be cancelled."""
        if self._tickets.setdefault(ticket, reply) is not reply:
            raise InvalidInput("this ticket is already in use: make a new one for each request")

    def _accept(self, request: Any, reply: _StreamReply, ticket: str | None) -> None:
        arrays = {tensor.name(): np.array(tensor.as_numpy()) for tensor in request.inputs()}
        asked = VlmRequest(arrays, self._settings, self._spec)
        if ticket is not None:
            reply.enter(ticket)
        self._worker.submit(VlmJob(asked.question, reply, request_id=reply.request_id))

    def _cancel(self, ticket: str, reply: _StreamReply) -> None:
        asked = self._tickets.get(ticket)
        if asked is not None:
            asked.cancel()
        reply.acknowledge()

    def _load(self) -> Engine:
        """Loads the engine, on the loader's thread. This imports torch."""
        folder = checkpoint_folder(self._spec, self._checkpoint)
        log.info("%s: loading from %s", self._spec.name, folder)
        from triton_sam.engines.vlm.loading import choose_placement, load_engine

        with self._memory.loading():
            placement = choose_placement(self._spec, folder, self._settings, self._memory.available)
            left = self._memory.make_room(placement.device, placement.nbytes, lambda: self._worker.closing)
            log.info(
                "%s: %.1f GB in %s on %s%s",
                self._spec.name,
                placement.nbytes / 1e9,
                placement.dtype,
                placement.device,
                f"; unloaded for it: {', '.join(left)}" if left else "",
            )
            engine = load_engine(
                self._spec,
                folder,
                placement,
                self._settings.vlm_batch,
                lambda: part_folders(self._spec, self._checkpoint),
            )
            self._memory.arrive(placement.device, placement.nbytes)
        return engine


def _tensors(**outputs: str) -> Any:
    tensors = [pb_utils.Tensor(name, np.array([text.encode()], dtype=object)) for name, text in outputs.items()]
    return pb_utils.InferenceResponse(output_tensors=tensors)

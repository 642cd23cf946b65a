"""The Triton model ``NAME`` of a vision-language model: one response for one request.

A Triton model either streams or responds once, and two processes with the same network would take twice the memory. So
this one only forwards requests to ``NAME_stream``, through Triton, and joins the pieces.
"""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from triton_sam.backend import triton_io
from triton_sam.errors import InternalError, QueueFull, TritonSamError, from_status
from triton_sam.logs import about, set_up_model_log
from triton_sam.models.vlm_specs import STREAM_SUFFIX
from triton_sam.server.in_flight import InFlightCounter
from triton_sam.settings import get_settings

log = logging.getLogger(__name__)


class TritonPythonModel:
    """The class that Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        """Starts the thread pool. It loads no weights."""
        config = json.loads(args["model_config"])
        self._target = args["model_name"] + STREAM_SUFFIX
        self._outputs = [tensor["name"] for tensor in config["output"]]
        self._flight = InFlightCounter(args["model_name"])
        settings = get_settings()
        set_up_model_log(args["model_name"], settings)
        self._capacity = settings.vlm_queue + settings.vlm_batch * settings.vlm_lanes
        self._pool = ThreadPoolExecutor(self._capacity, thread_name_prefix="vlm-forward")
        self._slots = threading.Semaphore(self._capacity)

    def execute(self, requests: list[Any]) -> None:
        """Forwards each request on a thread of its own. ``NAME_stream`` batches them."""
        for request in requests:
            self._flight.add(1)
            sender = request.get_response_sender()
            if not self._slots.acquire(blocking=False):
                full = QueueFull(f"{self._capacity} questions are waiting already: try again in a moment")
                self._send(sender, triton_io.refusal(full))
                continue
            inputs = [pb_utils.Tensor(tensor.name(), np.array(tensor.as_numpy())) for tensor in request.inputs()]
            wanted = set(request.requested_output_names())
            self._pool.submit(self._answer, sender, inputs, wanted, triton_io.request_id_of(request))

    def finalize(self) -> None:
        """Waits for requests in flight."""
        self._pool.shutdown(wait=True)
        self._flight.close()

    def _answer(self, sender: Any, inputs: list[Any], wanted: set[str], request_id: str) -> None:
        try:
            texts = self._forward(inputs, request_id)
            tensors = [
                pb_utils.Tensor(name, np.array([text.encode()], dtype=object))
                for name, text in texts.items()
                if name in wanted
            ]
            response = pb_utils.InferenceResponse(output_tensors=tensors)
        except TritonSamError as error:
            response = triton_io.refusal(error)
        except Exception as error:
            log.exception("calling %s failed", self._target, extra=about(request_id))
            response = triton_io.refusal(InternalError(f"calling {self._target} failed ({type(error).__name__})"))
        finally:
            self._slots.release()
        self._send(sender, response)

    def _send(self, sender: Any, response: Any) -> None:
        triton_io.send(sender, response)
        self._flight.add(-1)

    def _forward(self, inputs: list[Any], request_id: str) -> dict[str, str]:
        """The outputs of the last response, with the text of all responses."""
        question = pb_utils.InferenceRequest(
            model_name=self._target,
            requested_output_names=self._outputs,
            inputs=inputs,
            request_id=request_id,
        )
        pieces: list[str] = []
        last: dict[str, str] = {}
        for response in question.exec(decoupled=True):
            if response.has_error():
                raise from_status(None, response.error().message())
            for tensor in response.output_tensors():
                last[tensor.name()] = tensor.as_numpy().reshape(-1)[0].decode()
            pieces.append(last.pop("generated_text", ""))
        if not last.get("finish_reason"):
            raise InternalError(f"{self._target} ended before its answer was complete")
        return {**last, "generated_text": "".join(pieces)}

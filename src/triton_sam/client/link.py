"""One model on one server: its name there, its image keys, and patience with a busy server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import tenacity

from triton_sam.client import wire
from triton_sam.client.transport import Transport
from triton_sam.errors import NotFound, Unavailable

Parameters = Mapping[str, str | int | bool]


def retry_options(retries: int) -> dict[str, Any]:
    """tenacity's arguments for a busy server (UNAVAILABLE): pauses that grow, none of them alike."""
    return {
        "retry": tenacity.retry_if_exception_type(Unavailable),
        "stop": tenacity.stop_after_attempt(retries + 1),
        "wait": tenacity.wait_exponential(multiplier=0.25, max=4.0) + tenacity.wait_random(0.0, 0.25),
        "reraise": True,
    }


class ModelLink:
    """Blocking calls to one model; thread-safe where its transport is."""

    def __init__(
        self,
        transport: Transport,
        model_type: str,
        retries: int,
        parameters: Parameters | None = None,
        request_id: Callable[[], str] | None = None,
    ) -> None:
        """
        Args:
            model_type: name of the segmenter on the server, or a catalogue id, which is looked for when it is needed.
            parameters: sent with every request.
            request_id: makes the id of the next request.
        """
        self.model_type = model_type
        self.transport = transport
        self._parameters = dict(parameters or {})
        self._request_id = request_id
        self._is_id = ":" in model_type
        self._name: str | None = None if self._is_id else model_type
        self._retrying = tenacity.Retrying(**retry_options(retries))

    def encode(
        self, data: bytes, parameters: Parameters | None = None, headers: Mapping[str, str] | None = None
    ) -> str:
        """The image's key; where an id was asked for, from that model and no other."""
        if not self._is_id:
            outputs = self.infer(wire.image_inputs(data), ("image_key",), parameters, headers)
            return wire.text_of(outputs, "image_key")
        for _ in range(2):
            outputs = self.infer(wire.image_inputs(data), ("image_key", "result_json"), parameters, headers)
            if json.loads(wire.text_of(outputs, "result_json"))["model"] == self.model_type:
                return wire.text_of(outputs, "image_key")
            self._name = None  # the server gave this name to another model since we asked
        raise self._not_served()

    def infer(
        self,
        inputs: Mapping[str, npt.NDArray[Any]],
        outputs: Sequence[str],
        parameters: Parameters | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Mapping[str, npt.NDArray[Any]]:
        """One request, sent again while the server is busy; ``parameters`` are added to those of every request."""
        request_id = "" if self._request_id is None else self._request_id()
        marks = {**self._parameters, **(parameters or {})}
        call = wire.Call(self.name(), inputs, outputs, marks, request_id, headers or {})
        return self._retrying(self.transport.infer, call)

    @property
    def known_name(self) -> str | None:
        """The segmenter's name on the server, where that is known without asking."""
        return self._name

    def name(self) -> str:
        """The segmenter's name on the server; NotFound where an id's model is not served there."""
        name = self._name
        if name is not None:
            return name
        for candidate in wire.candidate_names(self.model_type):
            try:
                parameters = self._retrying(self.transport.parameters, candidate)
            except NotFound:
                continue
            if parameters.get("model_id") == self.model_type:
                self._name = candidate
                return candidate
        raise self._not_served()

    def _not_served(self) -> NotFound:
        return NotFound(
            f"this server does not serve {self.model_type}: run `triton-sam setup {self.model_type}` and "
            "`triton-sam serve` there, or name a model that it serves"
        )

"""The blocking transport through the triton-sam service, instead of Triton itself."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import numpy.typing as npt

from triton_sam.client import service_calls
from triton_sam.client.http_connection import HttpResponse, ThreadConnections
from triton_sam.client.service_errors import error_of
from triton_sam.client.wire import Address, Call, translate_error
from triton_sam.errors import NotFound, TritonSamError


class ServiceTransport:
    """Sends calls to the service's routes, with one connection per thread."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._connections = ThreadConnections(address, timeout)

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        request = service_calls.request_of(call)
        response = self._request("POST", request.path, request.headers, request.body)
        return service_calls.outputs_of(call, response.body)

    def is_ready(self, model: str) -> bool:
        try:
            health = self._request("GET", service_calls.HEALTH).body
            row = service_calls.find_row(self._rows(), model)
        except TritonSamError:
            return False
        return row is not None and service_calls.is_served(health, row["name"])

    def parameters(self, model: str) -> Mapping[str, str]:
        """What a model with this Triton name is, as Triton's config has it; NotFound if it is not served."""
        for row in self._rows():
            if row["name"] == model:
                return {"model_id": row["id"], **({"concepts": ""} if "text" in row.get("prompts", ()) else {})}
        raise NotFound(f"there is no model {model!r}")

    def served(self) -> list[str]:
        """Names of the served segmenters."""
        return [row["name"] for row in self._rows()]

    def close(self) -> None:
        """As :meth:`.transport.HttpTransport.close`."""
        self._connections.close()

    def _rows(self) -> list[dict[str, Any]]:
        return service_calls.model_rows(self._request("GET", service_calls.MODELS).body)

    def _request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HttpResponse:
        """Sends a request; raises the service's error for a status other than 200."""
        sent = {**self._headers, **(headers or {})}
        try:
            response = self._connections.get().request(method, path, sent, body)
        except Exception as error:
            raise translate_error(error, self._address.target) from error
        if response.status != HTTPStatus.OK:
            raise error_of(
                response.status,
                response.headers,  # type: ignore[arg-type]  # it has get(), and ignores case
                response.body,
                address=self._address.target,
                has_token="authorization" in {name.lower() for name in sent},
            )
        return response

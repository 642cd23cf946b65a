"""Blocking transports, HTTP and gRPC: send a :class:`~.wire.Call`, return arrays or raise triton_sam.errors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

import numpy.typing as npt

from triton_sam.client.http_connection import HttpResponse, ThreadConnections
from triton_sam.client.masks_memory import LocalMasks
from triton_sam.client.wire import Address, Call, config_parameters, foreign_response, translate_error
from triton_sam.models.catalog import CATALOG, FAMILY_DEFAULTS, OLD_IDS
from triton_sam.models.specs import triton_name

_MAX_MESSAGE = 2**31 - 1
#: The length of the JSON at the beginning of a body.
_HEAD_SIZE = "Inference-Header-Content-Length"


class Transport(Protocol):
    """What a client needs from a connection; unit tests provide their own."""

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]: ...

    def is_ready(self, model: str) -> bool: ...

    def parameters(self, model: str) -> Mapping[str, str]: ...

    def served(self) -> list[str]:
        """Names of the served segmenters, for messages."""

    def close(self) -> None: ...


class HttpTransport:
    """tritonclient's requests over HTTP, with one connection per thread."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._headers = dict(headers)
        self._connections = ThreadConnections(address, timeout)
        self._local_masks = LocalMasks(address)

    def _request(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> HttpResponse:
        """Sends a request; raises tritonclient's InferenceServerException for Triton's error responses."""
        response = self._connections.get().request(method, path, {**self._headers, **(headers or {})}, body)
        if response.status != 200:
            message = _error_message(response)
            if message is None:
                raise foreign_response(response.status, response.body, self._address.target)
            from tritonclient.utils import InferenceServerException

            raise InferenceServerException(msg=message, status=str(response.status))
        return response

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        return self._local_masks.infer(call, self._infer)

    def _infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        import tritonclient.http as http

        try:
            body, head_size = http.InferenceServerClient.generate_request_body(
                request_tensors(http, call),
                outputs=[http.InferRequestedOutput(name) for name in call.outputs],
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
            sizes = {} if head_size is None else {_HEAD_SIZE: str(head_size)}
            response = self._request("POST", f"{_model_path(call.model)}/infer", {**call.headers, **sizes}, body)
            if response.sent_again:
                self._local_masks.sent_again()
            size = response.headers.get(_HEAD_SIZE)
            parsed = http.InferenceServerClient.parse_response_body(
                response.body, header_length=None if size is None else int(size)
            )
            return output_arrays(parsed, call)
        except Exception as error:
            raise translate_error(error, self._address.target) from error

    def is_ready(self, model: str) -> bool:
        try:
            self._request("GET", f"{_model_path(model)}/ready")
        except Exception:
            return False
        return True

    def parameters(self, model: str) -> Mapping[str, str]:
        """The parameters of a model's config; NotFound if the server does not serve it."""
        try:
            return config_parameters(json.loads(self._request("GET", f"{_model_path(model)}/config").body))
        except Exception as error:
            raise translate_error(error, self._address.target) from error

    def served(self) -> list[str]:
        return _served(self)

    def close(self) -> None:
        """Closes this thread's connection; those of other threads may be in use, and close when their threads end."""
        self._connections.close()
        self._local_masks.close()


def _model_path(model: str) -> str:
    return f"v2/models/{quote(model, safe='')}"


def _served(transport: Transport) -> list[str]:
    """The catalogue's names that a Triton server serves. Its own list of models is closed to clients."""
    names = (*FAMILY_DEFAULTS, *map(triton_name, (*CATALOG, *OLD_IDS)))
    return [name for name in names if transport.is_ready(name)]


def _error_message(response: HttpResponse) -> str | None:
    """The message of Triton's error response; None if another program has sent it."""
    try:
        message = json.loads(response.body)["error"]
    except (ValueError, LookupError, TypeError):
        return None
    return message if isinstance(message, str) else None


class GrpcTransport:
    """tritonclient over gRPC; threads share its channel."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        import tritonclient.grpc as grpc

        self._grpc = grpc
        self._address = address
        self._timeout = timeout
        self._headers = dict(headers)
        self._client = grpc.InferenceServerClient(address.target, ssl=address.tls, channel_args=grpc_options(address))
        self._local_masks = LocalMasks(address)

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        return self._local_masks.infer(call, self._infer)

    def _infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        try:
            result = self._client.infer(
                call.model,
                request_tensors(self._grpc, call),
                outputs=[self._grpc.InferRequestedOutput(name) for name in call.outputs],
                headers={**self._headers, **call.headers},
                client_timeout=self._timeout,
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
        except Exception as error:
            raise translate_error(error, self._address.target) from error
        return output_arrays(result, call)

    def is_ready(self, model: str) -> bool:
        try:
            return bool(self._client.is_model_ready(model, headers=self._headers, client_timeout=self._timeout))
        except Exception:
            return False

    def parameters(self, model: str) -> Mapping[str, str]:
        """As :meth:`HttpTransport.parameters`."""
        try:
            config = self._client.get_model_config(
                model, headers=self._headers, as_json=True, client_timeout=self._timeout
            )
        except Exception as error:
            raise translate_error(error, self._address.target) from error
        return config_parameters(config["config"])

    def served(self) -> list[str]:
        return _served(self)

    def close(self) -> None:
        self._local_masks.close()
        self._client.close()


def connect(address: Address, timeout: float, headers: Mapping[str, str]) -> Transport:
    """The transport for an address; nothing is sent yet."""
    return (GrpcTransport if address.grpc else HttpTransport)(address, timeout, headers)


def grpc_options(address: Address) -> list[tuple[str, int]]:
    """Channel arguments: images may be larger than gRPC's default limit of 4 MiB."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.max_send_message_length", _MAX_MESSAGE)]
    if address.is_loopback:  # gRPC would send even these through a proxy
        options.append(("grpc.enable_http_proxy", 0))
    return options


def output_arrays(result: Any, call: Call) -> dict[str, npt.NDArray[Any]]:
    """The requested outputs that tritonclient's result has."""
    return {name: result.as_numpy(name) for name in call.outputs if result.get_output(name) is not None}


def request_tensors(module: Any, call: Call) -> list[Any]:
    """A call's inputs as tritonclient's; ``module`` is ``tritonclient.http`` or ``tritonclient.grpc``."""
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in call.inputs.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs

"""The two ways to a server. Both take a :class:`~.wire.Call` and give arrays or our exceptions."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

import numpy.typing as npt

from triton_sam.client.http_connection import HttpAnswer, HttpConnection
from triton_sam.client.wire import Address, Call, as_our_error, config_parameters

_MAX_MESSAGE = 2**31 - 1
#: Where the JSON at the beginning of a body ends.
_HEAD_SIZE = "Inference-Header-Content-Length"


class Transport(Protocol):
    """What a client needs of a connection; unit tests bring their own."""

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]: ...

    def is_ready(self, model: str) -> bool: ...

    def parameters(self, model: str) -> Mapping[str, str]: ...

    def close(self) -> None: ...


class HttpTransport:
    """tritonclient's requests over HTTP. A connection belongs to one thread, so each thread gets one of its own."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._timeout = timeout
        self._headers = dict(headers)
        self._local = threading.local()

    def _connection(self) -> HttpConnection:
        connection: HttpConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = HttpConnection(self._address, self._timeout)
        return connection

    def _ask(self, method: str, path: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> HttpAnswer:
        """The answer; InferenceServerException where the server refuses, as tritonclient raises it."""
        answer = self._connection().ask(method, path, {**self._headers, **(headers or {})}, body)
        if answer.status != 200:
            from tritonclient.utils import InferenceServerException

            raise InferenceServerException(msg=_refusal(answer), status=str(answer.status))
        return answer

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        import tritonclient.http as http

        try:
            body, head_size = http.InferenceServerClient.generate_request_body(
                request_tensors(http, call),
                outputs=[http.InferRequestedOutput(name) for name in call.outputs],
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
            sizes = {} if head_size is None else {_HEAD_SIZE: str(head_size)}
            answer = self._ask("POST", f"{_model_path(call.model)}/infer", {**call.headers, **sizes}, body)
            size = answer.headers.get(_HEAD_SIZE)
            parsed = http.InferenceServerClient.parse_response_body(
                answer.body, header_length=None if size is None else int(size)
            )
            return output_arrays(parsed, call)
        except Exception as error:
            raise as_our_error(error, self._address.target) from error

    def is_ready(self, model: str) -> bool:
        try:
            self._ask("GET", f"{_model_path(model)}/ready")
        except Exception:
            return False
        return True

    def parameters(self, model: str) -> Mapping[str, str]:
        """The parameters of a model's config; NotFound where the server does not serve it."""
        try:
            return config_parameters(json.loads(self._ask("GET", f"{_model_path(model)}/config").body))
        except Exception as error:
            raise as_our_error(error, self._address.target) from error

    def close(self) -> None:
        """Closes this thread's connection; those of others end with their threads, in which they may be in use."""
        self._connection().close()


def _model_path(model: str) -> str:
    return f"v2/models/{quote(model, safe='')}"


def _refusal(answer: HttpAnswer) -> str:
    """What a server says in an answer that is none; a proxy in between says it in its own form."""
    try:
        return str(json.loads(answer.body)["error"])
    except (ValueError, KeyError, TypeError):
        text = answer.body.decode(errors="replace").strip()
        return f"an answer that is not the server's: {text[:200]}" if text else "an empty answer"


class GrpcTransport:
    """tritonclient over gRPC; its channel may be shared by threads."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        import tritonclient.grpc as grpc

        self._grpc = grpc
        self._address = address
        self._timeout = timeout
        self._headers = dict(headers)
        self._client = grpc.InferenceServerClient(address.target, ssl=address.tls, channel_args=grpc_options(address))

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        try:
            answer = self._client.infer(
                call.model,
                request_tensors(self._grpc, call),
                outputs=[self._grpc.InferRequestedOutput(name) for name in call.outputs],
                headers={**self._headers, **call.headers},
                client_timeout=self._timeout,
                request_id=call.request_id,
                parameters=dict(call.parameters),
            )
        except Exception as error:
            raise as_our_error(error, self._address.target) from error
        return output_arrays(answer, call)

    def is_ready(self, model: str) -> bool:
        try:
            return bool(self._client.is_model_ready(model, headers=self._headers, client_timeout=self._timeout))
        except Exception:
            return False

    def parameters(self, model: str) -> Mapping[str, str]:
        """As :meth:`HttpTransport.parameters`."""
        try:
            answer = self._client.get_model_config(
                model, headers=self._headers, as_json=True, client_timeout=self._timeout
            )
        except Exception as error:
            raise as_our_error(error, self._address.target) from error
        return config_parameters(answer["config"])

    def close(self) -> None:
        self._client.close()


def connect(address: Address, timeout: float, headers: Mapping[str, str]) -> Transport:
    """The transport that an address names; nothing is sent yet."""
    return (GrpcTransport if address.grpc else HttpTransport)(address, timeout, headers)


def grpc_options(address: Address) -> list[tuple[str, int]]:
    """Channel arguments: images are larger than gRPC's usual 4 MiB."""
    options = [("grpc.max_receive_message_length", _MAX_MESSAGE), ("grpc.max_send_message_length", _MAX_MESSAGE)]
    if address.is_loopback:  # gRPC would send even these through a proxy
        options.append(("grpc.enable_http_proxy", 0))
    return options


def output_arrays(answer: Any, call: Call) -> dict[str, npt.NDArray[Any]]:
    """tritonclient's answer -> the outputs that were asked for and are there."""
    return {name: answer.as_numpy(name) for name in call.outputs if answer.get_output(name) is not None}


def request_tensors(module: Any, call: Call) -> list[Any]:
    """A call's inputs as tritonclient's; ``module`` is its HTTP or its gRPC half."""
    from tritonclient.utils import np_to_triton_dtype

    inputs = []
    for name, array in call.inputs.items():
        tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs

"""The two ways to a server. Both take a :class:`~triton_sam.wire.Call` and give arrays or our exceptions."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

from triton_sam.wire import Address, Call, as_our_error, config_parameters

_MAX_MESSAGE = 2**31 - 1
_READ_BYTES = 2**18


class Transport(Protocol):
    """What a client needs of a connection; unit tests bring their own."""

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]: ...

    def is_ready(self, model: str) -> bool: ...

    def parameters(self, model: str) -> Mapping[str, str]: ...

    def close(self) -> None: ...


class HttpTransport:
    """tritonclient over HTTP. Its client belongs to one thread, so each thread gets one of its own."""

    def __init__(self, address: Address, timeout: float, headers: Mapping[str, str]) -> None:
        self._address = address
        self._timeout = timeout
        self._headers = dict(headers)
        self._local = threading.local()

    def _client(self) -> Any:
        client = getattr(self._local, "client", None)
        if client is None:
            import tritonclient.http as http

            client = self._local.client = http.InferenceServerClient(
                self._address.target,
                ssl=self._address.tls,
                connection_timeout=min(self._timeout, 10.0),
                network_timeout=self._timeout,
            )
            pool: Any = getattr(client, "_client_stub", None)
            if hasattr(pool, "block_size"):  # else it reads as before: a mask in 50 pieces of 4 kB
                pool.block_size = _READ_BYTES
        return client

    def infer(self, call: Call) -> Mapping[str, npt.NDArray[Any]]:
        import tritonclient.http as http

        try:
            answer = self._client().infer(
                call.model,
                request_tensors(http, call),
                outputs=[http.InferRequestedOutput(name) for name in call.outputs],
                headers=dict(self._headers),  # tritonclient writes each request's length into what it is given
                parameters=dict(call.parameters),
            )
            return output_arrays(answer, call)
        except Exception as error:
            self._forget()
            raise as_our_error(error, self._address.target) from error

    def is_ready(self, model: str) -> bool:
        try:
            return bool(self._client().is_model_ready(model, headers=self._headers))
        except Exception:
            self._forget()
            return False

    def parameters(self, model: str) -> Mapping[str, str]:
        """The parameters of a model's config; NotFound where the server does not serve it."""
        try:
            return config_parameters(self._client().get_model_config(model, headers=self._headers))
        except Exception as error:
            self._forget()
            raise as_our_error(error, self._address.target) from error

    def _forget(self) -> None:
        """A connection that failed is not used again."""
        client = self._local.__dict__.pop("client", None)
        if client is not None:
            client.close()

    def close(self) -> None:
        self._forget()


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
                headers=self._headers,
                client_timeout=self._timeout,
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

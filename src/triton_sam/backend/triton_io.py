"""Shared helpers of the Python models: config parameters, and responses through Triton."""

from __future__ import annotations

import logging
import os
from typing import Any

import triton_python_backend_utils as pb_utils

from triton_sam.errors import TritonSamError

log = logging.getLogger(__name__)


def parameters_of(config: dict[str, Any]) -> dict[str, str]:
    """The parameters of a model config, as ``initialize`` gets it."""
    return {name: entry["string_value"] for name, entry in config["parameters"].items()}


def refusal(error: TritonSamError, message: str | None = None) -> Any:
    """An error as a response.

    Args:
        message: replaces the error's own wire message.
    """
    code = getattr(pb_utils.TritonError, error.triton_code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message or error.wire_message, code))


def send(sender: Any, response: Any = None, *, last: bool = True) -> None:
    """Sends a response, or only the end of a stream. Ends this process if that fails.

    Triton refuses a second attempt, so that client would hang. If the process ends while the request still counts as in
    flight, the supervisor restarts the server, and every client gets an error at once.
    """
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
    try:
        if response is None:
            sender.send(flags=flags)
        else:
            sender.send(response, flags=flags)
    except Exception:
        log.critical("a response could not be sent: this process ends", exc_info=True)
        os._exit(1)


def request_id_of(request: Any) -> str:
    """The client's id for a request; empty if it is not valid UTF-8, which Triton does not check."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def is_cancelled(sender: Any) -> bool:
    """Whether the client has cancelled its request, as far as Triton knows."""
    try:
        return bool(sender.is_cancelled())
    except Exception:
        log.exception("checking a request for cancellation failed")
        return False

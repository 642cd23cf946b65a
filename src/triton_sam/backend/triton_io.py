"""What all our Python models do alike with Triton: log, config, errors, and answers that must get through."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import triton_python_backend_utils as pb_utils

from triton_sam.errors import TritonSamError
from triton_sam.logs import JsonFormatter, TextFormatter
from triton_sam.settings import Settings

log = logging.getLogger(__name__)


def set_up_log(model: str, settings: Settings) -> None:
    """Lines go to the server's own log, in the form of the settings."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter(model=model) if settings.log_format == "json" else text)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def parameters_of(config: dict[str, Any]) -> dict[str, str]:
    """The parameters of a model's config, as ``initialize`` gets it."""
    return {name: entry["string_value"] for name, entry in config["parameters"].items()}


def refusal(error: TritonSamError, message: str | None = None) -> Any:
    """An error as a response; ``message`` in place of how it is told elsewhere."""
    code = getattr(pb_utils.TritonError, error.triton_code)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message or error.wire_message, code))


def send(sender: Any, response: Any = None, *, last: bool = True) -> None:
    """Sends an answer, or only the end of a stream, or ends this process.

    A second try is refused by Triton, so that client would wait for ever. Ending with the request still counted makes
    the supervisor restart the server, which tells every client at once.
    """
    flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if last else 0
    try:
        if response is None:
            sender.send(flags=flags)
        else:
            sender.send(response, flags=flags)
    except Exception:
        log.critical("an answer could not be sent: this process ends", exc_info=True)
        os._exit(1)


def request_id_of(request: Any) -> str:
    """The client's name for a request; none where it is no text, which Triton lets through."""
    try:
        return str(request.request_id())
    except UnicodeDecodeError:
        return ""


def is_cancelled(sender: Any) -> bool:
    """Whether the client of a request is gone, as far as Triton knows."""
    try:
        return bool(sender.is_cancelled())
    except Exception:
        log.exception("asking whether a client is gone failed")
        return False

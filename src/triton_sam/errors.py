"""The whole exception tree, and its two maps: to and from Triton status codes, and to HTTP status.

Every message is one sentence that says what is wrong and, where there is one, the mend.
"""

from __future__ import annotations

import re


class TritonSamError(Exception):
    """Base of everything this package raises on purpose."""

    #: Name of the Triton status (``pb_utils.TritonError`` and gRPC use the same words).
    triton_code = "INTERNAL"
    http_status = 500
    #: Stands at the end of a server's message where the status code alone is ambiguous.
    marker: str | None = None
    #: The field of the request that it is about, where one field is to blame: ``messages[0].content``.
    field: str | None = None
    #: Seconds after which it is worth trying again, where they are known.
    retry_after: float | None = None

    @property
    def wire_message(self) -> str:
        """The message as the server sends it, with the marker that tells twins with one status apart."""
        return f"{self} [{self.marker}]" if self.marker else str(self)

    @property
    def stream_message(self) -> str:
        """The same inside a stream of answers, where Triton has no status for it at all: always with a marker."""
        return f"{self} [{self.marker or spelled(type(self), '-')}]"


class InvalidInput(TritonSamError):
    """The request is wrong and stays wrong: an image, a prompt or an option that cannot be used."""

    triton_code = "INVALID_ARG"
    http_status = 400

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class TooLarge(InvalidInput):
    """The request has more bytes, pixels or objects than are allowed."""

    marker = "too-large"
    http_status = 413


class NotAuthorised(TritonSamError):
    """The request has no token, or a wrong one."""

    triton_code = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(TritonSamError):
    """A web page that may not use the service."""

    triton_code = "PERMISSION_DENIED"
    http_status = 403


class MethodNotAllowed(TritonSamError):
    """The service has this path, but not for this method."""

    triton_code = "UNSUPPORTED"
    http_status = 405


class RequestTimeout(TritonSamError):
    """The body of a request to the service stopped coming."""

    triton_code = "DEADLINE_EXCEEDED"
    http_status = 408


class Unsupported(TritonSamError):
    """The request is well formed, but this model or this build cannot do it."""

    triton_code = "UNSUPPORTED"
    http_status = 422  # Triton itself says 501, but nothing of ours has failed


class NotFound(TritonSamError):
    """The named model or file is not there."""

    triton_code = "NOT_FOUND"
    http_status = 404


class ModelNotFound(NotFound):
    """The service has no vision-language model of this name; its code is the one that OpenAI's clients know."""

    field = "model"


class ImageExpired(NotFound):
    """The embedding of an ``image_key`` is not (or no longer) in the server's cache."""

    marker = "image-expired"


class Unavailable(TritonSamError):
    """The server is up but will not take this request now (queue full, model loading): try again."""

    triton_code = "UNAVAILABLE"
    http_status = 503


class QueueFull(Unavailable):
    """Too many requests wait already: try again in a moment, or send fewer at a time."""

    marker = "queue-full"
    http_status = 429


class RateLimited(Unavailable):
    """A caller of the service has sent more than its rate allows; the service's own, Triton never says it."""

    http_status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(TritonSamError):
    """The request was cancelled or superseded by a newer one of its session before it was computed."""

    marker = "cancelled"  # over HTTP Triton 2.51 turns this status into a plain 400
    triton_code = "CANCELLED"
    http_status = 499


class DeadlineExceeded(TritonSamError):
    """No answer within the client's time limit."""

    triton_code = "DEADLINE_EXCEEDED"
    http_status = 504


class InternalError(TritonSamError):
    """A fault of the server itself; its log has the traceback."""


class ServerUnreachable(TritonSamError):
    """No server answers at the address, or the connection was lost before the answer."""

    triton_code = "UNAVAILABLE"
    http_status = 502


class SetupError(TritonSamError):
    """This machine or its environment is not ready: a missing package, a busy port, a full disk."""


class WeightsError(SetupError):
    """A model file could not be fetched or does not have the right checksum."""


class InterruptedDownload(WeightsError):
    """A download that had begun well; what came is kept and the next try goes on from there."""


class ServerError(SetupError):
    """The embedded server did not start or stopped by itself."""


_WIRE_CLASSES: tuple[type[TritonSamError], ...] = (
    InvalidInput,
    NotAuthorised,
    Unsupported,
    NotFound,
    Unavailable,
    Cancelled,
    DeadlineExceeded,
    InternalError,
)
_BY_TRITON_CODE = {cls.triton_code: cls for cls in _WIRE_CLASSES} | {
    "INVALID_ARGUMENT": InvalidInput,  # gRPC's spelling of Triton's INVALID_ARG
    "UNIMPLEMENTED": Unsupported,
    "RESOURCE_EXHAUSTED": Unavailable,
}
_BY_HTTP_STATUS = {cls.http_status: cls for cls in _WIRE_CLASSES} | {
    413: TooLarge,
    429: QueueFull,
    501: Unsupported,
    502: Unavailable,  # a proxy whose server is gone for the moment; a 504 is the deadline's own
}


def spelled(cls: type[TritonSamError], between: str) -> str:
    """The name of a kind of error for others than Python: ``NotFound`` -> ``not-found``, ``not_found``."""
    return re.sub(r"(?<!^)(?=[A-Z])", between, cls.__name__).lower()


_BY_MARKER = {spelled(cls, "-"): cls for cls in _WIRE_CLASSES} | {
    cls.marker: cls for cls in (TooLarge, ImageExpired, QueueFull, Cancelled)
}


def from_status(status: str | int | None, message: str) -> TritonSamError:
    """The exception for a server's answer.

    Args:
        status: a Triton or gRPC status name (``"NOT_FOUND"``, ``"StatusCode.NOT_FOUND"``) or an HTTP status.
        message: the server's sentence; a marker at its end is taken off and decides the class.
    """
    for marker, marked_class in _BY_MARKER.items():
        if message.endswith(f" [{marker}]"):
            return marked_class(message.removesuffix(f" [{marker}]"))
    text = str(status).rpartition(".")[2]
    if text.isdigit():
        return _BY_HTTP_STATUS.get(int(text), InternalError)(message)
    return _BY_TRITON_CODE.get(text, InternalError)(message)

"""All exceptions of this package, with their Triton status codes and HTTP statuses.

Every message is one sentence that says what is wrong and, if there is one, the fix.
"""

from __future__ import annotations

import re


class TritonSamError(Exception):
    """Base class of this package's exceptions."""

    #: Name of the Triton status (``pb_utils.TritonError`` and gRPC use the same names).
    triton_code = "INTERNAL"
    http_status = 500
    #: Appended to a server's message if the status code alone is ambiguous.
    marker: str | None = None
    #: The field of the request that caused it, if there is one: ``messages[0].content``.
    field: str | None = None
    #: Seconds after which a retry makes sense, if they are known.
    retry_after: float | None = None

    @property
    def wire_message(self) -> str:
        """The message as the server sends it, with the marker that distinguishes classes with the same status."""
        return f"{self} [{self.marker}]" if self.marker else str(self)

    @property
    def stream_message(self) -> str:
        """The message inside a stream, where Triton sends no status: always with a marker."""
        return f"{self} [{self.marker or spelled(type(self), '-')}]"


class InvalidInput(TritonSamError):
    """The request is not valid: an image, a prompt or an option that cannot be used. A retry does not help."""

    triton_code = "INVALID_ARG"
    http_status = 400

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class TooLarge(InvalidInput):
    """The request has more bytes, pixels or objects than are allowed."""

    marker = "too-large"
    http_status = 413


class TooManyObjects(TooLarge):
    """A video has as many objects as the server tracks in one: a further one fits when another is removed."""

    marker = "too-many-objects"


class NotAuthorised(TritonSamError):
    """The request has no token, or a wrong one."""

    triton_code = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(TritonSamError):
    """The request comes from a web page that may not use the service."""

    triton_code = "PERMISSION_DENIED"
    http_status = 403


class MethodNotAllowed(TritonSamError):
    """The service does not have this method for this path."""

    triton_code = "UNSUPPORTED"
    http_status = 405


class RequestTimeout(TritonSamError):
    """The body of a request to the service stopped arriving."""

    triton_code = "DEADLINE_EXCEEDED"
    http_status = 408


class Unsupported(TritonSamError):
    """The request is well formed, but this model or this build cannot do it."""

    triton_code = "UNSUPPORTED"
    http_status = 422  # Triton itself says 501, but the server has not failed


class NotFound(TritonSamError):
    """The named model or file does not exist."""

    triton_code = "NOT_FOUND"
    http_status = 404


class Conflict(TritonSamError):
    """What the request asks for does not fit what is going on, or what is there. Only the service raises it."""

    http_status = 409


class UnsupportedMedia(InvalidInput):
    """A file of a kind that the service does not take."""

    http_status = 415


class NotServed(Unsupported):
    """No model that is served can do it, and another one could."""

    http_status = 501


class ModelNotFound(NotFound):
    """The service has no vision-language model of this name. OpenAI's clients know its error code."""

    field = "model"


class ImageExpired(NotFound):
    """The embedding of an ``image_key`` is not (or no longer) in the server's cache."""

    marker = "image-expired"


class SessionExpired(NotFound):
    """A video session is not in the server's memory: it was idle for too long, or the server has restarted."""

    marker = "session-expired"


class Unavailable(TritonSamError):
    """The server runs but cannot take this request now: a model loads, or the server restarts. Try again."""

    triton_code = "UNAVAILABLE"
    http_status = 503


class QueueFull(Unavailable):
    """Too many requests are waiting already: try again in a moment, or send fewer at a time."""

    marker = "queue-full"
    http_status = 429


class RateLimited(Unavailable):
    """A caller has exceeded its rate limit. Only the service raises it, never Triton."""

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
    """No response within the client's timeout."""

    triton_code = "DEADLINE_EXCEEDED"
    http_status = 504


class InternalError(TritonSamError):
    """An error of the server itself; its log has the traceback."""


class ServerUnreachable(TritonSamError):
    """No server responds at the address, or the connection was lost before the response. Only clients raise it."""

    triton_code = "UNAVAILABLE"
    http_status = 502


class SetupError(TritonSamError):
    """This machine or its environment is not ready: a missing package, a busy port, a full disk."""


class WeightsError(SetupError):
    """A model file could not be downloaded or has the wrong checksum."""


class InterruptedDownload(WeightsError):
    """A download was interrupted. Its part is kept, and the next attempt resumes it."""


class ServerError(SetupError):
    """The embedded server did not start or stopped unexpectedly."""


class CrashedAtStart(ServerError):
    """The process of a model ended before it had initialised the model.

    Processes of Triton 2.51 do that now and then on a busy machine (``std::length_error`` in their log), with no fault
    of the model's.
    """


class JobStopped(TritonSamError):
    """A batch job cannot go on now. Nothing is lost: the same command goes on where it stopped."""


class JobInterrupted(JobStopped):
    """A batch job was ended by its user."""


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
    502: Unavailable,  # a proxy whose server is unreachable for the moment; 504 is the deadline's own
}


def spelled(cls: type[TritonSamError], between: str) -> str:
    """A class's name for use outside Python: ``NotFound`` -> ``not-found`` or ``not_found``."""
    return re.sub(r"(?<!^)(?=[A-Z])", between, cls.__name__).lower()


_BY_MARKER = {spelled(cls, "-"): cls for cls in _WIRE_CLASSES} | {
    cls.marker: cls for cls in (TooLarge, TooManyObjects, ImageExpired, SessionExpired, QueueFull, Cancelled)
}


def from_status(status: str | int | None, message: str) -> TritonSamError:
    """The exception for a server's error response.

    Args:
        status: a Triton or gRPC status name (``"NOT_FOUND"``, ``"StatusCode.NOT_FOUND"``) or an HTTP status.
        message: the server's message; a marker at its end is removed and decides the class.
    """
    for marker, marked_class in _BY_MARKER.items():
        if message.endswith(f" [{marker}]"):
            return marked_class(message.removesuffix(f" [{marker}]"))
    text = str(status).rpartition(".")[2]
    if text.isdigit():
        return _BY_HTTP_STATUS.get(int(text), InternalError)(message)
    return _BY_TRITON_CODE.get(text, InternalError)(message)

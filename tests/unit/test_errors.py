from __future__ import annotations

import pickle

import pytest

from triton_sam import errors
from triton_sam.errors import (
    Cancelled,
    Conflict,
    CrashedAtStart,
    DeadlineExceeded,
    Forbidden,
    ImageExpired,
    InternalError,
    InterruptedDownload,
    InvalidInput,
    JobInterrupted,
    JobStopped,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthorised,
    NotFound,
    NotServed,
    QueueFull,
    RateLimited,
    RequestTimeout,
    ServerError,
    ServerUnreachable,
    SessionExpired,
    SetupError,
    TooLarge,
    TooManyObjects,
    TritonSamError,
    Unavailable,
    Unsupported,
    UnsupportedMedia,
    WeightsError,
    from_status,
)
from triton_sam.export.rewrite_check import IncompleteRewrite

# What a server may answer with; the rest of the tree is raised on the user's own machine.
ANSWERS = (
    InvalidInput,
    TooLarge,
    TooManyObjects,
    NotAuthorised,
    Unsupported,
    NotFound,
    ImageExpired,
    SessionExpired,
    Unavailable,
    QueueFull,
    Cancelled,
    DeadlineExceeded,
    InternalError,
)
LOCAL = (
    Conflict,
    UnsupportedMedia,
    NotServed,
    Forbidden,
    MethodNotAllowed,
    ModelNotFound,
    RateLimited,
    RequestTimeout,
    ServerUnreachable,
    SetupError,
    WeightsError,
    InterruptedDownload,
    CrashedAtStart,
    JobInterrupted,
    JobStopped,
    ServerError,
    IncompleteRewrite,
)


def _all_classes(root: type[TritonSamError]) -> set[type[TritonSamError]]:
    return {root}.union(*(_all_classes(child) for child in root.__subclasses__()))


@pytest.mark.parametrize("error_class", ANSWERS)
def test_an_answer_comes_back_as_the_same_class_by_each_status(error_class: type[TritonSamError]) -> None:
    sent = error_class("the thing is wrong: mend it")
    for status in (
        error_class.triton_code,
        f"StatusCode.{error_class.triton_code}",
        error_class.http_status,
        str(error_class.http_status),
    ):
        received = from_status(status, sent.wire_message)
        assert type(received) is error_class, status
        assert str(received) == "the thing is wrong: mend it"


def test_every_class_is_covered_here() -> None:
    assert _all_classes(TritonSamError) == {TritonSamError, *ANSWERS, *LOCAL}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("INVALID_ARG", InvalidInput),
        ("INVALID_ARGUMENT", InvalidInput),
        ("StatusCode.INVALID_ARGUMENT", InvalidInput),
        ("UNIMPLEMENTED", Unsupported),
        ("StatusCode.UNIMPLEMENTED", Unsupported),
        ("UNSUPPORTED", Unsupported),
        ("NOT_FOUND", NotFound),
        ("UNAVAILABLE", Unavailable),
        ("StatusCode.RESOURCE_EXHAUSTED", Unavailable),
        ("CANCELLED", Cancelled),
        ("DEADLINE_EXCEEDED", DeadlineExceeded),
        ("INTERNAL", InternalError),
        (400, InvalidInput),
        ("400", InvalidInput),
        (404, NotFound),
        (422, Unsupported),
        (429, QueueFull),
        (499, Cancelled),
        (500, InternalError),
        (501, Unsupported),
        (503, Unavailable),
        (504, DeadlineExceeded),
        (418, InternalError),
        ("NO_SUCH_STATUS", InternalError),
        ("", InternalError),
        (None, InternalError),
    ],
)
def test_from_status(status: str | int | None, expected: type[TritonSamError]) -> None:
    error = from_status(status, "what the server said")
    assert type(error) is expected
    assert str(error) == "what the server said"


def test_a_marker_decides_over_the_status_and_is_taken_off() -> None:
    sent = ImageExpired("the image 12ab is gone: set it again")
    assert sent.wire_message == "the image 12ab is gone: set it again [image-expired]"
    for status in ("NOT_FOUND", "INTERNAL", 500, None):
        received = from_status(status, sent.wire_message)
        assert type(received) is ImageExpired
        assert str(received) == str(sent)


def test_only_a_marker_at_the_end_counts() -> None:
    message = "the model [image-expired] is not there"
    received = from_status("NOT_FOUND", message)
    assert type(received) is NotFound
    assert str(received) == message


def test_classes_without_a_marker_send_their_plain_message() -> None:
    plain = [error_class for error_class in (*ANSWERS, *LOCAL) if error_class.marker is None]
    assert InvalidInput in plain
    assert ImageExpired not in plain
    for error_class in plain:
        assert error_class("as it is").wire_message == "as it is"


def test_no_two_classes_share_a_marker() -> None:
    markers = [error_class.marker for error_class in ANSWERS if error_class.marker is not None]
    assert len(markers) == len(set(markers)) > 0


def test_expired_images_are_caught_as_not_found() -> None:
    with pytest.raises(NotFound):
        raise ImageExpired("gone")


def test_local_errors_have_their_own_http_status() -> None:
    assert ServerUnreachable("x").http_status == 502
    assert WeightsError("x").http_status == 500
    assert issubclass(WeightsError, SetupError)
    assert issubclass(ServerError, SetupError)


def test_every_exception_of_the_module_belongs_to_the_tree() -> None:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, TritonSamError)


def test_the_field_to_blame() -> None:
    assert InvalidInput("wrong").field is None
    blamed = pickle.loads(pickle.dumps(TooLarge("too much", field="messages")))
    assert (type(blamed), str(blamed), blamed.field) == (TooLarge, "too much", "messages")
    assert ModelNotFound("none").field == "model"
    assert Unavailable("later").field is None

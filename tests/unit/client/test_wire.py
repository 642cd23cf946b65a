from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from triton_sam.client.core import candidate_names
from triton_sam.client.wire import (
    Address,
    click_inputs,
    config_parameters,
    image_inputs,
    mask_set,
    prompt_document,
    text_of,
    text_tensor,
    translate_error,
)
from triton_sam.core.masks import FORMATS, encode
from triton_sam.core.prompts import ObjectPrompt, PromptLimits, object_prompt, parse_prompt
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
    Unsupported,
)

# names and configs


@pytest.mark.parametrize(
    ("model_id", "names"),
    [
        ("sam2.1:large", ("sam2.1_large", "sam2")),
        ("sam2:tiny", ("sam2_tiny", "sam2")),
        ("sam1:vit_b", ("sam1_vit_b", "sam1")),
        ("sam3:tracker", ("sam3_tracker", "sam3", "sam3_full")),
        ("sam3:full", ("sam3_full", "sam3", "sam3_tracker")),
    ],
)
def test_candidate_names(model_id: str, names: tuple[str, str]) -> None:
    assert candidate_names(model_id) == names


def test_candidate_names_are_those_of_the_catalogue() -> None:
    from triton_sam.models.catalog import CATALOG

    for spec in CATALOG.values():
        assert candidate_names(spec.id)[:2] == (spec.variant_name, spec.family)


def test_config_parameters() -> None:
    assert config_parameters({"name": "x"}) == {}
    assert config_parameters({"parameters": {"a": {"string_value": "b"}, "c": {}}}) == {"a": "b", "c": ""}


# addresses


@pytest.mark.parametrize(
    ("url", "target", "grpc", "tls"),
    [
        ("localhost:8000", "localhost:8000", False, False),
        ("localhost", "localhost:8000", False, False),
        (" 10.0.0.5:9000 ", "10.0.0.5:9000", False, False),
        ("http://host", "host:8000", False, False),
        ("http://host:80/", "host:80", False, False),
        ("HTTP://host:80", "host:80", False, False),
        ("http://host/prefix/", "host:8000/prefix", False, False),
        ("https://host", "host:443", False, True),
        ("https://host/prefix", "host:443/prefix", False, True),
        ("https://host:8443/a/b", "host:8443/a/b", False, True),
        ("grpc://host", "host:8001", True, False),
        ("grpc://host:9001/", "host:9001", True, False),
        ("grpcs://host", "host:443", True, True),
        ("grpcs://host:8001", "host:8001", True, True),
        ("[::1]:8000", "[::1]:8000", False, False),
        ("grpc://[::1]", "[::1]:8001", True, False),
        ("localhost:", "localhost:8000", False, False),
    ],
)
def test_good_addresses(url: str, target: str, grpc: bool, tls: bool) -> None:
    assert Address.parse(url) == Address(target, grpc, tls)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "  ",
        "http://",
        "https:///path",
        "ftp://host",
        "unix:///socket",
        "://host",
        ":8000",
        "host:port",
        "host:99999",
        "host:-1",
        "[::1",
        "grpc://host/path",
        "two words:8000",
    ],
)
def test_bad_addresses(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Address.parse(url)
    assert repr(url) in str(caught.value)
    assert "grpc://host:8001" in str(caught.value)


# tensors


def test_text_goes_and_comes_as_bytes() -> None:
    tensor = text_tensor("größe")
    assert tensor.shape == (1,)
    assert tensor.dtype == object
    assert tensor[0] == "größe".encode()
    assert text_of({"x": tensor}, "x") == "größe"
    assert text_of({"x": np.array([["plain"]], dtype=object)}, "x") == "plain"


def test_image_inputs() -> None:
    inputs = image_inputs(b"\x89PNG")
    assert list(inputs) == ["image"]
    assert inputs["image"].dtype == np.uint8
    assert inputs["image"].tobytes() == b"\x89PNG"


def test_click_inputs() -> None:
    inputs = click_inputs("12ab", {"points": [[1, 2]]})
    assert set(inputs) == {"image_key", "prompt_json"}
    assert text_of(inputs, "image_key") == "12ab"
    assert json.loads(text_of(inputs, "prompt_json")) == {"points": [[1, 2]]}


coordinates = st.floats(0, 5000, width=32)
point_lists = st.lists(st.tuples(coordinates, coordinates, st.sampled_from([0, 1])), max_size=6)


@st.composite
def object_prompts(draw: st.DrawFn) -> ObjectPrompt:
    points = draw(point_lists)
    box = mask = None
    if draw(st.booleans()) or not points:
        x, y = draw(st.integers(0, 2000)), draw(st.integers(0, 2000))
        box = [x, y, x + draw(st.integers(1, 2000)), y + draw(st.integers(1, 2000))]
    if draw(st.booleans()):
        mask = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(4, 4)).astype(np.float32)
    prompt = object_prompt(
        [(x, y) for x, y, _ in points],
        [label for _, _, label in points],
        box,
        mask,
        limits=PromptLimits(mask_side=4),
    )
    assert prompt is not None
    return prompt


@given(st.lists(object_prompts(), min_size=1, max_size=4), st.booleans(), st.sampled_from(FORMATS))
def test_a_prompt_arrives_as_it_was_sent(sent: list[ObjectPrompt], multimask: bool, form: str) -> None:
    text = json.dumps(prompt_document(sent, multimask=multimask, form=form))
    received = parse_prompt(text, PromptLimits(mask_side=4))
    assert received.multimask is multimask
    assert received.format == form
    assert len(received.objects) == len(sent)
    for before, after in zip(sent, received.objects, strict=True):
        np.testing.assert_array_equal(after.points, before.points)
        np.testing.assert_array_equal(after.labels, before.labels)
        for name in ("box", "mask_input"):
            expected, found = getattr(before, name), getattr(after, name)
            assert (expected is None) == (found is None)
            if expected is not None:
                np.testing.assert_array_equal(found, expected)


# masks

STACK = np.random.default_rng(4).random((3, 5, 13)) > 0.5
SCORES = [0.25, 0.75, 0.5]
OBJECTS = [0, 0, 1]


def described(form: str) -> dict[str, Any]:
    entries = [
        {**encode(mask, form), "score": score, "object": which}
        for mask, score, which in zip(STACK, SCORES, OBJECTS, strict=True)
    ]
    return {"masks": entries, "width": 13, "height": 5}


@pytest.mark.parametrize("form", ["png", "rle", "bits"])
def test_mask_set_of_a_document(form: str) -> None:
    found = mask_set(json.loads(json.dumps(described(form))))
    np.testing.assert_array_equal(found.masks, STACK)
    assert found.scores.dtype == np.float32
    assert found.scores.tolist() == SCORES
    assert found.objects.tolist() == OBJECTS


def test_mask_set_of_packed_bits() -> None:
    document = {
        "masks": [{"score": score, "object": which} for score, which in zip(SCORES, OBJECTS, strict=True)],
        "width": 13,
        "height": 5,
    }
    found = mask_set(document, np.packbits(STACK, axis=2))
    assert found.masks.dtype == np.bool_
    np.testing.assert_array_equal(found.masks, STACK)
    assert found.scores.tolist() == SCORES
    assert found.objects.tolist() == OBJECTS


# errors


class ClientError(Exception):
    """As tritonclient's exception looks from outside."""

    def __init__(self, message: str | None, status: str | None = None) -> None:
        super().__init__(message)
        self._message, self._status = message, status

    def message(self) -> str | None:
        return self._message

    def status(self) -> str | None:
        return self._status


@pytest.mark.parametrize("error_class", [ClientError, InferenceServerException])
@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("the model sam9 is not there", "404", NotFound),
        ("the model sam9 is not there", "StatusCode.NOT_FOUND", NotFound),
        ("the image is gone [image-expired]", "404", ImageExpired),
        ("the image is gone [image-expired]", "StatusCode.NOT_FOUND", ImageExpired),
        ("point 0 lies outside", "400", InvalidInput),
        ("point 0 lies outside", "StatusCode.INVALID_ARGUMENT", InvalidInput),
        ("Exceeds maximum queue size", "503", Unavailable),
        ("Exceeds maximum queue size", "StatusCode.UNAVAILABLE", Unavailable),
        ("superseded", "499", Cancelled),
        ("superseded", "StatusCode.CANCELLED", Cancelled),
        ("cannot do this", "StatusCode.UNIMPLEMENTED", Unsupported),
        ("something broke", "500", InternalError),
        ("something broke", "StatusCode.INTERNAL", InternalError),
        ("something broke", None, InternalError),
        ("", None, InternalError),
        ("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED", DeadlineExceeded),
        ("Deadline Exceeded", "499", DeadlineExceeded),
        ("too late", "StatusCode.DEADLINE_EXCEEDED", DeadlineExceeded),
        ("failed to connect to all addresses; last error: ...", "StatusCode.UNAVAILABLE", ServerUnreachable),
        ("Connection reset by peer", "StatusCode.UNAVAILABLE", ServerUnreachable),
        ("Socket closed", "StatusCode.UNAVAILABLE", ServerUnreachable),
        ("DNS resolution failed for nohost", "StatusCode.UNAVAILABLE", ServerUnreachable),
        ("Request for unknown model: 'sam2' has no available versions", "400", Unavailable),
        ("in ensemble: Stub process 'sam2' is not healthy.", "500", Unavailable),
        ("Failed to increase the shared memory pool size for key 'a' to 1048576 bytes.", "500", Unavailable),
    ],
)
def test_errors_of_the_client_library(
    error_class: Any, message: str, status: str | None, expected: type[TritonSamError]
) -> None:
    error = translate_error(error_class(message, status), "localhost:8000")
    assert type(error) is expected
    assert "[image-expired]" not in str(error)


def test_the_servers_own_sentence_is_kept() -> None:
    error = translate_error(ClientError("point 3 lies outside the image", "400"), "localhost:8000")
    assert str(error) == "point 3 lies outside the image"


@pytest.mark.parametrize(
    ("foreign", "expected"),
    [
        (ConnectionRefusedError(111, "Connection refused"), ServerUnreachable),
        (OSError("anything"), ServerUnreachable),
        (socket.gaierror(-2, "Name or service not known"), ServerUnreachable),
        (RuntimeError(), ServerUnreachable),
        (TimeoutError("timed out"), DeadlineExceeded),
        (ClientError("connection refused\n  by\tthe host"), ServerUnreachable),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_errors_of_the_transports(foreign: BaseException, expected: type[TritonSamError]) -> None:
    error = translate_error(foreign, "far-away:8000")
    assert type(error) is expected
    assert "far-away:8000" in str(error)
    assert "\n" not in str(error)


def test_an_unreachable_server_comes_with_its_mend() -> None:
    error = translate_error(OSError("x" * 5000), "far-away:8000")
    assert "triton-sam serve" in str(error)
    assert "TRITON_URL" in str(error)
    assert len(str(error)) < 400


def test_our_own_errors_pass_unchanged() -> None:
    mine = Cancelled("superseded")
    assert translate_error(mine, "localhost:8000") is mine

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from triton_sam.client import link
from triton_sam.client import sync_client as client_module
from triton_sam.client.core import ImageFile
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.client.wire import Address, Call
from triton_sam.core.masks import encode
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
)
from triton_sam.settings import get_settings

WIDTH, HEIGHT = 11, 5
PICTURE = b"the bytes of an image file"
Outputs = Mapping[str, npt.NDArray[Any]]


def drawn(objects: int, each: int) -> npt.NDArray[np.bool_]:
    """[objects * each, HEIGHT, WIDTH], every mask another one."""
    count = objects * each
    return np.array([[[(x + y) % (n + 2) == 0 for x in range(WIDTH)] for y in range(HEIGHT)] for n in range(count)])


class FakeTransport:
    """A server in memory: keeps keys of images, answers clicks, and raises what it is told to raise first."""

    def __init__(self, *failures: TritonSamError) -> None:
        self.calls: list[Call] = []
        self.failures = list(failures)
        self.images: dict[str, bytes] = {}
        self.closed = 0
        self.ready = True
        self.models: dict[str, str | None] = {"sam2": "sam2:tiny"}
        self.version = "1"
        self.asked: list[str] = []
        self._lock = threading.Lock()

    def infer(self, call: Call) -> Outputs:
        with self._lock:
            self.calls.append(call)
            if self.failures:
                raise self.failures.pop(0)
        if "image" in call.inputs:
            data = call.inputs["image"].tobytes()
            key = f"key-of-{len(data)}-{data[:8].hex()}-{call.model}-{self.version}"
            self.images[key] = data
            result = {"model": self.models.get(call.model), "image_key": key}
            known = {"image_key": key.encode(), "result_json": json.dumps(result).encode()}
            return {name: np.array([known[name]], object) for name in call.outputs}
        return self._click(call)

    def _click(self, call: Call) -> Outputs:
        key = call.inputs["image_key"][0].decode()
        if key not in self.images:
            raise ImageExpired(f"{key} is gone")
        document = json.loads(call.inputs["prompt_json"][0])
        each = 3 if document["multimask"] else 1
        objects = len(document["objects"])
        masks = drawn(objects, each)
        scores = np.linspace(0.5, 0.9, objects * each, dtype=np.float32)
        logits = np.full((objects, each, 256, 256), document["objects"][0].get("points", [[0.0]])[0][0], np.float32)
        logits.setflags(write=False)  # as a view of a transport's buffer is
        entries = []
        for index, (mask, score) in enumerate(zip(masks, scores.tolist(), strict=True)):
            form = document["format"]
            shown = {"encoding": form, "width": WIDTH, "height": HEIGHT}
            if form not in ("bits", "logits"):
                shown = encode(mask, form)
            entries.append(shown | {"score": score, "object": index // each})
        result = {"width": WIDTH, "height": HEIGHT, "masks": entries, "timings_ms": {"decode": 1.5, "total": 2.5}}
        known = {
            "low_res_logits": logits,
            "scores": scores.reshape(objects, each),
            "masks": np.packbits(masks, axis=2),
            "result_json": np.array([json.dumps(result).encode()], object),
        }
        return {name: known[name] for name in call.outputs}

    def is_ready(self, model: str) -> bool:
        return self.ready and model in self.models

    def parameters(self, model: str) -> Mapping[str, str]:
        with self._lock:
            self.asked.append(model)
            if self.failures:
                raise self.failures.pop(0)
        if model not in self.models:
            raise NotFound(f"Request for unknown model: '{model}' is not found")
        model_id = self.models[model]
        return {} if model_id is None else {"model_id": model_id, "encoder": "encoder.onnx"}

    def close(self) -> None:
        self.closed += 1

    @property
    def kinds(self) -> list[str]:
        return ["encode" if "image" in call.inputs else "click" for call in self.calls]

    @property
    def document(self) -> dict[str, Any]:
        """The prompt of the last click."""
        found: dict[str, Any] = json.loads(self.calls[-1].inputs["prompt_json"][0])
        return found


@pytest.fixture
def transport() -> FakeTransport:
    return FakeTransport()


@pytest.fixture
def client(transport: FakeTransport) -> SAM2TritonClient:
    return SAM2TritonClient(transport=transport)


@pytest.fixture
def with_image(client: SAM2TritonClient, transport: FakeTransport) -> SAM2TritonClient:
    client.set_image(PICTURE)
    transport.calls.clear()
    return client


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the client would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(link, "time", SimpleNamespace(sleep=slept.append))
    return slept


# set_image


def test_bytes_are_sent_as_they_are(client: SAM2TritonClient, transport: FakeTransport) -> None:
    key = client.set_image(PICTURE)
    (call,) = transport.calls
    assert call.model == "sam2"
    assert list(call.inputs) == ["image"]
    assert call.inputs["image"].dtype == np.uint8
    assert call.inputs["image"].shape == (len(PICTURE),)
    assert call.inputs["image"].tobytes() == PICTURE
    assert list(call.outputs) == ["image_key"]
    assert key == next(iter(transport.images))


def test_a_path_is_read(client: SAM2TritonClient, transport: FakeTransport, tmp_path: Path) -> None:
    file = tmp_path / "picture.jpg"
    file.write_bytes(PICTURE)
    assert client.set_image(file) == client.set_image(str(file))
    assert [call.inputs["image"].tobytes() for call in transport.calls] == [PICTURE, PICTURE]


@pytest.mark.parametrize("wrap", [lambda array: array, Image.fromarray])
def test_an_array_and_a_picture_travel_without_loss(
    wrap: Callable[[npt.NDArray[np.uint8]], Any], client: SAM2TritonClient, transport: FakeTransport
) -> None:
    array = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    client.set_image(wrap(array))
    with Image.open(io.BytesIO(transport.calls[0].inputs["image"].tobytes())) as sent:
        assert np.array_equal(np.asarray(sent.convert("RGB")), array)


def test_an_image_that_cannot_be_read_is_not_sent(
    client: SAM2TritonClient, transport: FakeTransport, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="cannot read the image"):
        client.set_image(tmp_path / "missing.png")
    assert transport.calls == []


def test_a_failed_encode_keeps_the_image_before(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    transport.failures = [InvalidInput("damaged")]
    with pytest.raises(InvalidInput, match="damaged"):
        with_image.set_image(b"another")
    with_image.predict([[1, 2]], [1])
    assert transport.images[transport.calls[-1].inputs["image_key"][0].decode()] == PICTURE


def test_the_model_has_a_name(transport: FakeTransport) -> None:
    SAM2TritonClient(model_type="sam3", transport=transport).set_image(PICTURE)
    assert transport.calls[0].model == "sam3"


# ids


@pytest.mark.parametrize(
    ("models", "asked", "name"),
    [
        ({"sam2": "sam2:tiny"}, "sam2:tiny", "sam2"),
        ({"sam2": "sam2.1:large"}, "sam2.1:large", "sam2"),
        ({"sam2": "sam2:tiny", "sam2.1_large": "sam2.1:large"}, "sam2.1:large", "sam2.1_large"),
        ({"sam2_tiny": "sam2:tiny", "sam2": "sam2.1:large"}, "sam2:tiny", "sam2_tiny"),
        ({"sam2_tiny": None, "sam2": "sam2:tiny"}, "sam2:tiny", "sam2"),
    ],
)
def test_an_id_is_looked_for_once(
    models: dict[str, str | None], asked: str, name: str, transport: FakeTransport
) -> None:
    transport.models = models
    client = SAM2TritonClient(model_type=asked, transport=transport)
    assert transport.asked == [], "not before it is needed"
    client.set_image(PICTURE)
    client.predict([[1, 2]])
    client.set_image(PICTURE)
    assert client.is_ready()
    assert {call.model for call in transport.calls} == {name}
    assert len(transport.asked) == len(set(transport.asked)) <= 2
    assert client.model_type == asked


@pytest.mark.parametrize("models", [{}, {"sam2": "sam2:tiny"}, {"sam2": None}, {"sam3": "sam2.1:large"}])
def test_an_id_that_is_not_served(models: dict[str, str | None], transport: FakeTransport) -> None:
    transport.models = models
    client = SAM2TritonClient(model_type="sam2.1:large", transport=transport)
    with pytest.raises(NotFound, match=r"does not serve sam2\.1:large: run `triton-sam setup sam2\.1:large`") as caught:
        client.set_image(PICTURE)
    assert "tiny" not in str(caught.value)
    assert transport.calls == []
    assert not client.is_ready()


def test_a_name_is_not_looked_for(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict([[1, 2]])
    assert transport.asked == []


def test_looking_for_an_id_is_tried_again_and_its_errors_are_told(
    transport: FakeTransport, pauses: list[float]
) -> None:
    transport.failures = [Unavailable("busy")]
    client = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    client.set_image(PICTURE)
    assert len(pauses) == 1
    transport.failures = [ServerUnreachable("nobody there")]
    other = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    with pytest.raises(ServerUnreachable):
        other.set_image(PICTURE)
    transport.failures = [ServerUnreachable("nobody there")]
    assert not other.is_ready()


def test_an_id_never_gets_another_models_masks(transport: FakeTransport) -> None:
    """The server's default changes while the client works: sam2 is another model from then on."""
    client = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    client.set_image(PICTURE)
    transport.models = {"sam2": "sam2.1:large", "sam2_tiny": "sam2:tiny"}
    transport.images.clear()
    client.predict([[1, 2]])
    assert transport.calls[-1].model == "sam2_tiny"
    transport.models = {"sam2": "sam2.1:large", "sam2_tiny": "sam2.1:small"}
    with pytest.raises(NotFound, match="does not serve sam2:tiny"):
        client.set_image(PICTURE)


# predict


def test_predict_sends_the_key_and_the_prompt(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict([[10, 20.5], [3, 4]], [1, 0])
    (call,) = transport.calls
    assert sorted(call.inputs) == ["image_key", "prompt_json"]
    assert all(tensor.shape == (1,) and tensor.dtype == object for tensor in call.inputs.values())
    assert list(call.outputs) == ["low_res_logits", "scores"]
    assert transport.document == {
        "objects": [{"points": [[10.0, 20.5], [3.0, 4.0]], "labels": [1, 0]}],
        "multimask": False,
        "format": "logits",
    }


@pytest.mark.parametrize(("multimask", "count"), [(False, 1), (True, 3)])
def test_predict_gives_writable_float32(multimask: bool, count: int, with_image: SAM2TritonClient) -> None:
    masks, scores = with_image.predict([[7, 8]], [1], multimask_output=multimask)
    assert masks.shape == (1, count, 256, 256)
    assert scores.shape == (1, count)
    assert masks.dtype == scores.dtype == np.float32
    assert float(masks[0, 0, 0, 0]) == 7.0
    masks[:] = 1.0
    scores[:] = 2.0
    assert masks.flags.owndata
    assert scores.flags.owndata


def test_numpy_truth_is_json(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict([[1, 1]], [1], multimask_output=np.bool_(True))  # type: ignore[arg-type]
    assert transport.document["multimask"] is True


@pytest.mark.parametrize("points", [[[3, 4], [5, 6]], [[[3, 4], [5, 6]]], np.array([[[3, 4], [5, 6]]], np.int64)])
@pytest.mark.parametrize("labels", [[1, 0], [[1, 0]], np.array([[1.0, 0.0]])])
def test_points_with_and_without_a_batch_axis(
    points: Any, labels: Any, with_image: SAM2TritonClient, transport: FakeTransport
) -> None:
    with_image.predict(points, labels)
    assert transport.document["objects"] == [{"points": [[3.0, 4.0], [5.0, 6.0]], "labels": [1, 0]}]


@pytest.mark.parametrize(
    "box", [[1, 2, 30, 40], [[1, 2, 30, 40]], (1.0, 2.0, 30.0, 40.0), np.array([[[1, 2, 30, 40]]])]
)
def test_a_box_with_and_without_a_batch_axis(box: Any, with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict(box=box)
    assert transport.document["objects"] == [{"box": [1.0, 2.0, 30.0, 40.0]}]


def test_labels_may_be_left_out(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict([[3, 4], [5, 6]])
    assert transport.document["objects"][0]["labels"] == [1, 1]


@pytest.mark.parametrize("shape", [(256, 256), (1, 256, 256), (1, 1, 256, 256)])
def test_a_mask_of_an_earlier_answer(
    shape: tuple[int, ...], with_image: SAM2TritonClient, transport: FakeTransport
) -> None:
    mask = np.linspace(-9, 9, 256 * 256, dtype=np.float32).reshape(shape)
    with_image.predict([[1, 1]], [1], mask_input=mask)
    sent = np.frombuffer(base64.b64decode(transport.document["objects"][0]["mask_input"]), "<f4")
    assert np.array_equal(sent, mask.ravel())


@pytest.mark.parametrize(
    "prompt",
    [
        {},
        {"point_coords": []},
        {"point_coords": [[1, 2, 3]]},
        {"point_coords": [[1, float("nan")]]},
        {"point_coords": [[1, 2]], "point_labels": [1, 0]},
        {"point_coords": [[1, 2]], "point_labels": [2]},
        {"point_coords": [[1, 2]], "point_labels": [True]},
        {"point_coords": [[1, 2]], "point_labels": ["1"]},
        {"point_coords": [[[1, 2]], [[3, 4]]]},
        {"point_labels": [1]},
        {"box": [5, 5, 5, 9]},
        {"box": [[0, 0, 5, 5], [1, 1, 6, 6]]},
        {"mask_input": np.zeros((3, 256, 256), np.float32)},
        {"mask_input": np.zeros((64, 32), np.float32)},
    ],
)
def test_a_wrong_prompt_is_not_sent(
    prompt: dict[str, Any], with_image: SAM2TritonClient, transport: FakeTransport
) -> None:
    with pytest.raises(InvalidInput):
        with_image.predict(**prompt)
    assert transport.calls == []


@pytest.mark.parametrize(
    "prompt",
    [
        {"point_coords": [["here", "there"]]},
        {"point_coords": [[1, 2], [3]]},
        {"point_coords": [[1, 2]], "point_labels": [[1], [0, 1]]},
        {"box": ["a", 0, 5, 5]},
        {"box": {"x0": 1}},
    ],
)
def test_what_is_no_array_is_our_error_too(
    prompt: dict[str, Any], with_image: SAM2TritonClient, transport: FakeTransport
) -> None:
    with pytest.raises(InvalidInput):
        with_image.predict(**prompt)
    assert transport.calls == []


@pytest.mark.parametrize("method", ["predict", "segment"])
def test_no_image_yet(method: str, client: SAM2TritonClient, transport: FakeTransport) -> None:
    with pytest.raises(InvalidInput, match="set_image"):
        getattr(client, method)([[1, 2]], [1])
    assert transport.calls == []


# retries


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_busy_server_is_asked_again_and_then_not(retries: int, transport: FakeTransport, pauses: list[float]) -> None:
    transport.failures = [Unavailable(f"busy {index}") for index in range(9)]
    client = SAM2TritonClient(transport=transport, retries=retries)
    with pytest.raises(Unavailable, match=f"busy {retries}"):
        client.set_image(PICTURE)
    assert len(transport.calls) == retries + 1
    assert len(pauses) == retries
    assert all(0 <= pause <= 2.0 for pause in pauses)


def test_a_retry_that_succeeds(transport: FakeTransport, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    transport.failures = [Unavailable("busy"), Unavailable("busy")]
    masks, _ = client.predict([[5, 6]], [1])
    assert float(masks[0, 0, 0, 0]) == 5.0
    assert transport.kinds == ["encode", "click", "click", "click"]
    assert len(pauses) == 2


def test_each_request_has_its_own_retries(transport: FakeTransport, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport, retries=1)
    client.set_image(PICTURE)
    for _ in range(3):
        transport.failures = [Unavailable("busy")]
        client.predict([[5, 6]], [1])
    assert len(pauses) == 3


@pytest.mark.parametrize("kind", [ServerUnreachable, InvalidInput, DeadlineExceeded, InternalError, Cancelled])
def test_other_errors_are_raised_at_once(
    kind: type[TritonSamError], transport: FakeTransport, pauses: list[float]
) -> None:
    transport.failures = [kind("no")]
    with pytest.raises(kind, match="no"):
        SAM2TritonClient(transport=transport).set_image(PICTURE)
    assert len(transport.calls) == 1
    assert pauses == []


# an embedding that has expired


def test_an_expired_image_is_sent_again_once(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    transport.images.clear()
    masks, _ = with_image.predict([[5, 6]], [1])
    assert float(masks[0, 0, 0, 0]) == 5.0
    assert transport.kinds == ["click", "encode", "click"]
    assert transport.calls[1].inputs["image"].tobytes() == PICTURE
    assert transport.calls[0].inputs["prompt_json"][0] == transport.calls[2].inputs["prompt_json"][0]
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click", "click"]


def test_a_second_expiry_is_raised(
    with_image: SAM2TritonClient, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "images", Forgetful())
    with pytest.raises(ImageExpired):
        with_image.segment([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click"]


def test_a_newer_version_gives_the_image_another_key(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    """The key of the version before is unknown to it, and stays so."""
    transport.version = "2"
    transport.images.clear()
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click"]
    assert transport.calls[2].inputs["image_key"][0].endswith(b"-sam2-2")
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click", "click"]


def test_an_image_that_was_set_meanwhile_is_not_replaced_by_the_expired_one(
    with_image: SAM2TritonClient, transport: FakeTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ModelLink.encode

    def encode(self: ModelLink, image: ImageFile) -> str:
        monkeypatch.setattr(ModelLink, "encode", original)
        with_image.set_image(b"the next image")  # as another thread would
        return original(self, image)

    transport.images.clear()
    monkeypatch.setattr(ModelLink, "encode", encode)
    with_image.predict([[5, 6]], [1])
    with_image.predict([[5, 6]], [1])
    used = [transport.images[call.inputs["image_key"][0].decode()] for call in transport.calls[-2:]]
    assert used == [PICTURE, b"the next image"]


class Forgetful(dict[str, bytes]):
    """A cache that is too small for a single image."""

    def __setitem__(self, key: str, value: bytes) -> None:
        pass


# segment


def test_segment_asks_for_bits(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    answer = with_image.segment([[3, 2]], [1], [0, 0, 5, 5])
    assert transport.document == {
        "objects": [{"points": [[3.0, 2.0]], "labels": [1], "box": [0.0, 0.0, 5.0, 5.0]}],
        "multimask": False,
        "format": "bits",
    }
    assert list(transport.calls[0].outputs) == ["result_json", "masks"]
    assert np.array_equal(answer.masks.masks, drawn(1, 1))
    assert answer.scores.tolist() == [0.5]
    assert answer.timings_ms == {"decode": 1.5, "total": 2.5}


def test_segment_with_several_objects(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    answer = with_image.segment(
        objects=[{"points": [[1, 2]]}, {"box": [[0, 0, 4, 4]]}, {"points": [[[5, 5]]], "labels": [0], "box": None}],
        multimask=True,
    )
    assert transport.document["objects"] == [
        {"points": [[1.0, 2.0]], "labels": [1]},
        {"box": [0.0, 0.0, 4.0, 4.0]},
        {"points": [[5.0, 5.0]], "labels": [0]},
    ]
    assert np.array_equal(answer.masks.masks, drawn(3, 3))
    assert answer.masks.objects.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert np.array_equal(answer.masks.best, drawn(3, 3)[8])


@pytest.mark.parametrize("form", ["png", "rle"])
def test_forms_that_travel_as_json(form: str, with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    answer = with_image.segment([[3, 2]], multimask=True, format=form)
    assert list(transport.calls[0].outputs) == ["result_json"]
    assert transport.document["format"] == form
    assert np.array_equal(answer.masks.masks, drawn(1, 3))
    assert [entry["encoding"] for entry in answer.encoded] == [form] * 3


def test_polygons_stay_polygons(with_image: SAM2TritonClient) -> None:
    answer = with_image.segment([[3, 2]], format="polygon")
    assert answer.encoded == answer.result["masks"]
    assert isinstance(answer.encoded[0]["data"], list)
    with pytest.raises(InvalidInput, match="polygon"):
        _ = answer.masks


@pytest.mark.parametrize(
    "beside", [{"points": [[1, 2]]}, {"labels": [1]}, {"box": [0, 0, 1, 1]}, {"mask_input": np.zeros((256, 256))}]
)
def test_one_object_beside_a_list(
    beside: dict[str, Any], with_image: SAM2TritonClient, transport: FakeTransport
) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        with_image.segment(**beside, objects=[{"points": [[1, 2]]}])
    assert transport.calls == []


def test_an_empty_list_of_objects(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        with_image.segment(objects=[])
    assert transport.calls == []


def test_the_wrong_object_is_named(with_image: SAM2TritonClient) -> None:
    with pytest.raises(InvalidInput, match="of object 1"):
        with_image.segment(objects=[{"points": [[1, 2]]}, {"box": [9, 9, 1, 1]}])
    with pytest.raises(InvalidInput, match="of object 2"):
        with_image.segment(objects=[{"points": [[1, 2]]}, {"points": [[1, 2]]}, {}])


@pytest.mark.parametrize("entry", [{"point": [[1, 2]]}, {"where": "", "points": [[1, 2]]}, [[1, 2]]])
def test_an_object_with_an_unknown_key(entry: Any, with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with pytest.raises(InvalidInput, match="object 0"):
        with_image.segment(objects=[entry])
    assert transport.calls == []


# the connection


def test_the_session_goes_with_every_request(transport: FakeTransport) -> None:
    client = SAM2TritonClient(transport=transport, session_id="tab-7")
    client.set_image(PICTURE)
    client.segment([[1, 2]])
    assert [dict(call.parameters) for call in transport.calls] == [{"session_id": "tab-7"}] * 2


def test_no_session_no_parameters(with_image: SAM2TritonClient, transport: FakeTransport) -> None:
    with_image.predict([[1, 2]])
    assert dict(transport.calls[0].parameters) == {}


def test_leaving_the_block_closes(transport: FakeTransport) -> None:
    with SAM2TritonClient(transport=transport) as client:
        assert transport.closed == 0
        assert isinstance(client, SAM2TritonClient)
    assert transport.closed == 1
    with pytest.raises(ZeroDivisionError), SAM2TritonClient(transport=transport):
        raise ZeroDivisionError
    assert transport.closed == 2


def test_is_ready_asks_for_the_model(transport: FakeTransport) -> None:
    assert SAM2TritonClient(transport=transport).is_ready()
    assert not SAM2TritonClient(model_type="sam1", transport=transport).is_ready()
    transport.ready = False
    assert not SAM2TritonClient(transport=transport).is_ready()


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Address, float, dict[str, str]]]:
    """What ``connect`` was asked for."""
    asked: list[tuple[Address, float, dict[str, str]]] = []

    def connect(address: Address, timeout: float, headers: dict[str, str]) -> FakeTransport:
        asked.append((address, timeout, headers))
        return FakeTransport()

    monkeypatch.setattr(client_module, "connect", connect)
    for name in ("TRITON_URL", "TRITON_SAM_URL"):
        monkeypatch.delenv(name, raising=False)
    get_settings.cache_clear()
    return asked


@pytest.fixture(autouse=True)
def _fresh_settings() -> Any:
    yield
    get_settings.cache_clear()


def test_triton_url_is_respected(
    connected: list[tuple[Address, float, dict[str, str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    SAM2TritonClient()
    get_settings.cache_clear()
    monkeypatch.setenv("TRITON_URL", "grpc://far.example:9001")
    SAM2TritonClient()
    SAM2TritonClient("https://near.example/sam", timeout=7, headers={"authorization": "Bearer x"})
    assert connected == [
        (Address("localhost:8000", grpc=False, tls=False), 120.0, {}),
        (Address("far.example:9001", grpc=True, tls=False), 120.0, {}),
        (Address("near.example:443/sam", grpc=False, tls=True), 7, {"authorization": "Bearer x"}),
    ]


def test_all_requests_about_an_image_name_it_to_a_proxy(transport: FakeTransport) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    client.predict([[1, 2]], [1])
    transport.images.clear()  # so the image is sent again
    client.segment([[1, 2]])
    assert [dict(call.headers) for call in transport.calls] == [{"x-image-key": sha256(PICTURE).hexdigest()}] * 5
    client.set_image(b"another")
    assert transport.calls[-1].headers == {"x-image-key": sha256(b"another").hexdigest()}


def test_the_caller_s_own_name_for_an_image_is_enough(transport: FakeTransport) -> None:
    client = SAM2TritonClient(transport=transport, headers={"X-Image-Key": "mine"})
    client.set_image(PICTURE)
    client.predict([[1, 2]], [1])
    assert [dict(call.headers) for call in transport.calls] == [{}, {}], "the transport sends the caller's headers"


@pytest.mark.parametrize("wrong", [{"timeout": 0}, {"timeout": -1.0}, {"retries": -1}, {"url": "ftp://host"}])
def test_options_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        SAM2TritonClient(**wrong)


def test_eight_threads_share_a_client(transport: FakeTransport, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    transport.failures = [Unavailable("busy") for _ in range(3)]
    together = threading.Barrier(8, timeout=20)

    def click(number: int) -> list[float]:
        together.wait()
        return [float(client.predict([[100 * number + turn, 1]], [1])[0][0, 0, 0, 0]) for turn in range(10)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(click, range(8)))
    assert answers == [[100.0 * number + turn for turn in range(10)] for number in range(8)]
    assert len(transport.calls) == 1 + 80 + 3
    assert len(pauses) == 3


def test_threads_that_change_the_image_get_whole_answers(transport: FakeTransport) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(b"a")
    together = threading.Barrier(4, timeout=20)

    def work(number: int) -> None:
        together.wait()
        for _ in range(20):
            client.set_image(b"abcd"[: number + 1])
            client.predict([[1, 2]])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    used = {call.inputs["image_key"][0].decode() for call in transport.calls if "image_key" in call.inputs}
    assert used <= set(transport.images)
    assert transport.kinds.count("encode") == 1 + 4 * 20

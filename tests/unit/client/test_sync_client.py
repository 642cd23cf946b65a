"""What the blocking client sends and returns, against a server in memory."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.unit.client.memory_server import PICTURE, MemoryServer, drawn
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.errors import (
    InvalidInput,
)

# set_image


def test_bytes_are_sent_as_they_are(client: SAM2TritonClient, transport: MemoryServer) -> None:
    key = client.set_image(PICTURE)
    (call,) = transport.calls
    assert call.model == "sam2"
    assert list(call.inputs) == ["image"]
    assert call.inputs["image"].dtype == np.uint8
    assert call.inputs["image"].shape == (len(PICTURE),)
    assert call.inputs["image"].tobytes() == PICTURE
    assert list(call.outputs) == ["image_key"]
    assert key == next(iter(transport.images))


def test_a_path_is_read(client: SAM2TritonClient, transport: MemoryServer, tmp_path: Path) -> None:
    file = tmp_path / "picture.jpg"
    file.write_bytes(PICTURE)
    assert client.set_image(file) == client.set_image(str(file))
    assert [call.inputs["image"].tobytes() for call in transport.calls] == [PICTURE, PICTURE]


@pytest.mark.parametrize("wrap", [lambda array: array, Image.fromarray])
def test_an_array_and_a_picture_travel_without_loss(
    wrap: Callable[[npt.NDArray[np.uint8]], Any], client: SAM2TritonClient, transport: MemoryServer
) -> None:
    array = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    client.set_image(wrap(array))
    with Image.open(io.BytesIO(transport.calls[0].inputs["image"].tobytes())) as sent:
        assert np.array_equal(np.asarray(sent.convert("RGB")), array)


def test_an_image_that_cannot_be_read_is_not_sent(
    client: SAM2TritonClient, transport: MemoryServer, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match="cannot read the image"):
        client.set_image(tmp_path / "missing.png")
    assert transport.calls == []


def test_a_failed_encode_keeps_the_image_before(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    transport.failures = [InvalidInput("damaged")]
    with pytest.raises(InvalidInput, match="damaged"):
        with_image.set_image(b"another")
    with_image.predict([[1, 2]], [1])
    assert transport.images[transport.calls[-1].inputs["image_key"][0].decode()] == PICTURE


def test_the_model_has_a_name(transport: MemoryServer) -> None:
    SAM2TritonClient(model_type="sam3", transport=transport).set_image(PICTURE)
    assert transport.calls[0].model == "sam3"


# predict


def test_predict_sends_the_key_and_the_prompt(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
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


def test_numpy_truth_is_json(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with_image.predict([[1, 1]], [1], multimask_output=np.bool_(True))  # type: ignore[arg-type]
    assert transport.document["multimask"] is True


@pytest.mark.parametrize("points", [[[3, 4], [5, 6]], [[[3, 4], [5, 6]]], np.array([[[3, 4], [5, 6]]], np.int64)])
@pytest.mark.parametrize("labels", [[1, 0], [[1, 0]], np.array([[1.0, 0.0]])])
def test_points_with_and_without_a_batch_axis(
    points: Any, labels: Any, with_image: SAM2TritonClient, transport: MemoryServer
) -> None:
    with_image.predict(points, labels)
    assert transport.document["objects"] == [{"points": [[3.0, 4.0], [5.0, 6.0]], "labels": [1, 0]}]


@pytest.mark.parametrize(
    "box", [[1, 2, 30, 40], [[1, 2, 30, 40]], (1.0, 2.0, 30.0, 40.0), np.array([[[1, 2, 30, 40]]])]
)
def test_a_box_with_and_without_a_batch_axis(box: Any, with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with_image.predict(box=box)
    assert transport.document["objects"] == [{"box": [1.0, 2.0, 30.0, 40.0]}]


def test_labels_may_be_left_out(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with_image.predict([[3, 4], [5, 6]])
    assert transport.document["objects"][0]["labels"] == [1, 1]


@pytest.mark.parametrize("shape", [(256, 256), (1, 256, 256), (1, 1, 256, 256)])
def test_a_mask_of_an_earlier_answer(
    shape: tuple[int, ...], with_image: SAM2TritonClient, transport: MemoryServer
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
    prompt: dict[str, Any], with_image: SAM2TritonClient, transport: MemoryServer
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
    prompt: dict[str, Any], with_image: SAM2TritonClient, transport: MemoryServer
) -> None:
    with pytest.raises(InvalidInput):
        with_image.predict(**prompt)
    assert transport.calls == []


@pytest.mark.parametrize("method", ["predict", "segment"])
def test_no_image_yet(method: str, client: SAM2TritonClient, transport: MemoryServer) -> None:
    with pytest.raises(InvalidInput, match="set_image"):
        getattr(client, method)([[1, 2]], [1])
    assert transport.calls == []


# segment


def test_segment_asks_for_bits(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
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


@pytest.mark.parametrize(
    ("clean", "sent"), [(64, {"holes": 64, "islands": 64}), ({"holes": 9}, {"holes": 9, "islands": 0})]
)
def test_segment_cleans_if_told(with_image: SAM2TritonClient, transport: MemoryServer, clean: Any, sent: Any) -> None:
    with_image.segment([[3, 2]], clean=clean)
    assert transport.document["clean"] == sent
    with_image.segment([[3, 2]], clean=0)
    assert "clean" not in transport.document
    with pytest.raises(InvalidInput, match="clean"):
        with_image.segment([[3, 2]], clean=-1)


def test_segment_with_several_objects(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
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
def test_forms_that_travel_as_json(form: str, with_image: SAM2TritonClient, transport: MemoryServer) -> None:
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
    beside: dict[str, Any], with_image: SAM2TritonClient, transport: MemoryServer
) -> None:
    with pytest.raises(InvalidInput, match="not both"):
        with_image.segment(**beside, objects=[{"points": [[1, 2]]}])
    assert transport.calls == []


def test_an_empty_list_of_objects(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        with_image.segment(objects=[])
    assert transport.calls == []


def test_the_wrong_object_is_named(with_image: SAM2TritonClient) -> None:
    with pytest.raises(InvalidInput, match="of object 1"):
        with_image.segment(objects=[{"points": [[1, 2]]}, {"box": [9, 9, 1, 1]}])
    with pytest.raises(InvalidInput, match="of object 2"):
        with_image.segment(objects=[{"points": [[1, 2]]}, {"points": [[1, 2]]}, {}])


@pytest.mark.parametrize("entry", [{"point": [[1, 2]]}, {"where": "", "points": [[1, 2]]}, [[1, 2]]])
def test_an_object_with_an_unknown_key(entry: Any, with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with pytest.raises(InvalidInput, match="object 0"):
        with_image.segment(objects=[entry])
    assert transport.calls == []

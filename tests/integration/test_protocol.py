"""The segmenter's contract as other tools see it: plain JSON over HTTP, gRPC, every format, every error."""

from __future__ import annotations

import base64
import io
import json
import urllib.error
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco

from tests.analytic import expected_mask
from tests.integration.reference import iou
from triton_sam import SAM2TritonClient
from triton_sam.core import masks
from triton_sam.errors import InvalidInput, NotFound
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
POINT = [365, 290]


def post(running: RunningServer, body: dict[str, Any], model: str = "sam2") -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(
        f"{running.urls['HTTP']}/v2/models/{model}/infer", data=json.dumps(body, allow_nan=True).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def text(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "datatype": "BYTES", "shape": [1], "data": [value]}


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    result: dict[str, Any] = json.loads(outputs["result_json"][0])
    return result


@pytest.fixture(scope="module")
def coffee(photographs: Path) -> bytes:
    return (photographs / "coffee.png").read_bytes()


@pytest.fixture(scope="module")
def image_b64(coffee: bytes) -> str:
    return base64.b64encode(coffee).decode()


@pytest.fixture(scope="module")
def image_key(server: RunningServer, image_b64: str) -> str:
    status, answer = post(server, {"inputs": [text("image_b64", image_b64)]})
    assert status == 200
    return str(result_of(answer)["image_key"])


@pytest.fixture(scope="module")
def expected(coffee: bytes) -> np.ndarray:
    """[400,600] bool, worked out from the picture."""
    with Image.open(io.BytesIO(coffee)) as picture:
        return expected_mask(picture, points=[POINT])


def test_one_plain_json_request(server: RunningServer, image_b64: str, expected: np.ndarray) -> None:
    prompt = json.dumps({"points": [POINT], "boxes": []})
    status, answer = post(server, {"inputs": [text("image_b64", image_b64), text("prompt_json", prompt)]})
    assert status == 200
    result = result_of(answer)
    assert result["model"] == "sam2:tiny"
    assert {"decode", "answer", "total"} <= set(result["timings_ms"])
    assert 0.5 < result["score"] <= 1.0
    with Image.open(io.BytesIO(base64.b64decode(result["mask"]["data"]))) as picture:
        assert (picture.mode, picture.size) == ("L", (600, 400))
        assert set(np.unique(picture)) == {0, 255}
        assert iou(np.asarray(picture) > 0, expected) == 1.0
    assert {output["name"] for output in answer["outputs"]} == {"result_json", "image_key", "scores"}


def test_a_data_url_is_base64_too(server: RunningServer, image_b64: str, image_key: str) -> None:
    status, answer = post(server, {"inputs": [text("image_b64", f"data:image/png;base64,{image_b64}")]})
    assert (status, result_of(answer)["image_key"]) == (200, image_key)


@pytest.mark.parametrize("form", ["png", "rle", "bits"])
def test_exact_formats_hold_the_same_mask(
    server: RunningServer, image_key: str, expected: np.ndarray, form: str
) -> None:
    prompt = json.dumps({"points": [POINT], "format": form})
    status, answer = post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
    mask = result_of(answer)["mask"]
    assert (status, mask["encoding"]) == (200, form)
    np.testing.assert_array_equal(masks.decode(mask), expected)
    if form == "rle":
        np.testing.assert_array_equal(coco.decode(mask["data"]).astype(bool), expected)


def test_polygon_format(server: RunningServer, image_key: str, expected: np.ndarray) -> None:
    prompt = json.dumps({"points": [POINT], "format": "polygon"})
    _, answer = post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
    rings = result_of(answer)["mask"]["data"]
    drawn = coco.decode(coco.merge(coco.frPyObjects(rings, 400, 600))).astype(bool)
    assert iou(drawn, expected) > 0.9


def test_logits_format(server: RunningServer, image_key: str) -> None:
    prompt = json.dumps({"points": [POINT], "format": "logits", "multimask": True})
    _, answer = post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
    entries = result_of(answer)["masks"]
    assert len(entries) == 3
    for entry in entries:
        assert len(base64.b64decode(entry["data"])) == 4 * 256 * 256


def test_a_png_or_rle_click_is_small_on_the_wire(server: RunningServer, image_key: str) -> None:
    for form in ("png", "rle"):
        prompt = json.dumps({"points": [POINT], "format": form})
        _, answer = post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
        assert len(json.dumps(answer)) < 100_000


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_both_protocols_give_the_same_mask(
    server: RunningServer, coffee: bytes, expected: np.ndarray, protocol: str
) -> None:
    with SAM2TritonClient(server.urls[protocol]) as client:
        assert client.is_ready()
        client.set_image(coffee)
        np.testing.assert_array_equal(client.segment([POINT], [1]).masks.masks[0], expected)
        for form in ("png", "rle"):
            np.testing.assert_array_equal(client.segment([POINT], format=form).masks.best, expected)
        assert client.segment([POINT], format="polygon").encoded[0]["data"]
        with pytest.raises(InvalidInput, match=r"point 0 \(3000, 1\)"):
            client.predict([[3000, 1]], [1])
        with pytest.raises(NotFound, match="nobody"):
            SAM2TritonClient(server.urls[protocol], "nobody").set_image(coffee)


BAD_PROMPTS = {
    "not json": ("{points", "not JSON"),
    "a list": ("[1, 2]", "JSON object"),
    "nothing": ("{}", "empty"),
    "empty lists": ('{"points": [], "boxes": []}', "empty"),
    "NaN": ('{"points": [[NaN, 1]]}', "entry 0"),
    "infinite": ('{"points": [[1, 1], [1, Infinity]]}', "entry 1"),
    "outside": ('{"points": [[10, 10], [601, 10]]}', "point 1 (601, 10) lies outside"),
    "labels": ('{"points": [[10, 10]], "labels": [1, 0]}', "one label for each point"),
    "inside out": ('{"boxes": [[100, 10, 50, 90]]}', "inverted or empty"),
    "too many": (json.dumps({"points": [[1, 1]] * 10_000}), "10,000 points"),
    "unknown key": ('{"point": [[1, 1]]}', "'point'"),
    "deep": ("[" * 100_000, "not JSON"),
}


@pytest.mark.parametrize("case", list(BAD_PROMPTS))
def test_bad_prompts_get_one_clear_sentence(server: RunningServer, image_key: str, case: str) -> None:
    prompt, sentence = BAD_PROMPTS[case]
    status, answer = post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
    assert status == 400
    assert sentence in answer["error"]
    assert "\n" not in answer["error"]


def bomb() -> bytes:
    """A small file that declares 2.5 billion pixels."""
    import struct
    import zlib

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def bad_images(coffee: bytes) -> dict[str, tuple[bytes, str]]:
    return {
        "empty": (b"", "empty"),
        "truncated": (coffee[: len(coffee) // 2], "cut short"),
        "not an image": (b"hello, this is text", "format is unknown"),
        "bomb": (bomb(), "pixels"),
        "header only": (coffee[:60], "format is unknown"),
    }


@pytest.mark.parametrize("case", ["empty", "truncated", "not an image", "bomb", "header only"])
def test_bad_images_get_one_clear_sentence(server: RunningServer, coffee: bytes, case: str) -> None:
    data, sentence = bad_images(coffee)[case]
    prompt = text("prompt_json", json.dumps({"points": [[5, 5]]}))
    status, answer = post(server, {"inputs": [text("image_b64", base64.b64encode(data).decode()), prompt]})
    assert status == 400, answer
    assert sentence in answer["error"]


@pytest.mark.parametrize(
    ("inputs", "status", "sentence"),
    [
        ([], 400, "this request has none"),
        ([text("image_b64", "***"), text("prompt_json", "{}")], 400, "empty"),
        ([text("image_b64", "***")], 400, "not base64"),
        ([text("image_key", "k" * 40), text("prompt_json", '{"points": [[1, 1]]}')], 404, "send the image again"),
        ([text("image_key", "k"), text("image_b64", "aGk=")], 400, "exactly one"),
        ([text("prompt_json", '{"points": [[1, 1]]}')], 400, "this request has none"),
    ],
)
def test_bad_requests(server: RunningServer, inputs: list[dict[str, Any]], status: int, sentence: str) -> None:
    got, answer = post(server, {"inputs": inputs})
    assert (got, sentence in answer["error"]) == (status, True), answer


def test_text_prompts_are_told_apart_from_bad_ones(server: RunningServer, image_key: str) -> None:
    body = {"inputs": [text("image_key", image_key), text("prompt_json", '{"text": "a spoon"}')]}
    status, answer = post(server, body)
    assert status == HTTPStatus.NOT_IMPLEMENTED  # Triton's word for it; the service says 422
    assert "not text" in answer["error"]


def test_bad_input_harms_nobody_else(server: RunningServer, image_key: str, expected: np.ndarray) -> None:
    for prompt, _ in BAD_PROMPTS.values():
        post(server, {"inputs": [text("image_key", image_key), text("prompt_json", prompt)]})
    body = {"inputs": [text("image_key", image_key), text("prompt_json", json.dumps({"points": [POINT]}))]}
    status, answer = post(server, body)
    assert status == 200
    np.testing.assert_array_equal(masks.decode(result_of(answer)["mask"]), expected)
    assert server.supervisor.status["restarts"] == 0


def variants(picture: Image.Image) -> dict[str, bytes]:
    """The same picture in forms that a careless server gets wrong."""

    def saved(image: Image.Image, form: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        image.save(buffer, form, **options)
        return buffer.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    grey = picture.convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    clear = picture.convert("RGBA")
    return {
        "16-bit": saved(deep, "PNG"),
        "grey": saved(grey, "PNG"),
        "cmyk": saved(picture.convert("CMYK"), "JPEG", quality=95),
        "palette": saved(picture.quantize(256), "PNG"),
        "alpha": saved(clear, "PNG"),
        "rotated": saved(picture.transpose(Image.Transpose.ROTATE_90), "JPEG", quality=95, exif=exif),
    }


@pytest.mark.parametrize("case", ["16-bit", "grey", "cmyk", "palette", "alpha", "rotated"])
def test_odd_images_mean_what_a_person_sees(
    server: RunningServer, photographs: Path, expected: np.ndarray, case: str
) -> None:
    with Image.open(photographs / "coffee.png") as opened:
        data = variants(opened.convert("RGB"))[case]
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        client.set_image(data)
        found = client.segment([POINT]).masks.masks[0]
    assert found.shape == expected.shape
    # Colours differ a little between the forms, so the spoon's edge does too; its place may not.
    assert iou(found, expected) > 0.85


def test_16_bit_equals_its_8_bit_twin(server: RunningServer, photographs: Path) -> None:
    with Image.open(photographs / "coffee.png") as opened:
        forms = variants(opened.convert("RGB"))
    found = []
    with SAM2TritonClient(server.urls["HTTP"]) as client:
        for case in ("16-bit", "grey"):
            client.set_image(forms[case])
            found.append(client.segment([POINT]).masks.masks[0])
    assert iou(*found) == 1.0


def test_embedding_out_and_in_again(server: RunningServer, coffee: bytes, expected: np.ndarray) -> None:
    import tritonclient.http as http
    from tritonclient.utils import InferenceServerException

    with http.InferenceServerClient(server.urls["HTTP"].removeprefix("http://")) as client:

        def infer(outputs: list[str], **arrays: np.ndarray) -> Any:
            inputs = []
            for name, array in arrays.items():
                kind = {"O": "BYTES", "f": "FP32", "u": "UINT8"}[array.dtype.kind]
                inputs.append(http.InferInput(name, list(array.shape), kind))
                inputs[-1].set_data_from_numpy(array)
            return client.infer("sam2", inputs, outputs=[http.InferRequestedOutput(name) for name in outputs])

        def prompt(**extra: Any) -> np.ndarray:
            return np.array([json.dumps({"points": [POINT], "format": "rle", **extra}).encode()], object)

        embedding = infer(["embedding"], image=np.frombuffer(coffee, np.uint8)).as_numpy("embedding")
        assert (embedding.shape, embedding.dtype) == ((1, 256, 64, 64), np.float32)
        known = json.loads(infer(["result_json"], embedding=embedding, prompt_json=prompt()).as_numpy("result_json")[0])
        np.testing.assert_array_equal(masks.decode(known["mask"]), expected)
        foreign = embedding + np.float32(1e-6)
        with pytest.raises(InferenceServerException, match="image_size"):
            infer(["result_json"], embedding=foreign, prompt_json=prompt())
        sized = infer(["result_json"], embedding=foreign, prompt_json=prompt(image_size=[600, 400]))
        without_detail = masks.decode(json.loads(sized.as_numpy("result_json")[0])["mask"])
        assert iou(without_detail, expected) > 0.5


def test_admin_apis_are_closed(server: RunningServer) -> None:
    for path in ("repository/index", "repository/models/sam2/unload", "systemsharedmemory/status", "logging"):
        url = f"{server.urls['HTTP']}/v2/{path}"
        data = None if path in ("systemsharedmemory/status", "logging") else b"{}"
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(url, data=data), timeout=10)
        refused.value.close()
        assert refused.value.code == 403


def test_a_large_body_with_curls_own_content_type_is_served(server: RunningServer) -> None:
    """curl labels it as a form; with a usual stack Triton would end on it, and take everybody along."""
    noise = np.random.default_rng(3).integers(0, 256, (1600, 2000, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG", compress_level=0)
    body = {"inputs": [text("image_b64", base64.b64encode(buffer.getvalue()).decode())]}
    assert len(buffer.getvalue()) > 9_000_000
    status, answer = post(server, body)
    assert (status, result_of(answer)["width"]) == (200, 2000)
    assert server.supervisor.status["restarts"] == 0


def test_too_much_for_one_request(server: RunningServer) -> None:
    noise = Image.new("L", (9000, 9000))
    buffer = io.BytesIO()
    noise.save(buffer, "PNG")
    objects = [{"points": [[5, 5]]}] * 64
    inputs = [
        text("image_b64", base64.b64encode(buffer.getvalue()).decode()),
        text("prompt_json", json.dumps({"objects": objects, "multimask": True})),
    ]
    status, answer = post(server, {"inputs": inputs})
    assert (status, "192 masks of 9000 x 9000" in answer["error"]) == (400, True)


@pytest.mark.parametrize("parameters", [{"latest_wins": "true"}, {"ping": 1}, {"cancel": True}])
def test_wrong_parameters(server: RunningServer, image_key: str, parameters: dict[str, Any]) -> None:
    inputs = [text("image_key", image_key), text("prompt_json", json.dumps({"points": [POINT]}))]
    status, answer = post(server, {"inputs": inputs, "parameters": parameters})
    assert status == 400
    assert next(iter(parameters)) in answer["error"]


def test_base64_with_line_breaks(server: RunningServer, coffee: bytes, image_key: str) -> None:
    status, answer = post(server, {"inputs": [text("image_b64", base64.encodebytes(coffee).decode())]})
    assert (status, result_of(answer)["image_key"]) == (200, image_key)

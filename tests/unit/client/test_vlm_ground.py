"""``ground``: on Triton, where the client asks two models, and through the service, which does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.client.test_vlm_client import FakeTransport as FakeStream
from tests.unit.client.test_vlm_client import piece
from tests.unit.service.helpers import HEIGHT, KEY, REGIONS, WIDTH, Fake, FakeTransport, image_file, listening
from tests.unit.service.helpers import piece as service_piece
from tests.unit.service.test_ground import answer as segmenter_answer
from triton_sam import AsyncTritonVLMClient, TritonVLMClient
from triton_sam.client import vlm_client
from triton_sam.client.service_calls import request_of
from triton_sam.client.vlm_calls import Region
from triton_sam.client.vlm_ground import GroundRequest
from triton_sam.client.wire import IMAGE_HEADER, Call, text_of, text_tensor
from triton_sam.core.masks import decode, encode
from triton_sam.errors import InternalError, InvalidInput, NotFound, QueueFull, TritonSamError, Unsupported
from triton_sam.settings import Settings

IMAGE = image_file()
CAT, DOG = Region("cat", box=(0.0, 1.0, 2.0, 3.0)), Region("dog", point=(5.0, 3.0))
Outputs = Mapping[str, Any]


class Segmenter:
    """A blocking connection to Triton: mask number n has n + 1 columns, and the last one comes first."""

    def __init__(self, *failures: TritonSamError) -> None:
        self.calls: list[Call] = []
        self.failures = list(failures)
        self.closed = 0

    def infer(self, call: Call) -> Outputs:
        self.calls.append(call)
        if self.failures:
            raise self.failures.pop(0)
        count = len(json.loads(text_of(call.inputs, "prompt_json"))["objects"])
        masks = np.array([np.broadcast_to(np.arange(WIDTH) <= index, (HEIGHT, WIDTH)) for index in range(count)])[::-1]
        entries = [{"encoding": "bits", "score": 0.5 + index / 100, "object": index} for index in range(count)][::-1]
        document = {"image_key": KEY, "width": WIDTH, "height": HEIGHT, "masks": entries}
        return {"result_json": text_tensor(json.dumps(document)), "masks": np.packbits(masks, axis=2)}

    def is_ready(self, model: str) -> bool:
        return True

    def parameters(self, model: str) -> Mapping[str, str]:
        if model != "sam2":
            raise NotFound("no such model")
        return {"model_id": "sam2:tiny"}

    def served(self) -> list[str]:
        return ["sam2"]

    def close(self) -> None:
        self.closed += 1


def said(*regions: Mapping[str, Any], text: str = "a cat.") -> list[Any]:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return [piece(text), piece("", "stop", usage_json=usage, regions_json=list(regions))]


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries."""
    monkeypatch.setattr(vlm_client, "retry_pause", lambda attempt: 0.0)
    monkeypatch.setattr("triton_sam.client.link.time.sleep", lambda seconds: None)


def ground(script: list[Any], fake: Segmenter, **options: Any) -> tuple[Any, FakeStream]:
    stream = FakeStream(script)
    asked = {"model_name": "kosmos2", "image": IMAGE, "question": "where is the cat?", **options}
    with TritonVLMClient(transport=stream, blocking_transport=fake, retries=2) as client:
        return client.ground(**asked), stream


def check(found: Any) -> None:
    assert found.text == "a cat."
    assert found.regions == (CAT, DOG)
    assert found.labels == ["cat", "dog"]
    assert (found.found, found.image_key) == (2, KEY)
    assert found.masks.shape == (2, HEIGHT, WIDTH)
    assert found.masks.sum(axis=(1, 2)).tolist() == [HEIGHT, 2 * HEIGHT], "each region has its own mask"
    np.testing.assert_allclose(found.scores, [0.5, 0.51])


# -- on Triton ---------------------------------------------------------------------------------------------------


def test_two_models_are_asked() -> None:
    segmenter = Segmenter()
    found, stream = ground(said(*REGIONS), segmenter, clean=3)
    check(found)
    (question,), (click,) = stream.calls, segmenter.calls
    assert (question.model, click.model) == ("kosmos2_stream", "sam2")
    assert text_of(question.inputs, "prompt") == "where is the cat?"
    assert text_of(question.inputs, "task") == "ground"
    assert bytes(question.inputs["image"]) == bytes(click.inputs["image"]) == IMAGE
    assert json.loads(text_of(click.inputs, "prompt_json")) == {
        "objects": [{"box": [0.0, 1.0, 2.0, 3.0]}, {"points": [[5.0, 3.0]], "labels": [1]}],
        "multimask": False,
        "format": "bits",
        "clean": {"holes": 3, "islands": 3},
    }
    assert segmenter.closed == 1


def test_the_same_with_asyncio() -> None:
    async def run() -> list[Any]:
        stream = FakeStream(said(*REGIONS))
        async with AsyncTritonVLMClient(transport=stream, blocking_transport=Segmenter()) as client:
            return await asyncio.gather(*(client.ground("kosmos2", IMAGE, "the cat", task="detect") for _ in range(3)))

    for found in asyncio.run(run()):
        check(found)


def test_the_segmenter_may_be_a_catalogue_id_and_busy() -> None:
    segmenter = Segmenter(QueueFull("later"))
    check(ground(said(*REGIONS), segmenter, segmenter="sam2:tiny")[0])
    assert [call.model for call in segmenter.calls] == ["sam2", "sam2"]
    with pytest.raises(NotFound, match="does not serve sam3:full, but sam2: choose one of these"):
        ground(said(*REGIONS), Segmenter(), segmenter="sam3:full")


def test_without_a_region_the_segmenter_is_not_asked() -> None:
    segmenter = Segmenter()
    found, _ = ground(said(text="Nothing."), segmenter)
    assert (found.text, found.regions, found.found, found.image_key) == ("Nothing.", (), 0, None)
    assert found.masks.shape == (0, HEIGHT, WIDTH)
    assert found.as_dict()["regions"] == []
    assert segmenter.calls == []


def test_no_more_regions_than_wanted() -> None:
    found, _ = ground(said(*REGIONS), Segmenter(), max_regions=1)
    assert (found.regions, found.found, len(found.masks)) == ((CAT,), 2, 1)
    many = [{"label": str(number), "point": [number % 6, 1]} for number in range(70)]
    found, _ = ground(said(*many), Segmenter())
    assert (len(found.regions), found.found) == (64, 70)


def test_no_more_regions_than_the_segmenter_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triton_sam.client.vlm_ground.get_settings", lambda: Settings(max_answer_pixels=50))
    many = [{"label": str(number), "point": [number % 6, 1]} for number in range(9)]
    for options in ({}, {"max_regions": 8}):
        found, _ = ground(said(*many), Segmenter(), **options)
        assert (len(found.regions), len(found.masks), found.found) == (2, 2, 9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"question": " "}, "there is nothing to look for"),
        ({"question": None}, "there is nothing to look for"),
        ({"task": "answer"}, "task must be one of detect, point, ground, not 'answer'"),
        ({"task": ["ground"]}, "task must be one of detect, point, ground"),
        ({"max_regions": 0}, "max_regions must be at least 1"),
        ({"clean": -2}, "clean"),
        ({"image": "there/is/none.png"}, "cannot read the image"),
    ],
)
def test_refusals_before_anything_is_sent(options: dict[str, Any], words: str) -> None:
    stream = FakeStream(said())
    asked = {"model_name": "kosmos2", "image": IMAGE, "question": "where is the cat?", **options}
    client = TritonVLMClient(transport=stream, blocking_transport=Segmenter())
    with client, pytest.raises(InvalidInput, match=words):
        client.ground(**asked)
    assert stream.calls == []


@pytest.mark.parametrize("error", [Unsupported("llava gives no places"), InternalError("oh")])
def test_errors_of_both_models_arrive(error: TritonSamError) -> None:
    with pytest.raises(type(error), match=str(error)):
        ground([error], Segmenter())
    with pytest.raises(type(error), match=str(error)):
        ground(said(*REGIONS), Segmenter(error))


def test_closing_the_client_ends_a_search() -> None:
    begun, never = threading.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await never.wait()

    client = TritonVLMClient(transport=FakeStream([wait]), blocking_transport=Segmenter())
    closer = threading.Thread(target=lambda: (begun.wait(20), client.close()))
    closer.start()
    with pytest.raises(InvalidInput, match="the client was closed"):
        client.ground("kosmos2", IMAGE, "the cat")
    closer.join()
    with pytest.raises(InvalidInput, match="the client is closed"):
        client.ground("kosmos2", IMAGE, "the cat")


# -- through the service -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[Fake, str]]:
    fake = Fake(FakeTransport(segmenter_answer))
    with listening(fake) as port:
        yield fake, f"http://127.0.0.1:{port}"


def test_the_service_asks_both(service: tuple[Fake, str]) -> None:
    fake, url = service
    options = {"task": "detect", "segmenter": "sam2.1:large", "max_regions": 5, "clean": {"holes": 2, "islands": 0}}
    with TritonVLMClient(url) as client:
        check(client.ground("vlm:finder", IMAGE, "cat", **options))
    assert text_of(fake.transport.streams[-1].inputs, "task") == "detect"
    assert fake.transport.calls[-1].model == "sam2.1_large"
    assert fake.transport.prompt()["clean"] == {"holes": 2, "islands": 0}


def test_the_service_with_asyncio_and_without_regions(service: tuple[Fake, str]) -> None:
    fake, url = service
    pieces = fake.transport.pieces
    fake.transport.pieces = lambda call: [service_piece("Nothing.", "stop", regions_json=[])]

    async def run() -> Any:
        async with AsyncTritonVLMClient(url) as client:
            return await client.ground("finder", IMAGE, "where is the dog?")

    try:
        found = asyncio.run(run())
    finally:
        fake.transport.pieces = pieces
    assert (found.text, found.regions, found.image_key) == ("Nothing.", (), None)
    assert found.masks.shape == (0, HEIGHT, WIDTH)


def test_a_proxy_is_told_which_image_it_is() -> None:
    request = GroundRequest.of("finder", IMAGE, "cat", "ground", None, None, None)
    headers = [request_of(request.to_service(given)).headers for given in ({}, {"X-Image-Key": "mine"})]
    assert [sent.get(IMAGE_HEADER) for sent in headers] == [hashlib.sha256(IMAGE).hexdigest(), None]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"model_name": "talker"}, Unsupported, "talker answers in words"),
        ({"model_name": "flamingo"}, NotFound, "flamingo"),
        ({"segmenter": "sam9"}, NotFound, "there is no model 'sam9'"),
        ({"max_regions": 99}, InvalidInput, "max_regions"),
    ],
)
def test_the_services_refusals(
    service: tuple[Fake, str], options: dict[str, Any], error: type[TritonSamError], words: str
) -> None:
    with TritonVLMClient(service[1]) as client, pytest.raises(error, match=words):
        client.ground(**{"model_name": "finder", "image": IMAGE, "question": "cat", **options})


# -- what is made of it ------------------------------------------------------------------------------------------


def test_the_result_as_json() -> None:
    found, _ = ground(said(*REGIONS), Segmenter())
    document = json.loads(json.dumps(found.as_dict()))
    assert [{name: region[name] for name in REGIONS[at]} for at, region in enumerate(document["regions"])] == REGIONS
    for region, mask in zip(document["regions"], found.masks, strict=True):
        assert (decode(encode(mask, "rle") | {"data": region["rle"]}) == mask).all()


def test_an_overlay_has_labels() -> None:
    masks = np.zeros((2, 120, 200), np.bool_)
    masks[0, 40:80, 30:90] = True
    masks[1, 10:110, 150:190] = True
    regions = (Region("a red cup", box=(30, 40, 90, 80)), Region("é" * 90, point=(170, 60)))
    grounded = vlm_client.Grounded("", regions, masks, np.ones(2, np.float32), 2, None)
    picture = Image.new("RGB", (200, 120), "white")
    drawn = np.asarray(grounded.overlay(picture)).astype(int)
    plain = np.asarray(vlm_client.Grounded("", (), masks[:0], np.zeros(0, np.float32), 0, None).overlay(picture))
    assert (plain == 255).all()
    assert drawn.shape == (120, 200, 3)
    above = drawn[25:39, 30:80]
    assert (above.min(axis=2) < 250).any(), "the label is above its box"
    assert (drawn[100:, :20] == 255).all(), "and nothing is drawn elsewhere"

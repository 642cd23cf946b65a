"""One image on one server, in memory: requests, and records equal to pycocotools'."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pycocotools import mask as coco

from tests.unit.batch import fake_transport as fake
from tests.unit.batch.fake_transport import BOX, HEIGHT, WIDTH, FakeServer
from triton_sam.batch.executors.segmenting import ModelServer, check_options, image_file, segment
from triton_sam.batch.records import ItemPrompt, ItemResult, SegmentOptions, Work
from triton_sam.client.wire import text_of
from triton_sam.core.rle import area_and_bbox, from_rle, rle
from triton_sam.errors import InternalError, InvalidInput, NotFound, ServerUnreachable, Unavailable
from triton_sam.settings import get_settings


def asked(
    server: FakeServer,
    work: Work,
    options: SegmentOptions | None = None,
    told: list[Any] | None = None,
    model: str = "sam2",
) -> ItemResult:
    data = fake.image_of(work.item.name)
    link = ModelServer("localhost:1", model, transport=server)
    options = options or SegmentOptions(model)
    on_timings = None if told is None else told.append
    return segment(work, image_file(data), options, link, size=fake.size_of(data), on_timings=on_timings)


def documents(server: FakeServer) -> list[dict[str, Any]]:
    return [json.loads(text_of(call.inputs, "prompt_json")) for call in server.calls]


@given(arrays(np.bool_, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_area_and_box_are_those_of_pycocotools(mask: Any) -> None:
    document = rle(mask)
    area, bbox = area_and_bbox(document)
    assert area == coco.area(document) == mask.sum()
    assert bbox == tuple(coco.toBbox(document))


def test_image_and_prompts_travel_in_one_request_that_is_marked() -> None:
    server, told = FakeServer(), []
    point = ItemPrompt(points=((3.0, 4.0),), labels=(1,))
    result = asked(server, fake.work(0, BOX, point), told=told)
    (call,) = server.calls
    assert set(call.inputs) == {"image", "prompt_json"}
    assert call.parameters["background"] is True
    assert len(call.headers["x-image-key"]) == 64
    assert documents(server)[0]["objects"] == [
        {"box": [2.0, 1.0, 9.0, 5.0]},
        {"points": [[3.0, 4.0]], "labels": [1]},
    ]
    assert documents(server)[0]["format"] == "rle"
    first, second = result.masks
    assert (result.width, result.height, result.model) == (WIDTH, HEIGHT, "sam2:tiny")
    assert (first.area, first.bbox, first.score) == (28, (2.0, 1.0, 7.0, 4.0), 0.5)
    assert (first.annotation_id, first.category_id) == (7, 3)
    assert np.array_equal(from_rle(first.segmentation), fake.box_mask([2, 1, 9, 5], WIDTH, HEIGHT))
    assert (second.annotation_id, second.area) == (None, 12)
    assert told == [{"queue_encode": 1.0, "encode": 1.0, "queue": 0.5}]


@pytest.mark.parametrize("remembers", [True, False])
def test_many_prompts_go_in_several_requests_and_keep_their_order(remembers: bool) -> None:
    server = FakeServer(remembers=remembers)
    prompts = [ItemPrompt(box=(0.0, 0.0, 1.0 + n % 12, 1.0), annotation_id=n) for n in range(150)]
    result = asked(server, fake.work(0, *prompts))
    assert [mask.annotation_id for mask in result.masks] == list(range(150))
    assert [mask.area for mask in result.masks] == [1 + n % 12 for n in range(150)]
    kinds = ["image" if "image" in call.inputs else "key" for call in server.calls]
    assert kinds == (["image", "key", "key"] if remembers else ["image", "key", "image", "key", "image"])


def test_large_images_have_fewer_prompts_in_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_settings(), "max_answer_pixels", 2 * WIDTH * HEIGHT)
    server = FakeServer()
    asked(server, fake.work(0, *[BOX] * 5))
    assert [len(document["objects"]) for document in documents(server)] == [2, 2, 1]


def test_boxes_are_clipped_to_the_image() -> None:
    server = FakeServer()
    asked(server, fake.work(0, ItemPrompt(box=(-0.5, 2.0, 12.4, 7.5))))
    assert documents(server)[0]["objects"] == [{"box": [0.0, 2.0, 12.0, 7.0]}]


def test_a_box_outside_the_image_is_refused_with_its_number() -> None:
    server = FakeServer()
    with pytest.raises(InvalidInput, match="of the objects from 64 on: the box of object 2"):
        asked(server, fake.work(0, *[BOX] * 66, ItemPrompt(box=(20.0, 0.0, 30.0, 5.0))))


def test_everything_gives_records() -> None:
    server = FakeServer()
    options = SegmentOptions(everything={"points_per_side": 8})
    result = asked(server, Work(fake.work(0).item), options)
    assert documents(server) == [{"everything": {"points_per_side": 8}, "format": "rle"}]
    assert set(server.calls[0].inputs) == {"image", "prompt_json"}
    (mask,) = result.masks
    assert (mask.area, mask.bbox, mask.score) == (15, (1.0, 1.0, 3.0, 5.0), 0.9)
    assert mask.extra == {
        "stability_score": 0.95,
        "point_coords": [[2.0, 2.0]],
        "crop_box": [0, 0, WIDTH, HEIGHT],
    }


def test_without_prompts_nothing_is_asked() -> None:
    server = FakeServer()
    result = asked(server, Work(fake.work(0).item))
    assert (result.width, result.height, list(result.masks), result.seconds) == (WIDTH, HEIGHT, [], 0.0)
    assert server.calls == []


def test_holes_are_cleaned_if_wanted() -> None:
    server = FakeServer()
    asked(server, fake.work(0), SegmentOptions(clean=64))
    assert documents(server)[0]["clean"] == {"holes": 64, "islands": 64}


def test_a_catalogue_id_is_looked_up_and_checked() -> None:
    server = FakeServer()
    assert asked(server, fake.work(0), model="sam2:tiny").model == "sam2:tiny"
    assert server.calls[0].model == "sam2"
    with pytest.raises(NotFound):
        asked(server, fake.work(0), model="sam2:large")


def test_an_answer_that_cannot_be_read_is_an_error_of_the_server() -> None:
    server = FakeServer()
    server.models["sam2"] = "sam2:tiny"
    link = ModelServer("localhost:1", "sam2", transport=server)
    link.ask = lambda inputs, headers: {"masks": [{"object": 0}]}  # type: ignore[method-assign]
    work = fake.work(0)
    with pytest.raises(InternalError, match="cannot be read"):
        segment(work, image_file(fake.image_of("a")), SegmentOptions(), link, size=(WIDTH, HEIGHT))


@pytest.mark.parametrize(("wanted", "told"), [("sam3:tracker", "sam3:full"), ("sam3:full", "sam3:tracker")])
def test_an_old_id_and_its_new_one_are_one_model(wanted: str, told: str) -> None:
    """Whichever of the job and the server is the older."""
    server = FakeServer()
    server.models = {"sam3": told}
    assert asked(server, fake.work(0), model=wanted).model == told


def test_a_check_says_why_a_server_cannot_serve() -> None:
    server = FakeServer()
    link = ModelServer("localhost:1", "sam2", transport=server)
    link.check()
    server.is_down = True
    with pytest.raises(ServerUnreachable):
        link.check()
    server.is_down, server.models = False, {}
    with pytest.raises(NotFound):
        link.check()
    server.models = {"sam2": "sam2:tiny"}
    server.is_ready = lambda model: False  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="not ready"):
        link.check()


@pytest.mark.parametrize(
    "options",
    [SegmentOptions(everything={"points": 3}), SegmentOptions(everything={}, clean=3), SegmentOptions(clean=-1)],
)
def test_bad_options_are_refused_before_anything_is_read(options: SegmentOptions) -> None:
    with pytest.raises(InvalidInput):
        check_options(options)

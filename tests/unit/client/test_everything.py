"""``client.everything``: the same records and progress with both clients, straight and through the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit import everything_messages as everything
from tests.unit.client.memory_server import MemoryServer, Outputs
from tests.unit.service.helpers import TIMEOUT, Fake, FakeTransport, image_file, listening
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client.everything import EverythingProgress
from triton_sam.client.wire import Call
from triton_sam.core.rle import from_rle
from triton_sam.errors import (
    Cancelled,
    ImageExpired,
    InternalError,
    InvalidInput,
    ServerUnreachable,
    Unavailable,
)

PICTURE = image_file(everything.WIDTH, everything.HEIGHT)
#: Of every record of segment-anything's SamAutomaticMaskGenerator.
PUBLISHED = {"segmentation", "area", "bbox", "predicted_iou", "point_coords", "stability_score", "crop_box"}
WAYS = ["straight", "service"]


class Server(MemoryServer):
    """Finds everything, too."""

    def infer(self, call: Call) -> Outputs:
        if "prompt_json" not in call.inputs or "everything" not in everything.prompt_of(call):
            return super().infer(call)
        self.calls.append(call)
        if "image_key" in call.inputs and call.inputs["image_key"][0].decode() not in self.images:
            raise ImageExpired("it is gone")
        return everything.answer(call)


class Setup:
    """A server in memory, and how clients reach it."""

    def __init__(self, server: Server, fake: Fake, url: str | None) -> None:
        self.server, self.transport, self.url = server, fake.transport, url

    @property
    def options(self) -> dict[str, Any]:
        return {"transport": self.server, "async_transport": self.transport} if self.url is None else {"url": self.url}

    def client(self, **options: Any) -> SAM2TritonClient:
        return SAM2TritonClient(**self.options, retries=0, **options)

    def asyncio_client(self) -> SpeculativeSAM2Client:
        return SpeculativeSAM2Client(**self.options, retries=0)

    @property
    def asked(self) -> list[Call]:
        """Requests for everything that have reached the model: plain ones, then streams."""
        prompts = [call for call in self.server.calls if "prompt_json" in call.inputs]
        return prompts + self.transport.streams


@pytest.fixture(params=WAYS)
def setup(request: pytest.FixtureRequest) -> Iterator[Setup]:
    server = Server()
    fake = Fake(FakeTransport(server.infer))
    if request.param == "straight":
        yield Setup(server, fake, None)
        fake.transport.release()
        return
    with listening(fake) as port:
        yield Setup(server, fake, f"http://127.0.0.1:{port}")


Find = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def find(request: pytest.FixtureRequest, setup: Setup) -> Find:
    """``everything`` of a new client, after its set_image."""

    def blocking(*images: Any, **options: Any) -> Any:
        with setup.client() as client:
            client.set_image(PICTURE)
            return client.everything(*images, **options)

    async def run(*images: Any, **options: Any) -> Any:
        async with setup.asyncio_client() as client:
            client.set_image(PICTURE)
            await client.image_ready()
            return await client.everything_async(*images, **options)

    return blocking if request.param == "blocking" else lambda *images, **options: asyncio.run(run(*images, **options))


# records


def test_records_are_those_of_the_published_generator(find: Find) -> None:
    found = find()
    assert len(found) == len(everything.MASKS)
    for record, expected, mask in zip(found, everything.plain()["masks"], everything.MASKS, strict=True):
        assert set(record) == PUBLISHED
        assert record["segmentation"].dtype == np.bool_
        assert np.array_equal(record["segmentation"], mask)
        for key in PUBLISHED - {"segmentation"}:
            assert record[key] == expected[key], key
    # as segment-anything's notebook does before it draws them
    assert sorted(found, key=lambda record: record["area"], reverse=True) == found


@pytest.mark.parametrize("mode", ["coco_rle", "uncompressed_rle"])
def test_run_lengths(mode: str, find: Find) -> None:
    for record, mask in zip(find(output_mode=mode), everything.MASKS, strict=True):
        form = record["segmentation"]
        assert form["size"] == [everything.HEIGHT, everything.WIDTH]
        assert isinstance(form["counts"], str if mode == "coco_rle" else list)
        assert np.array_equal(from_rle(form), mask)


def test_with_progress_it_is_the_same(find: Find) -> None:
    seen: list[EverythingProgress] = []
    without, with_ = find(output_mode="coco_rle"), find(output_mode="coco_rle", on_progress=seen.append)
    assert with_ == without
    assert [(step.done, step.of, step.masks) for step in seen] == [
        (0, everything.POINTS, 0),
        (512, everything.POINTS, 3),
        (everything.POINTS, everything.POINTS, 3),
    ]
    assert [[record["id"] for record in step.found] for step in seen] == [[], [0, 7, 1], [2]]
    assert [list(step.gone) for step in seen] == [[], [], [7]]


# what is sent


def test_which_model_is_asked(setup: Setup, find: Find) -> None:
    find()
    find(on_progress=lambda step: None)
    models = [call.model for call in setup.asked]
    # The service itself always follows the stream: its time limit counts from the last progress.
    assert models == ["sam2"] * 2
    for call in setup.asked:
        assert set(call.inputs) == {"image_key", "prompt_json"}
        assert list(call.outputs) == ["result_json"]


def test_options_are_sent_as_given(setup: Setup, find: Find) -> None:
    given = {
        "points_per_side": np.int64(16),
        "region": np.array([0, 0, 3, 2]),
        "pred_iou_thresh": None,
        "use_m2m": True,
    }
    find(**given)
    sent = everything.prompt_of(setup.asked[0])
    assert sent == {
        "everything": {"points_per_side": 16, "region": [0, 0, 3, 2], "pred_iou_thresh": None, "use_m2m": True},
        "format": "rle",
    }


def test_crops_need_the_pixels(setup: Setup, find: Find) -> None:
    find(crop_n_layers=1)
    [call] = setup.asked
    assert set(call.inputs) == {"image", "prompt_json"}
    assert call.inputs["image"].tobytes() == PICTURE


@pytest.mark.parametrize("progress", [False, True])
def test_another_image_becomes_the_current_one(progress: bool, setup: Setup, find: Find) -> None:
    other = image_file(30, 20)
    find(other, **({"on_progress": lambda step: None} if progress else {}))
    assert len(setup.server.images) == 2
    assert setup.asked[0].inputs["image_key"][0].decode() == list(setup.server.images)[1]


def test_the_session_is_the_clients(setup: Setup) -> None:
    with setup.client(session_id="tab 7") as client:
        client.everything(PICTURE, on_progress=lambda step: None)
    name = str(setup.asked[0].parameters["session_id"])
    assert name == "tab 7" if setup.url is None else name.endswith("user/tab 7")


def test_by_key(setup: Setup) -> None:
    with setup.client() as first, setup.client() as second:
        key = first.set_image(PICTURE)
        assert len(second.everything(image_key=key)) == 3
        assert len(second.everything(image_key=key, on_progress=lambda step: None)) == 3
        with pytest.raises(InvalidInput, match="not both"):
            second.everything(PICTURE, image_key=key)
        with pytest.raises(InvalidInput, match="no image yet"):
            second.everything()

    async def run() -> None:
        async with setup.asyncio_client() as client:
            assert len(await client.everything_async(image_key=key) or ()) == 3

    asyncio.run(run())


def test_an_unknown_key_has_no_image_to_send_again(setup: Setup) -> None:
    if setup.url is not None:
        setup.transport.pieces = lambda call: [ImageExpired("it is gone")]
    with setup.client() as client, pytest.raises(ImageExpired):
        client.everything(image_key="unknown")


def test_an_expired_image_is_encoded_again(setup: Setup, find: Find) -> None:
    expired = [True]

    def pieces(call: Call) -> Iterator[Outputs | Exception]:
        if expired.pop() if expired else False:
            yield ImageExpired("it is gone")
        yield from everything.stream(call)

    setup.transport.pieces = pieces
    assert len(find(on_progress=lambda step: None)) == 3
    assert setup.server.kinds == ["encode", "encode"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"points_per_side": 0}, "points_per_side of everything is a whole number from 1"),
        ({"point_per_side": 8}, "did you mean points_per_side"),
        ({"box_nms_thresh": float("nan")}, "box_nms_thresh of everything is a number"),
        ({"output_mode": "png"}, "output_mode is one of binary_mask, uncompressed_rle, coco_rle, not"),
    ],
)
def test_bad_options_are_refused_before_anything_is_sent(
    options: dict[str, Any], words: str, setup: Setup, find: Find
) -> None:
    with pytest.raises(InvalidInput, match=words):
        find(**options)
    assert setup.asked == []


# errors and cancels


@pytest.mark.parametrize("error", [InvalidInput("a region outside"), InternalError("oh")])
def test_errors_in_the_stream(error: Exception, setup: Setup, find: Find) -> None:
    setup.transport.pieces = lambda call: [everything.outputs(everything.progress(1, 0)), error]
    with pytest.raises(type(error)):
        find(on_progress=lambda step: None)


@pytest.mark.parametrize("sent", [[], [everything.progress(5, 1)]], ids=["nothing", "no final message"])
def test_a_stream_that_ends_too_soon(sent: list[Any], find: Find, setup: Setup) -> None:
    setup.transport.pieces = lambda call: map(everything.outputs, sent)
    with pytest.raises((ServerUnreachable, InternalError, Unavailable)):
        find(on_progress=lambda step: None)


def stopped(setup: Setup) -> None:
    """The server was told to stop the run."""
    setup.transport.wait_for(lambda it: it.cancels and it.left)
    cancel, call = setup.transport.cancels[-1], setup.transport.streams[-1]
    assert cancel.model == "sam2"
    assert cancel.parameters["session_id"] == call.parameters["session_id"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_leaving_early_stops_the_server(error: type[BaseException], setup: Setup) -> None:
    setup.transport.hold_before = 2
    with setup.client() as client:
        client.set_image(PICTURE)

        def on_progress(step: EverythingProgress) -> None:
            if step.done:
                raise error

        with pytest.raises(error):
            client.everything(on_progress=on_progress)
        stopped(setup)
        setup.transport.release()
        assert len(client.everything()) == 3  # the client still works


@pytest.mark.parametrize("how", ["raises", "cancel"])
def test_leaving_early_on_asyncio(how: str, setup: Setup) -> None:
    setup.transport.hold_before = 2

    async def run() -> None:
        reached = asyncio.Event()

        def on_progress(step: EverythingProgress) -> None:
            assert asyncio.get_running_loop() is loop  # the caller's
            if step.done:
                reached.set()
                if how == "raises":
                    raise ZeroDivisionError

        loop = asyncio.get_running_loop()
        async with setup.asyncio_client() as client:
            task = asyncio.create_task(client.everything_async(PICTURE, on_progress=on_progress))
            await asyncio.wait_for(reached.wait(), TIMEOUT)
            if how == "cancel":
                task.cancel()
            with pytest.raises(asyncio.CancelledError if how == "cancel" else ZeroDivisionError):
                await task
            await asyncio.to_thread(stopped, setup)

    asyncio.run(run())


def test_a_cancelled_session_gives_none(setup: Setup) -> None:
    setup.transport.hold_before = 1

    async def run() -> Any:
        async with setup.asyncio_client() as client:
            task = asyncio.create_task(client.everything_async(PICTURE, "mine", on_progress=lambda step: None))
            await asyncio.to_thread(setup.transport.wait_for, lambda it: it.held)
            assert client.cancel_session_requests("mine", keep_latest=False) == 1
            return await task

    assert asyncio.run(run()) is None
    stopped(setup)


def test_a_run_that_the_server_cancels_gives_none(setup: Setup) -> None:
    setup.transport.pieces = lambda call: [Cancelled("a newer request of the session has come")]

    async def run() -> Any:
        async with setup.asyncio_client() as client:
            return await client.everything_async(PICTURE, on_progress=lambda step: None)

    assert asyncio.run(run()) is None


# on the wire


def test_large_events_through_the_service() -> None:
    fake = Fake()
    final = {"final": True, **everything.plain()}
    final["masks"] = [everything.record(everything.MASKS[0], number) for number in range(20_000)]
    fake.transport.pieces = lambda call: map(everything.outputs, [everything.progress(1, 0), final])
    with listening(fake) as port, SAM2TritonClient(f"http://127.0.0.1:{port}") as client:
        found = client.everything(image_key="a" * 64, output_mode="coco_rle", on_progress=lambda step: None)
    assert len(found) == 20_000

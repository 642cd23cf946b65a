"""Everything in an image on the real server: the same masks by every way, progress, cancelling, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import ServerFactory
from tests.server_readings import counters_so_far
from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.client import wire
from triton_sam.client.transport import connect
from triton_sam.core.rle import from_rle
from triton_sam.errors import InvalidInput
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
#: The analytic model's masks have soft borders.
OPTIONS: dict[str, Any] = {"points_per_side": 6, "stability_score_thresh": 0.5, "pred_iou_thresh": 0.0}
TIMEOUT = 120.0


@pytest.fixture(scope="module", params=[1, 3], ids=["one process", "workers"])
def running(request: pytest.FixtureRequest, start_server: ServerFactory) -> Iterator[RunningServer]:
    """One process that does everything; or three before two workers, each told that it is a device of its own."""
    arrangement = {} if request.param == 1 else {"processes": "3", "devices": "cpu,cpu", "threads": "1"}
    with start_server(**arrangement) as started:
        yield started


@pytest.fixture(scope="module")
def picture(photographs: Path) -> bytes:
    return (photographs / "coins.png").read_bytes()


def cancelled(running: RunningServer) -> float:
    return counters_so_far(running, "sam2").get("cancelled_total", 0)


def numbers(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name not in ("id", "segmentation")} for record in records]


def test_every_way_finds_the_same(running: RunningServer, picture: bytes) -> None:
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        found = client.everything(picture, **OPTIONS)
    assert len(found) >= 2
    for record in found:
        assert record["segmentation"].sum() == record["area"]
        assert record["segmentation"].shape == (303, 384)
    steps: list[Any] = []
    with SAM2TritonClient(running.urls["gRPC"]) as client:
        again = client.everything(picture, **OPTIONS, on_progress=steps.append)
    assert numbers(again) == numbers(found)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert (steps[-1].done, steps[-1].of) == (36, 36)
    with SAM2TritonClient(running.urls["service"]) as client:
        assert numbers(client.everything(picture, **OPTIONS, on_progress=lambda step: None)) == numbers(found)


def test_a_key_and_crops(running: RunningServer, picture: bytes) -> None:
    cropped = OPTIONS | {"crop_n_layers": 1, "points_per_side": 3}
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        key = client.set_image(picture)
        assert len(client.everything(image_key=key, **OPTIONS)) >= 2
        assert len({tuple(record["crop_box"]) for record in client.everything(picture, **cropped)}) > 1
    with (  # another client does not have the image
        SAM2TritonClient(running.urls["HTTP"]) as client,
        pytest.raises(InvalidInput, match="crop_n_layers needs the pixels"),
    ):
        client.everything(image_key=key, **cropped)


def test_who_leaves_stops_the_search(running: RunningServer, picture: bytes) -> None:
    """At the next chunk; a search of 4,096 points would go on for long."""

    async def leave() -> None:
        began = asyncio.Event()
        async with SpeculativeSAM2Client(running.urls["gRPC"]) as client:
            search = client.everything_async(picture, points_per_side=64, on_progress=lambda step: began.set())
            task = asyncio.create_task(search)
            await asyncio.wait_for(began.wait(), TIMEOUT)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    before = cancelled(running)
    asyncio.run(leave())
    eventually(lambda: cancelled(running) > before, "the end of the search")
    with SAM2TritonClient(running.urls["HTTP"]) as client:  # and the next one has the model for itself
        assert len(client.everything(picture, **OPTIONS)) >= 2


def test_events_and_refusals_of_the_service(running: RunningServer, picture: bytes) -> None:
    with httpx.Client(base_url=running.urls["service"], timeout=TIMEOUT, trust_env=False) as service:
        key = service.post("/v1/images", files={"image": picture}).json()["image_key"]
        asked = {"image_key": key, "everything": OPTIONS, "format": "rle"}
        events = []
        with service.stream("POST", "/v1/everything", json=asked, headers={"Accept": "text/event-stream"}) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line.removeprefix("data: ")))
        *progress, final = events
        assert final["final"] is True
        assert progress
        plain = service.post("/v1/everything", json=asked).json()
        assert plain["masks"] == final["masks"]
        assert from_rle(plain["masks"][0]["segmentation"]).sum() == plain["masks"][0]["area"]
        refused = service.post("/v1/everything", json=asked | {"everything": {"points_per_side": 10_000}})
        assert refused.status_code == 400
        assert "points_per_side" in refused.json()["error"]["message"]
    call = wire.Call("sam2", wire.click_inputs(key, {"everything": OPTIONS}), ("masks",), {})
    transport = connect(wire.Address.parse(running.urls["HTTP"]), TIMEOUT, {})
    with pytest.raises(InvalidInput, match="everything has no masks"):
        transport.infer(call)
    transport.close()

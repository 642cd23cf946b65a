"""The service in front of the real Triton: the same masks as by the straight way, and the loads its users have."""

from __future__ import annotations

import asyncio
import base64
import gzip
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import websockets
from PIL import Image

from testkit.slow_senders import slow_senders
from tests.analytic import assert_mask, expected_mask, slow_picture
from tests.server_readings import counters
from tests.waiting import eventually
from triton_sam.core.masks import decode
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
SPOON = (365, 290)
WORKERS, REQUESTS = 3, 4


@pytest.fixture(scope="module")
def running(server: RunningServer) -> RunningServer:
    return server


@pytest.fixture(scope="module")
def service(running: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.urls["service"], timeout=120, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def photograph(photographs: Path) -> bytes:
    return (photographs / "coffee.png").read_bytes()


@pytest.fixture(scope="module")
def picture(photograph: bytes) -> Image.Image:
    with Image.open(io.BytesIO(photograph)) as opened:
        return opened.convert("RGB")


@pytest.fixture(scope="module")
def spoon(picture: Image.Image) -> np.ndarray[Any, Any]:
    """[400,600] bool: what the model must answer."""
    return expected_mask(picture, points=[SPOON])


@pytest.fixture(scope="module")
def image_key(service: httpx.Client, photograph: bytes) -> str:
    answer = service.post("/v1/images", files={"image": photograph})
    assert answer.status_code == 200, answer.text
    described = answer.json()
    assert (described["width"], described["height"], described["model"]) == (600, 400, "sam2:tiny")
    return str(described["image_key"])


def mask_of(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.mode == "L"
        pixels = np.asarray(picture)
    assert set(np.unique(pixels)) <= {0, 255}
    return pixels > 0


def test_an_embedding_as_text_and_a_click_on_it(
    service: httpx.Client, photograph: bytes, spoon: np.ndarray[Any, Any]
) -> None:
    doubled = f"{str(service.base_url).rstrip('/')}//embedded_model"
    plain = service.post(doubled, files={"image": photograph}, data={"model_version": "sam2"})
    assert plain.status_code == 200
    raw = base64.b64decode(plain.text, validate=True)
    assert np.frombuffer(raw, "<f4").reshape(1, 256, 64, 64).std() > 0
    with service.stream("POST", "/embedded_model?encoding=compress", files={"image": photograph}) as packed:
        assert packed.headers["content-type"] == "application/gzip"
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join(packed.iter_raw())) == plain.content
    where = {"x": SPOON[0], "y": SPOON[1], "img_x": 600, "img_y": 400}
    mask = mask_of(service.post("/from_model", files={"model": plain.content}, data=where))
    np.testing.assert_array_equal(mask, spoon)
    packed_model = gzip.compress(plain.content, 1)
    np.testing.assert_array_equal(
        mask_of(service.post("/from_model", files={"model": packed_model}, data=where)), spoon
    )


def test_an_embedding_that_the_server_does_not_know(service: httpx.Client, photograph: bytes) -> None:
    """High-resolution features are left out then: a coarser mask of the same thing."""
    text = service.post("/embedded_model", files={"image": photograph}).text
    strange = np.frombuffer(base64.b64decode(text), "<f4") + np.float32(1e-4)
    model = base64.b64encode(strange.tobytes())
    where = {"x": SPOON[0], "y": SPOON[1], "img_x": 600, "img_y": 400}
    mask = mask_of(service.post("/from_model", files={"model": model}, data=where))
    assert mask.shape == (400, 600)
    assert mask[SPOON[1], SPOON[0]]


def test_prediction(service: httpx.Client, photograph: bytes, spoon: np.ndarray[Any, Any]) -> None:
    answer = service.post("/prediction", files={"image": photograph}, data={"x": SPOON[0], "y": SPOON[1]})
    np.testing.assert_array_equal(mask_of(answer), spoon)


@pytest.mark.parametrize("form", ["png", "rle", "bits"])
def test_every_exact_form_holds_the_same_mask(
    service: httpx.Client, image_key: str, spoon: np.ndarray[Any, Any], form: str
) -> None:
    answer = service.post("/v1/segment", json={"image_key": image_key, "points": [SPOON], "format": form})
    assert answer.status_code == 200, answer.text
    np.testing.assert_array_equal(decode(answer.json()["mask"]), spoon)


def test_polygon_logits_and_several_objects(service: httpx.Client, image_key: str, picture: Image.Image) -> None:
    request = {"image_key": image_key, "objects": [{"points": [SPOON]}, {"box": [60, 40, 480, 390]}]}
    rings = service.post("/v1/segment", json={**request, "format": "polygon"}).json()
    assert [entry["object"] for entry in rings["masks"]] == [0, 1]
    assert len(rings["masks"][0]["data"][0]) >= 6
    exact = service.post("/v1/segment", json={**request, "format": "bits"}).json()["masks"]
    assert_mask(decode(exact[0]), picture, points=[SPOON])
    assert_mask(decode(exact[1]), picture, box=[60, 40, 480, 390])
    logits = service.post("/v1/segment", json={**request, "format": "logits", "multimask": True}).json()
    assert len(logits["masks"]) == 6
    assert len(base64.b64decode(logits["masks"][0]["data"])) == 256 * 256 * 4


def test_refusals_come_from_the_service_and_name_the_mend(
    service: httpx.Client, running: RunningServer, image_key: str
) -> None:
    before = counters(running, "sam2")
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"image_key": image_key, "points": [[1e400, 0]]}, 400, "invalid_input"),
        ({"image_key": image_key, "points": []}, 400, "invalid_input"),
        ({"image_key": image_key, "points": [SPOON], "format": "gif"}, 400, "invalid_input"),
        ({"image_key": image_key, "points": [SPOON], "model": "sam9"}, 404, "not_found"),
        ({"points": [SPOON]}, 400, "invalid_input"),
        ({"image_key": "0" * 40, "points": [SPOON]}, 404, "image_expired"),
        ({"image_key": image_key, "points": [[601, 0]]}, 400, "invalid_input"),
        ({"image_key": image_key, "text": "a spoon"}, 422, "unsupported"),
    ]
    for document, status, code in wrong:
        answer = service.post("/v1/segment", content=json.dumps(document))
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code), answer.text
    assert counters(running, "sam2")["decodes_total"] == before["decodes_total"]


def test_what_older_guides_call(service: httpx.Client) -> None:
    assert [row["name"] for row in service.get("/v2/models").json()] == ["sam2"]
    assert "nv_inference_request_success" in service.get("/v2/metrics").text
    assert "triton_sam_service_requests_total" in service.get("/metrics").text
    assert service.get("/health").json()["state"] == "ready"
    eventually(lambda: service.get("/health").json()["devices"], "the first answer to a ping")
    (device,) = service.get("/health").json()["devices"]["sam2"]
    assert (device["device"], device["state"], device["engine"]["stage"]) == ("cpu", "ready", "full speed")


def test_hover_over_a_socket(running: RunningServer, image_key: str, spoon: np.ndarray[Any, Any]) -> None:
    async def body() -> None:
        url = running.urls["service"].replace("http://", "ws://") + "/v1/hover"
        before = counters(running, "sam2")
        async with websockets.connect(url, proxy=None) as socket:
            for number in range(60):  # a moving mouse
                where = SPOON if number == 59 else (100 + number, 200)
                message = {"id": number, "image_key": image_key, "points": [where], "format": "rle"}
                await socket.send(json.dumps(message))
            outcomes: Counter[str] = Counter()
            last: dict[str, Any] = {}
            while sum(outcomes.values()) < 60:
                answer = json.loads(await asyncio.wait_for(socket.recv(), 60))
                outcomes[next(key for key in ("result", "superseded", "error") if key in answer)] += 1
                if answer["id"] == 59:
                    last = answer
        np.testing.assert_array_equal(from_rle(last["result"]["mask"]["data"]), spoon)
        assert outcomes["error"] == 0
        decoded = counters(running, "sam2")["decodes_total"] - before["decodes_total"]
        assert decoded <= outcomes["result"] + 3  # an answer may grow old on its way out
        assert decoded < 30

    asyncio.run(body())


# -- loads as this service's users have them ---------------------------------------------------------------------


def _one_after_the_other(url: str, worker: int, requests: int, seen: Any) -> None:
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        for number in range(requests):
            image = slow_picture(1000 + worker * 10 + number // 4)
            seen.append(client.post("/embedded_model", files={"image": ("em.png", image)}).status_code)


def _overlapping(url: str, worker: int, requests: int, seen: Any) -> None:
    """A request every 0.1 s, whatever became of the one before; each cancels what its session has pending."""
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client, ThreadPoolExecutor(requests) as pool:
        session = client.get("/new_session_id").text

        def post(number: int) -> None:
            fields = {"session_id": session, "cancel_pending": "True"}
            image = slow_picture(2000 + worker * 100 + number)
            answer = client.post("/embedded_model", files={"image": ("em.png", image)}, data=fields)
            seen.append(answer.status_code)
            if answer.status_code == 499:
                assert answer.headers["Cancelled-By-Client"] == "1"
            if number == requests - 1:
                seen.append("last answered" if answer.status_code == 200 else "last lost")

        for number in range(requests):
            # This is the load, not a way to wait for something. The last one comes surely after all before it.
            time.sleep(1.0 if number == requests - 1 else 0.1)
            pool.submit(post, number)


def run_workers(habit: Any, url: str, requests: int) -> Counter[Any]:
    seen: list[Any] = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for worker in [pool.submit(habit, url, number, requests, seen) for number in range(WORKERS)]:
            worker.result(200)
    return Counter(seen)


def test_workers_that_ask_one_after_the_other(running: RunningServer, service: httpx.Client) -> None:
    assert run_workers(_one_after_the_other, running.urls["service"], REQUESTS) == {200: WORKERS * REQUESTS}


def test_workers_that_cancel_what_they_asked_before(running: RunningServer, service: httpx.Client) -> None:
    requests = 2 * REQUESTS
    before = counters(running, "sam2")
    seen = run_workers(_overlapping, running.urls["service"], requests)
    assert set(seen) <= {200, 499, "last answered"}
    assert seen[200] + seen[499] == WORKERS * requests
    assert seen["last answered"] == WORKERS
    encodes = counters(running, "sam2")["encodes_total"] - before["encodes_total"]
    assert encodes < WORKERS * requests / 2, "cancelled encodes are not computed"


def test_a_caller_that_hangs_up_costs_no_encode(running: RunningServer, service: httpx.Client) -> None:
    before = counters(running, "sam2")
    with httpx.Client(base_url=running.urls["service"], timeout=0.3, trust_env=False) as impatient:
        gone = [threading.Thread(target=_hang_up, args=(impatient, number)) for number in range(6)]
        for thread in gone:
            thread.start()
        for thread in gone:
            thread.join()
    assert service.post("/v1/images", files={"image": slow_picture(3999)}).status_code == 200
    assert counters(running, "sam2")["encodes_total"] - before["encodes_total"] <= 3


def _hang_up(client: httpx.Client, number: int) -> None:
    with pytest.raises(httpx.TimeoutException):
        client.post("/v1/images", files={"image": slow_picture(3000 + number)})


def test_slow_senders_do_not_keep_others_out(running: RunningServer, service: httpx.Client, image_key: str) -> None:
    """How much they slow others down is measured by ``python -m benchmarks service``."""
    with slow_senders(running.urls["service"], 100):
        answer = service.post("/v1/segment", json={"image_key": image_key, "points": [SPOON], "format": "rle"})
        assert answer.status_code == 200

"""Two whole servers behind the real HAProxy and nginx, with the configurations that are shipped: an image's requests
meet, and a server that is killed and comes back costs nobody an answer."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import io
import itertools
import json
import os
import signal
import ssl
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

from testkit.steady_load import picture
from tests.faults.figures import record
from tests.faults.proxies import HAProxy, WholeServer, program, running_haproxy, running_nginx
from tests.faults.two_server_load import TwoServerLoad, click, upload
from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, queue_multiple_requests, wait_for_latest_result
from triton_sam.client.wire import image_headers

pytestmark = [pytest.mark.triton, pytest.mark.part("overload")]
#: Images of each server in the load, and threads that ask about them.
IMAGES, CLIENTS = 3, 3
#: Seconds.
OUT_WITHIN, BACK_WITHIN = 2.0, 10.0
NAMES = ("sam1", "sam2")
_numbers = itertools.count(20_000)


@pytest.fixture(scope="module")
def servers(real_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WholeServer]]:
    """Two, which may be killed, but have to be well again afterwards."""
    program("haproxy")
    homes = tmp_path_factory.mktemp("homes")
    made = [WholeServer(real_repository, homes / name) for name in NAMES]
    try:
        for server in made:
            server.start()
        for server in made:
            eventually(server.is_healthy, "a healthy server")
        yield made
    finally:
        for server in made:
            server.kill()


@pytest.fixture(scope="module")
def haproxy(servers: list[WholeServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[HAProxy]:
    with running_haproxy(servers, tmp_path_factory.mktemp("haproxy")) as running:
        yield running


@pytest.fixture
def client(haproxy: HAProxy) -> Iterator[httpx.Client]:
    """For a test that begins with both servers in use."""
    eventually(lambda: all(haproxy.states().values()), "both servers in use")
    with httpx.Client(base_url=haproxy.url, timeout=120, trust_env=False) as client:
        yield client


def served_by(client: httpx.Client, headers: dict[str, str] | None = None, **query: str) -> str:
    """Who answers a request that costs a server nothing."""
    answer = client.get("/v1/limits", headers=headers, params=query)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["X-Served-By"])


def keys_of(client: httpx.Client, name: str) -> Iterator[str]:
    """Texts that a client may send as X-Image-Key, of images that are that server's."""
    return (
        key
        for key in (f"picture-{number}" for number in itertools.count())
        if served_by(client, {"X-Image-Key": key}) == name
    )


@pytest.fixture(scope="module")
def encoded(servers: list[WholeServer], haproxy: HAProxy) -> dict[str, tuple[str, str]]:
    """One image at each server: whose -> (X-Image-Key, image_key). Each was encoded once, by its own server."""
    eventually(lambda: all(haproxy.states().values()), "both servers in use")
    found = {}
    with httpx.Client(base_url=haproxy.url, timeout=120, trust_env=False) as client:
        for name, server in zip(NAMES, servers, strict=True):
            key = next(keys_of(client, name))
            sent = upload(client, key, picture(next(_numbers)))
            assert (sent.status_code, sent.headers["X-Served-By"]) == (200, name), sent.text
            eventually(lambda: server.figure("encodes") == 1, "the encode's count")  # noqa: B023
            found[name] = (key, sent.json()["image_key"])
    assert [server.figure("encodes") for server in servers] == [1, 1]
    return found


def test_an_upload_and_its_clicks_meet_at_one_server(
    client: httpx.Client, servers: list[WholeServer], encoded: dict[str, tuple[str, str]]
) -> None:
    for name, (key, image_key) in encoded.items():
        for _ in range(3):
            answer = click(client, key, image_key)
            assert (answer.status_code, answer.headers["X-Served-By"]) == (200, name), answer.text
    assert click(client, encoded["sam2"][0], encoded["sam1"][1]).json()["error"]["code"] == "image_expired"
    assert [server.figure("encodes") for server in servers] == [1, 1]


def test_images_spread_over_both(client: httpx.Client) -> None:
    shares = Counter(served_by(client, {"X-Image-Key": f"image {number}"}) for number in range(200))
    assert set(shares) == set(NAMES)
    assert min(shares.values()) >= 60, shares
    record(
        "two_servers_spread", "200 images spread over two servers", {"the smaller share": (min(shares.values()), "")}
    )


def test_the_first_of_what_a_request_has_decides(client: httpx.Client) -> None:
    """Image, then session, then token, then address: whatever stands behind makes no difference."""
    one, other = (next(keys_of(client, name)) for name in NAMES)
    ways: list[dict[str, Any]] = [
        {"headers": {"X-Image-Key": one}},
        {"image": one},
        {"headers": {"X-Session-ID": one}},
        {"session_id": one},
    ]
    behind = {"headers": {"Authorization": f"Bearer {other}"}}
    for way, lesser in zip(ways, [*ways[1:], behind], strict=True):
        swapped = json.loads(json.dumps(lesser).replace(one, other))
        headers = {**swapped.get("headers", {}), **way.get("headers", {})}
        query = {name: value for name, value in (swapped | way).items() if name != "headers"}
        assert served_by(client, headers, **query) == "sam1", (way, lesser)
    tokens = {served_by(client, {"Authorization": f"Bearer {number}"}) for number in range(20)}
    assert tokens == set(NAMES), "tokens spread too"
    assert len({served_by(client) for _ in range(5)}) == 1, "what has nothing goes by its address"


def test_a_socket_meets_its_image(haproxy: HAProxy, encoded: dict[str, tuple[str, str]]) -> None:
    async def hover(key: str, image_key: str) -> dict[str, Any]:
        address = f"{haproxy.url.replace('http', 'ws')}/v1/hover?image={key}"
        async with websockets.connect(address, proxy=None) as socket:
            await socket.send(json.dumps({"id": 1, "image_key": image_key, "points": [[30, 30]], "format": "rle"}))
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
            return answer

    for key, image_key in encoded.values():
        answer = asyncio.run(hover(key, image_key))
        assert answer["result"]["masks"], answer


def test_triton_s_own_ports(client: httpx.Client, haproxy: HAProxy, servers: list[WholeServer]) -> None:
    """SAM2TritonClient by HTTP and by gRPC: an image has one server, by whichever port it is asked for."""
    del client  # both servers are in use
    before = sum(server.figure("encodes") for server in servers)
    pictures = [picture(next(_numbers)) for _ in range(4)]
    with SAM2TritonClient(haproxy.triton_http) as http_client, SAM2TritonClient(haproxy.triton_grpc) as grpc_client:
        for image, sam in itertools.product(pictures, (http_client, grpc_client)):
            sam.set_image(image)
            for _ in range(3):
                assert sam.segment([[30, 30]]).masks.masks.any()
    encoded = before + len(pictures)
    eventually(lambda: sum(server.figure("encodes") for server in servers) == encoded, f"{encoded} encodes")


def test_the_speculative_client_at_triton_s_own_ports(
    client: httpx.Client, haproxy: HAProxy, servers: list[WholeServer]
) -> None:
    """Encodes, clicks and cancels of an image reach one server, by HTTP and by gRPC."""
    before = sum(server.figure("encodes") for server in servers)
    pictures: dict[str, bytes] = {}
    while set(pictures) != set(NAMES):
        image = picture(next(_numbers))
        pictures.setdefault(served_by(client, image_headers(image)), image)

    async def hover(address: str, image: bytes, owner: WholeServer) -> None:
        async with SpeculativeSAM2Client(address) as sam:
            sam.set_image(image)
            found = await sam.segment_async([[30, 30]], [1])
            assert found is not None
            assert found.masks.masks.any()
            cancelled = owner.figure("cancelled")
            while owner.figure("cancelled") == cancelled:  # until a cancel finds requests in the server's queue
                tasks = await queue_multiple_requests(sam, [[[x, 30]] for x in range(50)], [[1]] * 50, "hover")
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                sam.cancel_session_requests("hover")
                assert await wait_for_latest_result(tasks, sam, "hover") is not None

    for address, (name, owner) in itertools.product(
        (haproxy.triton_http, haproxy.triton_grpc), zip(NAMES, servers, strict=True)
    ):
        asyncio.run(asyncio.wait_for(hover(address, pictures[name], owner), 60))
    encoded = before + len(pictures)
    eventually(lambda: sum(server.figure("encodes") for server in servers) == encoded, f"{encoded} encodes")


def test_what_haproxy_says_itself_has_the_service_s_shape(client: httpx.Client, haproxy: HAProxy) -> None:
    with contextlib.closing(http.client.HTTPConnection(haproxy.url.removeprefix("http://"), timeout=30)) as announced:
        announced.putrequest("POST", "/v1/images")
        announced.putheader("Content-Length", str(200 * 2**20))
        announced.endheaders()
        refused = announced.getresponse()
        error = json.loads(refused.read())["error"]
    assert (refused.status, error["code"], error["type"]) == (413, "too_large", "invalid_request_error")
    assert refused.headers["X-Request-ID"]
    named = client.get("/v1/limits", headers={"X-Request-ID": "mine.1"})
    assert named.headers["X-Request-ID"] == "mine.1"


# -- a server dies and comes back -------------------------------------------------------------------------------------


@pytest.mark.timeout(900)  # seconds, where other work has most of the machine
def test_a_killed_server_costs_nobody_an_answer(
    client: httpx.Client, haproxy: HAProxy, servers: list[WholeServer]
) -> None:
    chosen = {name: list(itertools.islice(keys_of(client, name), IMAGES)) for name in NAMES}
    load = TwoServerLoad(haproxy.url, {key: name for name, keys in chosen.items() for key in keys})
    newcomers = list(itertools.islice(keys_of(client, "sam1"), 60))[IMAGES:]
    interleaved = list(itertools.chain(*zip(*chosen.values(), strict=True)))
    killed, survivor = servers
    figures: dict[str, tuple[Any, str]] = {}
    with ThreadPoolExecutor(CLIENTS + 2) as pool:
        runs = [pool.submit(load.run, interleaved[number::CLIENTS]) for number in range(CLIENTS)]
        try:
            everything = {name: set(keys) for name, keys in chosen.items()}

            def all_clicked(server: str, owner: str, since: float) -> bool:
                assert not [run for run in runs if run.done()], [run.exception() for run in runs if run.done()]
                return load.by(server, owner, since, "/v1/segment", 200) == everything[owner]

            for name in NAMES:
                eventually(lambda: all_clicked(name, name, 0), "masks of all images")  # noqa: B023
            encoded_before = survivor.figure("encodes")
            asked_again = haproxy.asked_again()
            sending = pool.submit(load.send_newcomers, newcomers)
            eventually(lambda: load.newcomers, "an upload, and so the next one under way")

            gone = time.monotonic()
            noticed = pool.submit(eventually, lambda: not haproxy.states()["sam1"], "the dead server out of use")
            killed.kill()
            out = noticed.result()
            eventually(lambda: "sam2" in load.newcomers, "an upload by the other server")
            load.no_more_newcomers.set()
            sending.result(timeout=120)
            eventually(lambda: all_clicked("sam2", "sam1", gone), "masks by the other server")
            moved = load.first_masks("sam2", "sam1", gone) - gone
            assert out < OUT_WITHIN

            killed.start()
            eventually(killed.is_healthy, "the server's health")
            healthy = time.monotonic()
            eventually(lambda: load.by("sam1", "sam1", healthy) == everything["sam1"], "its share")
            share = time.monotonic() - healthy
            eventually(lambda: all_clicked("sam1", "sam1", healthy), "masks by the server that is back")
            masks = time.monotonic() - healthy
            assert share < BACK_WITHIN
        finally:
            load.end.set()
            load.no_more_newcomers.set()
        for run in runs:
            run.result(timeout=120)

    statuses = Counter(status for _, _, status, _, _ in load.answers)
    assert not load.broken, load.broken[:5]
    assert set(statuses) <= {200, 404, 429, 503}, statuses
    assert load.uploads("sam2") == dict.fromkeys(chosen["sam2"], 1), "the other server's images were encoded once"
    assert load.uploads("sam1") == dict.fromkeys(chosen["sam1"], 3), "at first, at the other server, and at home again"
    encoded = IMAGES + load.newcomers.count("sam2")
    eventually(lambda: survivor.figure("encodes") == encoded_before + encoded, "the other server's encodes")
    eventually(lambda: killed.figure("encodes") == IMAGES, "the returned server's encodes")
    figures = {
        "requests, and uploads of new images among them": (
            f"{sum(statuses.values())}, {len(load.newcomers)}",
            "",
        ),
        "answered 200 / 404 image_expired / 429 / 503": (
            " / ".join(str(statuses[it]) for it in (200, 404, 429, 503)),
            "",
        ),
        "asked again by HAProxy at the other server, unnoticed": (haproxy.asked_again() - asked_again, ""),
        "connections broken, other answers": (len(load.broken), "0"),
        "images of the other server encoded again": (sum(load.uploads("sam2").values()) - IMAGES, "0"),
        "images of the killed server, and encodes of them after the kill": (f"{IMAGES}, {2 * IMAGES}", ""),
        "dead server out of use, s after the kill": (round(out, 2), "<= 2"),
        "masks of all its images by the other server, s after the kill": (round(moved, 2), ""),
        "its share of requests back after it is healthy, s": (round(share, 2), "<= 10"),
        "masks of all its images by itself again, s": (round(masks, 2), ""),
    }
    record("two_servers", "one of two servers behind HAProxy killed and returned under load", figures)


def test_the_service_s_health_decides(client: httpx.Client, haproxy: HAProxy, servers: list[WholeServer]) -> None:
    """A service whose Triton is gone answers, and says 503: it gets nothing until it is well again."""
    key = next(keys_of(client, "sam1"))
    triton = servers[0].processes()[1]
    os.kill(triton, signal.SIGKILL)
    out = eventually(lambda: not haproxy.states()["sam1"], "the sick server out of use")
    assert served_by(client, {"X-Image-Key": key}) == "sam2"
    eventually(servers[0].is_healthy, "its health")
    back = eventually(lambda: served_by(client, {"X-Image-Key": key}) == "sam1", "its requests")
    assert out < OUT_WITHIN
    assert back < BACK_WITHIN
    record(
        "two_servers_health",
        "tritonserver of one of two servers killed: health through HAProxy",
        {"out of use, s": (round(out, 2), "<= 2"), "in use again after its health, s": (round(back, 2), "<= 10")},
    )


# -- nginx ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nginx(servers: list[WholeServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Its address and who vouches for it."""
    program("nginx")
    folder = tmp_path_factory.mktemp("nginx")
    with running_nginx([f"127.0.0.1:{server.ports['service']}" for server in servers], folder) as url:
        yield url, ssl.create_default_context(cafile=str(folder / "site.crt"))


@pytest.fixture
def tls(nginx: tuple[str, ssl.SSLContext]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=nginx[0], verify=nginx[1], timeout=120, trust_env=False) as client:
        yield client


def noise(side: int) -> bytes:
    """A picture that cannot be compressed, of three bytes a pixel."""
    buffer = io.BytesIO()
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def large(nginx: tuple[str, ssl.SSLContext]) -> str:
    """The key of an image of several megabytes that was sent through nginx."""
    image = noise(3000)
    assert len(image) > 25 * 10**6
    with httpx.Client(base_url=nginx[0], verify=nginx[1], timeout=120, trust_env=False) as client:
        sent = upload(client, "large", image)
    assert sent.status_code == 200, sent.text
    return str(sent.json()["image_key"])


def test_nginx_takes_several_megabytes_by_tls_and_images_meet(tls: httpx.Client, large: str) -> None:
    for _ in range(3):
        assert click(tls, "large", large).status_code == 200
    elsewhere = {click(tls, f"other-{number}", large).status_code for number in range(20)}
    assert elsewhere == {200, 404}, "both servers are in use, and one of them has the image"


def test_nginx_refuses_a_body_over_the_limit_in_our_words(tls: httpx.Client) -> None:
    refused = tls.post("/v1/images", content=bytes(97 * 2**20), headers={"Content-Type": "multipart/form-data"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (413, "too_large"), refused.text
    assert refused.headers["X-Request-ID"]


def test_nginx_passes_sockets(nginx: tuple[str, ssl.SSLContext], large: str) -> None:
    async def hover() -> dict[str, Any]:
        address = f"{nginx[0].replace('https', 'wss')}/v1/hover?image=large"
        async with websockets.connect(address, ssl=nginx[1], proxy=None) as socket:
            await socket.send(json.dumps({"id": 1, "image_key": large, "points": [[30, 30]], "format": "rle"}))
            answer: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), 60))
            return answer

    assert asyncio.run(hover())["result"]["masks"]


def test_nginx_says_in_our_words_that_nobody_is_there(tmp_path: Path) -> None:
    from triton_sam.server.host import free_port

    program("nginx")
    with running_nginx([f"127.0.0.1:{free_port()}"], tmp_path) as url:
        trust = ssl.create_default_context(cafile=str(tmp_path / "site.crt"))
        answer = httpx.get(f"{url}/v1/limits", verify=trust, timeout=30, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert answer.headers["Retry-After"]

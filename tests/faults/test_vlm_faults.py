"""What goes wrong around vision-language models is told in one sentence, soon, and the next question is fine.

Models here are slow on purpose where something has to happen while they speak: a moment for each token.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.faults.helpers import expect_ended, processes_of, recoveries_of
from tests.integration.vlm_serving import (
    SCHEMES,
    data_url,
    llava_says,
    picture,
    png,
    send_question,
    server_log,
    serving_vlms,
    steps,
)
from tests.waiting import eventually
from triton_sam.client.vlm_client import TritonVLMClient
from triton_sam.errors import InvalidInput, ServerUnreachable, TooLarge, Unavailable
from triton_sam.server.in_flight import requests_in_flight
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
#: Seconds; where the machine has nothing else to do.
TOLD_WITHIN = 2.0
QUESTION = "What is it?"
#: More than any of these answers gets to say.
LONG = 200
#: Long against every delay between a client that leaves and the model, on a busy machine too.
SECONDS_PER_TOKEN = 0.4


@dataclass(frozen=True)
class Slow:
    """A server whose llava takes its time."""

    running: RunningServer
    folder: Path
    right: str
    """The first four tokens of its answer to QUESTION about picture(1)."""

    @property
    def steps(self) -> int:
        return steps(self.folder, "llava")

    @property
    def held(self) -> int:
        return requests_in_flight(self.running.supervisor.process.in_flight_folder, "llava_stream") or 0

    def stub(self) -> int:
        return next(pid for pid, model in self.running.supervisor.process.model_pids.items() if model == "llava_stream")

    def expect_right(self, scheme: str = "HTTP") -> None:
        with TritonVLMClient(self.running.urls[scheme]) as client:
            assert client.infer("llava", png(picture(1)), QUESTION, max_new_tokens=4) == self.right

    def expect_recovery(self) -> None:
        def answers() -> bool:
            with contextlib.suppress(Unavailable, ServerUnreachable):
                self.expect_right()
                return True
            return False

        eventually(answers, "an answer after the fault")


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_llava

    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def slow(embedded_server: None, llava: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slow]:
    folder = tmp_path_factory.mktemp("slow")
    pace = {"vlm:llava": SECONDS_PER_TOKEN}
    # Who comes while all lanes are busy waits for the end of an answer.
    with serving_vlms(folder, {"vlm:llava": llava}, slow=pace, vlm_lanes="4") as running:
        slow = Slow(running, folder, llava_says(llava)(picture(1), QUESTION, 4))
        slow.expect_right()
        yield slow


@contextlib.contextmanager
def told_quickly() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < TOLD_WITHIN


def chat(running: RunningServer, **options: Any) -> dict[str, Any]:
    """Arguments of httpx.post for a question to the service."""
    image = options.pop("image", png(picture(1)))
    parts = [
        {"type": "image_url", "image_url": {"url": data_url(image)}},
        {"type": "text", "text": options.pop("text", QUESTION)},
    ]
    body = {"model": "llava", "messages": [{"role": "user", "content": parts}], **options}
    return {"url": f"{running.urls['service']}/v1/chat/completions", "json": body}


# -- what is sent ------------------------------------------------------------------------------------------------


@pytest.mark.part("faults")
@pytest.mark.parametrize("scheme", SCHEMES)
def test_nonsense_is_refused_at_once(slow: Slow, scheme: str) -> None:
    with TritonVLMClient(slow.running.urls[scheme]) as client:
        for image in (b"no image", b"", png(picture(1))[:300]):
            with told_quickly(), pytest.raises(InvalidInput):
                client.infer("llava", image, QUESTION)
        with told_quickly(), pytest.raises(TooLarge, match=r"1,000,000 bytes and 32,768 are allowed: shorten it"):
            client.infer("llava", png(picture(1)), "x" * 1_000_000)
    slow.expect_right(scheme)


@pytest.mark.part("faults")
def test_the_service_refuses_it_too(slow: Slow) -> None:
    for wrong, status in (({"image": b"no image"}, 400), ({"text": "x" * 1_000_000}, 413)):
        with told_quickly():
            answer = httpx.post(**chat(slow.running, **wrong), timeout=30, trust_env=False)
        assert answer.status_code == status, answer.text
    assert httpx.post(**chat(slow.running, max_tokens=4), timeout=30, trust_env=False).status_code == 200
    slow.expect_right()


# -- who leaves --------------------------------------------------------------------------------------------------

Leave = Callable[[], object]


@contextlib.contextmanager
def _by_client(slow: Slow, scheme: str) -> Iterator[Leave]:
    with TritonVLMClient(slow.running.urls[scheme]) as client:
        pieces = client.stream("llava", png(picture(1)), QUESTION, max_new_tokens=LONG)
        for _ in range(3):
            assert next(pieces)
        yield pieces.close  # type: ignore[attr-defined]


@contextlib.contextmanager
def _by_socket(slow: Slow, scheme: str) -> Iterator[Leave]:
    running = slow.running
    with contextlib.closing(http.client.HTTPConnection(running.reach, running.ports.http, timeout=30)) as connection:
        image = data_url(png(picture(1)))
        send_question(connection, "llava", {"image_b64": image, "prompt": QUESTION, "max_new_tokens": LONG})
        answer = connection.getresponse()
        while b'"generated_text"' not in answer.readline():
            pass

        def hang_up() -> None:
            answer.close()
            connection.close()

        yield hang_up


@contextlib.contextmanager
def _by_openai(slow: Slow, scheme: str) -> Iterator[Leave]:
    with opened_openai(slow.running) as stream:
        for _ in range(4):
            next(stream)
        yield stream.close


@contextlib.contextmanager
def _by_whole_answer(slow: Slow, scheme: str) -> Iterator[Leave]:
    """Through the service, which has sent nothing yet."""
    running, spoken = slow.running, slow.steps
    connection = http.client.HTTPConnection("127.0.0.1", running.ports.service, timeout=30)
    with contextlib.closing(connection):
        body = json.dumps(chat(running, max_tokens=LONG)["json"])
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        eventually(lambda: slow.steps > spoken + 2, "the first words")
        yield connection.close


@contextlib.contextmanager
def opened_openai(running: RunningServer) -> Iterator[openai.Stream[Any]]:
    address = f"{running.urls['service']}/v1"
    with (
        httpx.Client(timeout=30, trust_env=False) as plain,
        openai.OpenAI(base_url=address, api_key="none", max_retries=0, http_client=plain) as client,
    ):
        body = chat(running, max_tokens=LONG, stream=True)["json"]
        with client.chat.completions.create(**body) as stream:
            yield stream


def test_who_leaves_stops_the_work(slow: Slow) -> None:
    """Long before the end of the answer; how long exactly depends on the machine."""
    expect_stop(slow, _by_client, "HTTP", most_tokens=LONG // 4)


@pytest.mark.part("faults")
@pytest.mark.parametrize(
    ("way", "scheme"),
    [
        (_by_client, "HTTP"),
        (_by_client, "gRPC"),
        (_by_socket, "HTTP"),
        (_by_openai, "HTTP"),
        (_by_whole_answer, "HTTP"),
    ],
    ids=["HTTP", "gRPC", "socket", "openai", "whole"],
)
def test_who_leaves_stops_the_work_within_two_tokens(slow: Slow, way: Any, scheme: str) -> None:
    expect_stop(slow, way, scheme, most_tokens=2)


def expect_stop(slow: Slow, way: Any, scheme: str, most_tokens: int) -> None:
    eventually(lambda: slow.held == 0, "the end of all before")
    begun = slow.steps
    with way(slow, scheme) as leave:
        spoken = slow.steps
        assert spoken > begun
        leave()
        eventually(lambda: slow.held == 0, "the end of the work", LONG * SECONDS_PER_TOKEN / 2)
        assert slow.steps - spoken <= most_tokens
    slow.expect_right(scheme)


# -- a model's process dies --------------------------------------------------------------------------------------


@dataclass
class Victim:
    """Somebody in the middle of an answer."""

    listen: Callable[[], Iterator[object]]
    heard: int = 0
    error: BaseException | None = None
    when: float = 0.0
    """Seconds after the kill."""

    def run(self) -> None:
        try:
            for _ in self.listen():
                self.heard += 1
        except BaseException as error:
            self.error = error
        self.when = time.monotonic()


@pytest.fixture(scope="module")
def victims(slow: Slow) -> list[Victim]:
    """Our clients over both transports, OpenAI's through the service, and who waits for one whole answer."""

    def listen(scheme: str) -> Iterator[str]:
        with TritonVLMClient(slow.running.urls[scheme], retries=0) as client:
            yield from client.stream("llava", png(picture(1)), QUESTION, max_new_tokens=LONG)

    def listen_by_openai() -> Iterator[Any]:
        with opened_openai(slow.running) as stream:
            yield from stream

    def wait_at_the_door() -> Iterator[bytes]:
        """Plain KServe, one request and one answer."""
        texts = {"image_b64": data_url(png(picture(1))), "prompt": QUESTION}
        inputs = [{"name": name, "shape": [1], "datatype": "BYTES", "data": [text]} for name, text in texts.items()]
        inputs.append({"name": "max_new_tokens", "shape": [1], "datatype": "INT32", "data": [LONG]})
        address = f"{slow.running.urls['HTTP']}/v2/models/llava/infer"
        yield httpx.post(address, json={"inputs": inputs}, timeout=60, trust_env=False).content

    eventually(lambda: slow.held == 0, "the end of all before")
    victims = [Victim(lambda: listen("HTTP")), Victim(lambda: listen("gRPC")), Victim(listen_by_openai)]
    victims.append(Victim(wait_at_the_door))
    threads = [threading.Thread(target=victim.run) for victim in victims]
    for thread in threads:
        thread.start()
    eventually(lambda: all(victim.heard > 2 for victim in victims[:3]), "three streams")
    eventually(lambda: slow.held == len(victims), "a question of each")
    everything = processes_of(slow.running)
    os.kill(slow.stub(), signal.SIGKILL)
    killed = time.monotonic()
    for thread in threads:
        thread.join(LONG * SECONDS_PER_TOKEN * 2)
        assert not thread.is_alive(), "somebody waits for ever"
    expect_ended(everything)
    for victim in victims:
        victim.when -= killed
    return victims


def test_killed_in_the_middle_of_its_answers(slow: Slow, victims: list[Victim]) -> None:
    by_http, by_grpc, by_openai, at_the_door = victims
    assert isinstance(by_http.error, ServerUnreachable), repr(by_http.error)
    assert isinstance(by_grpc.error, ServerUnreachable), repr(by_grpc.error)
    assert isinstance(by_openai.error, openai.APIError), repr(by_openai.error)
    assert by_openai.error.code == "unavailable"
    assert isinstance(at_the_door.error, httpx.TransportError), repr(at_the_door.error)
    assert not [str(victim.error) for victim in victims if "\n" in str(victim.error)]
    for victim in victims[:2]:
        said = str(victim.error)
        assert not any(word in said for word in ("Error", "StatusCode", "no server responds")), said
    slow.expect_recovery()


@pytest.mark.part("faults")
def test_everybody_is_told_at_once(victims: list[Victim]) -> None:
    assert max(victim.when for victim in victims) < TOLD_WITHIN, [(victim.when, victim.error) for victim in victims]


@pytest.mark.part("faults")
@pytest.mark.usefixtures("patient_reaping")
def test_killed_idle(slow: Slow) -> None:
    slow.expect_recovery()  # the test before this one may have left the server restarting
    eventually(lambda: slow.held == 0, "the end of all before")
    supervisor, stub = slow.running.supervisor, slow.stub()
    server, before = supervisor.process.process.pid, recoveries_of(slow.running)
    loads = server_log(slow.running).count("loading from")
    os.kill(stub, signal.SIGKILL)
    # Nobody asks before the death is noticed: a question that comes to a dead process costs the server (test_kills).
    eventually(lambda: recoveries_of(slow.running) != before, "the end of mending")
    slow.expect_recovery()
    assert supervisor.process.process.pid == server, "an idle death needs no restart of the server"
    assert slow.stub() != stub
    assert server_log(slow.running).count("loading from") == loads + 1

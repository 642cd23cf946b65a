"""Words through tritonserver and HTTP: repositories with random weights, and what answers take."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.concepts_model import write_words
from benchmarks.device_scale import MODEL, Server, User, milliseconds, say, timed
from benchmarks.gpu_tables_parts import HTTP, MEMORY
from triton_sam.bench.load_clients import infer_request
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import Pictures, fresh_numbers
from triton_sam.client.masks_memory import MasksMemory
from triton_sam.core.masks_memory import PARAMETER, received_shape
from triton_sam.models.specs import CONCEPTS_FILE, NETWORK_FILE, TOKENIZER_FILE, ModelSpec

_CLICKS = 300
#: Answers of each kind that are not counted.
_FIRST = 5
_ANSWER_BYTES = 2**23


def write_repository(folder: Path, spec: ModelSpec) -> None:
    """A repository without the weights, which :func:`~benchmarks.concepts_model.write_version` writes."""
    from triton_sam.repository.segmenters import write_models

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        (made / NETWORK_FILE).touch()
        names = [NETWORK_FILE]
        if spec.concepts is not None:
            write_words(made, spec)
            names += [CONCEPTS_FILE, TOKENIZER_FILE]
        write_models(spec, None, None, folder, name=MODEL, extras={one: made / one for one in names})
    (folder / MODEL / "1" / NETWORK_FILE).unlink()


class Answer(NamedTuple):
    """What came back.

    Attributes:
        seconds: until it was there.
        steps: what the server says of its steps, in milliseconds.
        masks: [K,H,ceil(W/8)] uint8.
    """

    seconds: float
    steps: dict[str, float]
    masks: npt.NDArray[np.uint8]


class Asker:
    """One person with one connection, who asks for concepts."""

    def __init__(self, server: Server, pictures: Pictures, instances: int, memory: MasksMemory | None = None) -> None:
        """
        Args:
            memory: in which masks are wanted; None: they come through the connection.
        """
        self._server, self._pictures, self._instances, self._memory = server, pictures, instances, memory
        self._connection = Connection("127.0.0.1", server.port)
        self._room = memoryview(bytearray(_ANSWER_BYTES))
        self._numbers, self._texts = fresh_numbers(), fresh_numbers()

    def request(self, text: str | None, key: str | None = None, **prompt: Any) -> bytes:
        """An image that the server has not seen, or one by its key, with a text: a new one if there is none."""
        words = f"red thing {next(self._texts)}" if text is None else text
        asked = {"text": words, "format": "bits", "score_threshold": 0.0, "max_instances": self._instances, **prompt}
        inputs: dict[str, bytes] = {"prompt_json": json.dumps(asked).encode()}
        if key is None:
            inputs["image"] = self._pictures.jpeg(next(self._numbers))
        else:
            inputs["image_key"] = key.encode()
        parameters = {} if self._memory is None else {PARAMETER: str(self._memory.place)}
        outputs = ("result_json", "masks", "scores")
        made = infer_request(self._server.url, MODEL, inputs, outputs, session="one", parameters=parameters)
        return base64.b64decode(made.request)

    def ask(self, request: bytes) -> Answer:
        """Waits for the whole answer, in memory that is used again. It is read later: that is not the server's time."""
        begun = time.perf_counter()
        status, body = self._connection.send_into(request, self._room)
        seconds = time.perf_counter() - begun
        assert status == 200, bytes(body[:500])
        return self._read(bytes(body), seconds)

    def _read(self, body: bytes, seconds: float) -> Answer:
        head, at = json.JSONDecoder().raw_decode(body.decode("latin-1"))
        parts: dict[str, tuple[list[int], bytes]] = {}
        for output in head["outputs"]:
            size = output["parameters"]["binary_data_size"]
            parts[output["name"]] = output["shape"], body[at : at + size]
            at += size
        found = json.loads(parts["result_json"][1][4:])  # after its length
        (concept,) = found["concepts"]
        assert concept["returned"] == self._instances, concept
        shape, data = parts["masks"]
        masks = np.frombuffer(data, np.uint8).reshape(shape)
        if self._memory is not None:
            written = received_shape(masks, self._memory.place)
            assert written is not None, f"masks {masks.shape} came through the connection"
            masks = self._memory.masks(written)
        assert masks.shape == (self._instances, found["height"], -(-found["width"] // 8)), masks.shape
        return Answer(seconds, found["timings_ms"], masks)

    def close(self) -> None:
        self._connection.close()


class Served:
    """Two servers with the same network: one with words, one without. They start side by side."""

    def __init__(self, words: Path, clicks: Path, pictures: Pictures) -> None:
        self.pictures = pictures
        self.words = Server(words, 0)
        with _log_folder("clicks"):
            self.clicks = Server(clicks, 0)

    def stop(self) -> None:
        self.words.stop()
        self.clicks.stop()

    def measure(self, rounds: int, instances: int, bars: Mapping[str, float], wait: float) -> None:
        """Prints medians of each kind of request, of clicks, and of clicks on the server without words."""
        for what, server in (("with words", self.words), ("without words", self.clicks)):
            ready = round(server.wait_ready(_since(server) + 60), 1)
            # Its own clock began when it was started.
            say(server=what, ready_s=ready, full_speed_s=server.wait_full_speed(_since(server) + wait))
        measure_words(self.words, self.pictures, rounds, instances, bars)
        for _ in range(2):  # in turn, because a machine's speed changes
            for what, server in (("with words", self.words), ("without words", self.clicks)):
                measure_clicks(server, self.pictures, what, rounds)


def _since(server: Server) -> float:
    return time.monotonic() - server.begun


@contextlib.contextmanager
def _log_folder(name: str) -> Iterator[None]:
    """The log of a server that is started in the block lies in a folder of its own."""
    before = os.environ.get("OUT")
    folder = Path(before or "/tmp") / name
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["OUT"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("OUT")
        if before is not None:
            os.environ["OUT"] = before


def measure_words(server: Server, pictures: Pictures, rounds: int, instances: int, bars: Mapping[str, float]) -> None:
    """Prints medians of each kind of request: masks through the connection, and in memory that the client offers."""
    memory, user = MasksMemory(_ANSWER_BYTES), User(server, pictures)
    askers = {HTTP: Asker(server, pictures, instances), MEMORY: Asker(server, pictures, instances, memory)}
    try:
        keys = [user.new_image() for _ in range(2)]
        sent, written = (asker.ask(asker.request("coin", keys[0])).masks for asker in askers.values())
        assert np.array_equal(sent, written)
        for way, asker in askers.items():
            for what, request in _kinds(asker, keys).items():
                told = [asker.ask(request(number)) for number in range(_FIRST + rounds)][_FIRST:]
                taken = milliseconds([one.seconds for one in told])
                steps = {step: round(statistics.median(one.steps[step] for one in told), 3) for step in told[0].steps}
                bar = bars.get(what)
                met = {} if bar is None else {"bar_ms": bar, "met": taken["p50"] <= bar}
                say(served=what, masks=way, ms=taken, **met, steps_ms=steps)
    finally:
        for asker in askers.values():
            asker.close()
        user.close()
        memory.close()


def _kinds(asker: Asker, keys: Sequence[str]) -> dict[str, Callable[[int], bytes]]:
    """Name -> the request of a number."""
    example = {"exemplars": [[100, 100, 300, 300]], "exemplar_labels": [1]}
    return {
        "new image, new text": lambda _: asker.request(None),
        "new text": lambda _: asker.request(None, keys[0]),
        "known text": lambda number: asker.request("coin", keys[number % 2]),
        "known text, the same image as before": lambda _: asker.request("coin", keys[0]),
        "one example": lambda _: asker.request("coin", keys[0], **example),
    }


def measure_clicks(server: Server, pictures: Pictures, what: str, rounds: int) -> None:
    """Prints medians of new images and of clicks on one."""
    user = User(server, pictures)
    try:
        key = user.new_image()
        timed(lambda number: user.click(key, number), 30)
        clicks = milliseconds(timed(lambda number: user.click(key, number), _CLICKS))
        say(served="click", server=what, ms=clicks)
        say(served="image", server=what, ms=milliseconds(timed(lambda _: user.new_image(), rounds)))
    finally:
        user.close()

"""Everything in a photograph, served: uploaded, encoded, searched and answered as RLE, over Triton's HTTP.

usage: python -m benchmarks.everything_served FOLDER PROCESSES [--image FILE] [--size 1536 1024] [--rounds 30]

FOLDER as for ``benchmarks.device_scale``: a model repository with one segmenter, whose weights may be missing. Random
ones keep no mask, so they tell the time of the encoder and of the grid, not of run lengths. Waits for full speed, then
measures an upload alone, everything with an upload, everything of an encoded image, and the same points as single
requests of 16 clients. Figures are printed as JSON, one line each, in milliseconds.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.device_scale import MODEL, Server, User, make_weights, say, timed
from triton_sam.bench.load_clients import infer_request, load_clients
from triton_sam.bench.load_worker import Connection
from triton_sam.bench.pictures import Pictures, fresh_numbers, number_at
from triton_sam.models.specs import NETWORK_FILE

_IMAGE = Path(__file__).parents[1] / "docs" / "images" / "coffee.png"
_CLIENTS = 16
_KEY = "0" * 40


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("processes", type=int, help="of the segmenter; 0: one, without a worker")
    parser.add_argument("--image", type=Path, default=_IMAGE)
    parser.add_argument("--size", type=int, nargs=2, default=(1536, 1024))
    parser.add_argument("--side", type=int, default=32, help="points a side")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--wait", type=float, default=300.0, help="how long full speed may take, in seconds")
    parser.add_argument("--singles", type=float, default=5.0, help="seconds of single requests; 0: none")
    parser.add_argument("--save", type=Path, help="where the answer is written")
    given = parser.parse_args()
    weights = "given" if (given.folder / MODEL / "1" / NETWORK_FILE).exists() else "random"
    make_weights(given.folder)
    pictures = scaled(given.image, tuple(given.size))
    server = Server(given.folder, given.processes)
    try:
        ready, full = server.wait_ready(), server.wait_full_speed(given.wait)
        say(
            folder=given.folder.name,
            weights=weights,
            processes=given.processes,
            ready_s=round(ready, 1),
            full_speed_s=full,
        )
        measure(server, pictures, given)
    finally:
        server.stop()


def scaled(image: Path, size: tuple[int, int]) -> Pictures:
    """A photograph as a JPEG of this size."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{image.stem}.jpg"
        Image.open(image).convert("RGB").resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
        return Pictures(file)


def measure(server: Server, pictures: Pictures, given: argparse.Namespace) -> None:
    """Everything that is measured."""
    searcher, user = Searcher(server, pictures, given.side), User(server, pictures)
    answer = json.loads(searcher.with_upload())
    if given.save is not None:
        given.save.write_text(json.dumps(answer))
    say(picture=pictures.about, points=given.side**2, masks=len(answer["masks"]), answer_bytes=len(json.dumps(answer)))
    for _ in range(5):  # clocks and caches
        searcher.with_upload()
    say(upload_and_encode=spread(timed(lambda _: user.new_image(), given.rounds)))
    say(everything_with_upload=spread(timed(lambda _: searcher.with_upload(), given.rounds)))
    key = user.new_image()
    encoded = timed(lambda _: searcher.of(key), given.rounds)
    say(everything_of_an_encoded_image=spread(encoded), steps=json.loads(searcher.of(key)).get("timings_ms"))
    if given.singles:
        rate = singles(server, pictures, key, given.singles)
        whole = 1000 * given.side**2 / rate
        ratio = round(whole / (1000 * statistics.median(encoded)), 1)
        say(clients=_CLIENTS, single_clicks_a_second=round(rate), as_long_as_everything=ratio, all_points=round(whole))


class Searcher:
    """One client with one connection, and its requests as prebuilt bytes."""

    def __init__(self, server: Server, pictures: Pictures, side: int) -> None:
        prompt = json.dumps({"everything": {"points_per_side": side}}).encode()
        data = pictures.jpeg()
        self._connection = Connection("127.0.0.1", server.port)
        self._numbers = fresh_numbers()
        inputs = {"prompt_json": prompt, "image": data}
        whole = infer_request(server.url, MODEL, inputs, ("result_json",), session="all", number=number_at(data))
        self._upload = bytearray(base64.b64decode(whole.request))
        self._number = slice(whole.number_at, whole.number_at + whole.digits)
        inputs = {"image_key": _KEY.encode(), "prompt_json": prompt}
        again = infer_request(server.url, MODEL, inputs, ("result_json",), session="all")
        self._again = base64.b64decode(again.request)

    def with_upload(self) -> bytes:
        """The JSON answer for an image that the server has not seen."""
        self._upload[self._number] = b"%0*d" % (self._number.stop - self._number.start, next(self._numbers))
        return self._send(self._upload)

    def of(self, key: str) -> bytes:
        """The same for an encoded image."""
        return self._send(self._again.replace(_KEY.encode(), key.encode(), 1))

    def _send(self, request: bytes | bytearray) -> bytes:
        status, body = self._connection.send(request, keep_body=True)
        assert status == 200, body[:300]
        head, _ = json.JSONDecoder().raw_decode(body.decode("latin-1"))  # Triton's own, before the binary outputs
        length = int(head["outputs"][0]["parameters"]["binary_data_size"])
        return bytes(body[-length + 4 :])  # after the length of the text


def singles(server: Server, pictures: Pictures, key: str, seconds: float) -> float:
    """Clicks a second of 16 clients with one point each, RLE of three masks as the grid decodes them."""
    with load_clients() as clients:
        for number in range(_CLIENTS):
            prompt: dict[str, Any] = {"points": [list(pictures.point(number))], "labels": [1]}
            prompt |= {"multimask": True, "format": "rle"}
            inputs = {"image_key": key.encode(), "prompt_json": json.dumps(prompt).encode()}
            clients.add(infer_request(server.url, MODEL, inputs, ("result_json",), session=f"user {number}"))
        clients.wait_until_ready()
        clients.begin(_CLIENTS, seconds, 1.0)
        step = clients.outcome(_CLIENTS, seconds)
    assert not step.errors, step.errors
    return step.rate


def spread(seconds: list[float]) -> dict[str, float]:
    """Fastest, median and slowest, in milliseconds."""
    chosen = {"least": min(seconds), "median": statistics.median(seconds), "most": max(seconds)}
    return {name: round(1000 * value, 2) for name, value in chosen.items()}


if __name__ == "__main__":
    main()

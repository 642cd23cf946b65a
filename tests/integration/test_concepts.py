"""Words and examples on the real server, with an engine whose instances are known: every way, order, hostile input."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.analytic import analytic_spec, png, slowed
from tests.analytic_concept_graphs import SLOW_CONCEPT, TRAITS, write_analytic_concepts
from tests.analytic_concepts import expected_instances, scene
from tests.concept_refusals import REFUSALS
from tests.conftest import server_factory
from tests.server_readings import counters
from tests.waiting import eventually
from triton_sam import SAM2TritonClient
from triton_sam.client import wire
from triton_sam.client.transport import Transport, connect
from triton_sam.core.masks import FORMATS, decode, unpack_bits
from triton_sam.errors import Cancelled, ImageExpired, InvalidInput, TritonSamError, Unsupported
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
PICTURE = scene()
PNG = png(PICTURE)
BLUE, YELLOW = [90, 130, 150, 170], [10, 190, 70, 230]
ALL = ("result_json", "image_key", "masks", "scores", "low_res_logits")
WAYS = ("HTTP", "gRPC", "service")


@pytest.fixture(
    scope="module", params=[1, pytest.param(3, marks=pytest.mark.part("devices"))], ids=["one process", "workers"]
)
def running(
    request: pytest.FixtureRequest, embedded_server: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    """One process that does everything; or three before two workers, each told that it is a device of its own."""
    folder = tmp_path_factory.mktemp("concepts")
    repository = write_analytic_concepts(folder / "repository", folder / "graphs")
    arrangement = {} if request.param == 1 else {"processes": "3", "devices": "cpu,cpu", "threads": "1"}
    with server_factory(repository, analytic_spec(), tmp_path_factory)(**arrangement) as started:
        yield started


@contextlib.contextmanager
def connected(running: RunningServer, protocol: str = "HTTP") -> Iterator[Transport]:
    transport = connect(wire.Address.parse(running.urls[protocol]), 60.0, {})
    try:
        yield transport
    finally:
        transport.close()


def call(inputs: dict[str, Any], outputs: Sequence[str] = ("result_json",), **parameters: Any) -> wire.Call:
    return wire.Call("sam2", inputs, tuple(outputs), parameters)


def ask(
    running: RunningServer,
    document: dict[str, Any],
    *,
    image: bytes | str = PNG,
    outputs: Sequence[str] = ALL,
    protocol: str = "HTTP",
    **parameters: Any,
) -> dict[str, Any]:
    """The tensors of an answer, and ``result_json`` parsed under ``json``."""
    make: Any = wire.click_inputs if isinstance(image, str) else wire.prompt_inputs
    with connected(running, protocol) as transport:
        answer = transport.infer(call(make(image, document), outputs, **parameters))
    return {**answer, "json": json.loads(wire.text_of(answer, "result_json"))}


def failure(running: RunningServer, document: dict[str, Any], **how: Any) -> TritonSamError:
    with pytest.raises(TritonSamError) as caught:
        ask(running, document, **how)
    return caught.value


def encoded(running: RunningServer, image: bytes) -> str:
    with SAM2TritonClient(running.urls["HTTP"]) as client:
        return client.set_image(image)


def assert_found(answer: dict[str, Any], concept: int, picture: Image.Image = PICTURE, **wanted: Any) -> None:
    """Compares the instances of one concept, and their order, with what is in the picture."""
    expected = expected_instances(picture, **wanted)
    entries = answer["json"]["masks"]
    mine = [index for index, entry in enumerate(entries) if entry["concept"] == concept]
    told = answer["json"]["concepts"][concept]
    assert (told["found"], told["returned"], len(mine)) == (len(expected),) * 3
    masks = unpack_bits(answer["masks"], picture.width)
    for index, instance in zip(mine, expected, strict=True):
        assert entries[index]["score"] == pytest.approx(instance.score, abs=1e-5)
        assert answer["scores"][index, 0] == np.float32(entries[index]["score"])
        assert entries[index]["box"] == pytest.approx(instance.box, abs=2e-3)
        clear = np.abs(instance.logits) > 1e-2
        assert (masks[index] == (instance.logits > 0))[clear].all()


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
def test_words_and_examples(running: RunningServer, protocol: str) -> None:
    answer = ask(running, {"text": ["yellow", "green", "red"], "format": "bits"}, protocol=protocol)
    for concept, text in enumerate(("yellow", "green", "red")):
        assert_found(answer, concept, text=text)
    assert [entry["concept"] for entry in answer["json"]["masks"]] == [0, 2, 2, 2]
    assert answer["low_res_logits"].shape == (4, 1, TRAITS.mask_side, TRAITS.mask_side)
    answer = ask(running, {"exemplars": [BLUE], "format": "rle"}, protocol=protocol)
    assert_found(answer, 0, exemplars=[BLUE])
    assert answer["json"]["concepts"][0]["text"] is None
    for entry, packed in zip(answer["json"]["masks"], unpack_bits(answer["masks"], PICTURE.width), strict=True):
        np.testing.assert_array_equal(decode(entry), packed)
    both = {"text": "red", "exemplars": [BLUE, YELLOW], "exemplar_labels": [1, 0]}
    answer = ask(running, {"concepts": [{"text": "blue"}, both], "format": "png"}, protocol=protocol)
    assert_found(answer, 0, text="blue")
    assert_found(answer, 1, text="red", exemplars=[BLUE, YELLOW], labels=[1, 0])
    assert {"encode", "text", "detect", "queue", "total"} - set(answer["json"]["timings_ms"]) <= {"encode"}


@pytest.mark.parametrize("protocol", ["HTTP", "gRPC"])
@pytest.mark.parametrize("form", FORMATS)
def test_nothing_found(running: RunningServer, protocol: str, form: str) -> None:
    answer = ask(running, {"text": "green", "format": form}, protocol=protocol)
    assert answer["json"]["masks"] == []
    assert not {"mask", "score"} & set(answer["json"])
    told = answer["json"]["concepts"][0]
    assert (told["text"], told["found"], told["returned"]) == ("green", 0, 0)
    assert 0 <= told["presence"] < 0.5
    assert answer["masks"].shape == (0, PICTURE.height, PICTURE.width // 8)
    assert answer["scores"].shape == (0, 1)
    assert answer["low_res_logits"].shape == (0, 1, TRAITS.mask_side, TRAITS.mask_side)


@pytest.mark.parametrize("way", WAYS)
def test_the_client(running: RunningServer, way: str) -> None:
    with SAM2TritonClient(running.urls[way]) as client:
        client.set_image(PNG)
        found = client.segment(text="red")
        expected = expected_instances(PICTURE, "red")
        assert found.masks.scores == pytest.approx([instance.score for instance in expected], abs=1e-5)
        assert [mask.sum() for mask in found.masks.masks] == [(each.logits > 0).sum() for each in expected]
        assert len(client.segment(text="green").masks) == 0
        assert len(client.segment([(40, 30)]).masks) == 1, "clicks go on"


def test_one_key_serves_clicks_and_words(running: RunningServer) -> None:
    picture = scene(200, 300)
    before = counters(running, "sam2")
    key = encoded(running, png(picture))
    assert ask(running, {"points": [[20, 20]]}, image=key, outputs=("result_json",))["json"]["score"] > 0.8
    answer = ask(running, {"text": ["red", "blue"]}, image=key)
    assert answer["json"]["image_key"] == key
    assert_found(answer, 0, picture, text="red")
    assert_found(answer, 1, picture, text="blue")
    after = counters(running, "sam2")
    done = {name: after[name] - before.get(name, 0) for name in ("encodes_total", "decodes_total", "concepts_total")}
    assert done == {"encodes_total": 1, "decodes_total": 1, "concepts_total": 2}
    assert after["concept_instances_total"] - before.get("concept_instances_total", 0) == 5
    assert after["concept_microseconds_total"] > before.get("concept_microseconds_total", 0)
    assert isinstance(failure(running, {"text": "red"}, image="0" * 64), ImageExpired)


def test_scores_maxima_and_cleaning(running: RunningServer) -> None:
    told = ask(running, {"text": "red", "max_instances": 1})["json"]
    assert (told["concepts"][0]["found"], told["concepts"][0]["returned"], len(told["masks"])) == (3, 1, 1)
    assert_found(ask(running, {"text": "red", "score_threshold": 0.9}), 0, text="red", threshold=0.9)
    everything = ask(running, {"text": "green", "score_threshold": 0})["json"]
    assert len(everything["masks"]) == TRAITS.queries, "each query has a score above 0, and some have no pixel"
    cleaned = ask(running, {"text": "red", "clean": {"holes": 5, "islands": 5}, "format": "rle"})
    assert cleaned["json"]["clean"] == {"holes": 5, "islands": 5}
    assert_found(cleaned, 0, text="red")


def test_hostile_input(running: RunningServer) -> None:
    for refusal in REFUSALS:
        for protocol in ("HTTP", "gRPC"):
            error = failure(running, dict(refusal.prompt), protocol=protocol)
            assert isinstance(error, InvalidInput), (refusal.prompt, error)
            assert str(error) == refusal.sentence
    embedding = {"embedding": np.zeros((1, 256, 64, 64), np.float32)}
    prompt = {"prompt_json": wire.text_tensor(json.dumps({"text": "red", "image_size": [10, 10]}))}
    with connected(running) as transport, pytest.raises(InvalidInput, match="need the image or its image_key"):
        transport.infer(call(embedding | prompt))
    assert_found(ask(running, {"text": "red"}), 0, text="red")


def test_a_model_without_words_says_so(server: RunningServer) -> None:
    error = failure(server, {"text": "red"})
    assert isinstance(error, Unsupported)
    assert "not text or exemplars" in str(error)


def test_what_the_model_takes_is_told(running: RunningServer) -> None:
    with connected(running) as transport:
        about = json.loads(wire.text_of(transport.infer(call({}, about=True)), "result_json"))
    assert about["prompts"] == ["boxes", "everything", "masks", "points", "text"]


# -- order -----------------------------------------------------------------------------------------------------------


def slow_key(running: RunningServer, shade: int) -> str:
    """An encoded picture on which each call of the detector takes :data:`SLOW_CONCEPT` seconds, and a click less."""
    picture = scene()
    picture.putpixel((319, 239), (shade, 0, 0))
    return encoded(running, png(slowed(picture)))


def outcome(running: RunningServer, document: dict[str, Any], **how: Any) -> dict[str, Any] | TritonSamError:
    try:
        return ask(running, document, outputs=("result_json",), **how)
    except TritonSamError as error:
        return error


def test_clicks_do_not_wait_for_words(running: RunningServer) -> None:
    key = slow_key(running, 1)
    point = {"points": [[30, 20]]}
    seconds = []
    with ThreadPoolExecutor(1) as pool:
        words = pool.submit(outcome, running, {"text": ["red", "blue", "yellow", "green"] * 2}, image=key)
        while not words.done():
            begun = time.perf_counter()
            assert not isinstance(outcome(running, point, image=key), TritonSamError)
            seconds.append(time.perf_counter() - begun)
    assert not isinstance(words.result(), TritonSamError)
    assert len(seconds) >= 3
    assert np.median(seconds) < 2 * SLOW_CONCEPT


def test_cancelled_words_are_not_looked_for(running: RunningServer) -> None:
    key = slow_key(running, 2)
    before = counters(running, "sam2")
    with ThreadPoolExecutor(3) as pool:
        many = {"text": ["red"] * 16}
        doomed = [pool.submit(outcome, running, many, image=key, session_id="doomed") for _ in range(2)]
        spared = pool.submit(outcome, running, {"text": "red"}, image=key, session_id="spared")
        cancelled = 0

        def cancel() -> bool:
            nonlocal cancelled
            with connected(running) as transport:
                answer = transport.infer(call({}, cancel=True, session_id="doomed"))
            cancelled += json.loads(wire.text_of(answer, "result_json"))["cancelled"]
            return all(future.done() for future in doomed)

        eventually(cancel, "both requests cancelled")
    assert [type(future.result()) for future in doomed] == [Cancelled] * 2
    assert cancelled == 2
    assert not isinstance(spared.result(), TritonSamError)
    after = counters(running, "sam2")
    assert after["cancelled_total"] - before.get("cancelled_total", 0) == 2
    assert after["concepts_total"] - before.get("concepts_total", 0) < 2 * 16


def test_the_latest_words_win(running: RunningServer) -> None:
    key = slow_key(running, 3)
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(outcome, running, {"text": "red"}, image=key, session_id="typing", latest_wins=True)
            for _ in range(8)
        ]
        outcomes = [future.result() for future in asked]
    kinds = [type(each) for each in outcomes]
    assert set(kinds) == {dict, Cancelled}

"""Jobs whose prompts are words: each is a category, and other words are another job."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pycocotools.coco import COCO
from typer.testing import CliRunner

from tests.unit import concept_messages as concepts
from tests.unit.batch import fake_transport as fake
from tests.unit.client.test_concepts import Server
from tests.unit.service.helpers import SEGMENTERS, Fake, listening
from tests.unit.service.test_concepts import DEAF, REAL
from triton_sam import BatchJob
from triton_sam.batch.executors.segmenting import ModelServer, check_options, image_file, segment
from triton_sam.batch.records import ItemResult, SegmentOptions, WordOptions, Work
from triton_sam.cli import app
from triton_sam.client.wire import Call, Outputs, text_of
from triton_sam.core.rle import from_rle
from triton_sam.errors import InvalidInput, NotFound
from triton_sam.server.host import free_port
from triton_sam.settings import get_settings

TEXTS = ("spoon", "zebra", "coin")


class WordServer(Server):
    """Also takes an image with its words."""

    def infer(self, call: Call) -> Outputs:
        if "image" in call.inputs and "prompt_json" in call.inputs:
            self.calls.append(call)
            key = f"key of {len(self.images)}"
            self.images[key] = call.inputs["image"].tobytes()
            return concepts.answer(call, image_key=key)
        return super().infer(call)


# one image


def asked(server: WordServer, words: WordOptions, clean: int | None = None) -> ItemResult:
    options = SegmentOptions("sam3", clean=clean, words=words)
    link = ModelServer("localhost:1", "sam3", transport=server)
    size = (concepts.WIDTH, concepts.HEIGHT)
    return segment(Work(fake.work(0).item), image_file(b"a picture"), options, link, size=size)


def documents(server: WordServer) -> list[dict[str, Any]]:
    return [json.loads(text_of(call.inputs, "prompt_json")) for call in server.calls]


def test_instances_are_records_of_categories() -> None:
    server = WordServer()
    result = asked(server, WordOptions(TEXTS, 0.3, 2), clean=8)
    assert documents(server) == [
        {
            "concepts": [{"text": text} for text in TEXTS],
            "format": "rle",
            "score_threshold": 0.3,
            "max_instances": 2,
            "clean": {"holes": 8, "islands": 8},
        }
    ]
    assert server.calls[0].parameters["background"] is True
    assert [mask.category_id for mask in result.masks] == [1, 3, 3]
    boxes = [box for box, _ in [*concepts.WORLD["spoon"], *concepts.WORLD["coin"][:2]]]
    for mask, box in zip(result.masks, boxes, strict=True):
        assert np.array_equal(from_rle(mask.segmentation), concepts.mask_of(box))
    assert [mask.score for mask in result.masks] == [0.625, 0.93, 0.75]
    assert result.model == "sam3:shapes"


def test_many_words_go_in_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_settings(), "max_concepts", 2)
    server = WordServer()
    result = asked(server, WordOptions(("a1", "coin", "a3", "a4", "spoon")))
    assert [[one["text"] for one in document["concepts"]] for document in documents(server)] == [
        ["a1", "coin"],
        ["a3", "a4"],
        ["spoon"],
    ]
    assert ["image" if "image" in call.inputs else "key" for call in server.calls] == ["image", "key", "key"]
    assert [mask.category_id for mask in result.masks] == [2, 2, 5]


@pytest.mark.parametrize(("most", "sent"), [(None, [1, 1, 1]), (2, [3])])
def test_large_images_have_fewer_words_in_a_request(
    most: int | None, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the instances of each have room."""
    monkeypatch.setattr(get_settings(), "max_answer_pixels", 150 * concepts.WIDTH * concepts.HEIGHT)
    server = WordServer()
    asked(server, WordOptions(TEXTS, max_instances=most))
    assert [len(document["concepts"]) for document in documents(server)] == sent


def test_instances_that_a_server_does_not_send_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    class Short(WordServer):
        def infer(self, call: Call) -> Outputs:
            outputs = dict(super().infer(call))
            result = json.loads(text_of(outputs, "result_json"))
            result["concepts"][0] |= {"found": 312}
            outputs["result_json"] = np.array([json.dumps(result).encode()], object)
            return outputs

    server = Short()
    options = SegmentOptions("sam3", words=WordOptions(("coin",)))
    link = ModelServer("localhost:1", "sam3", transport=server)
    with caplog.at_level(logging.WARNING):
        for words in (WordOptions(("coin",), max_instances=2), options.words, options.words):
            work = Work(fake.work(0).item)
            segment(work, image_file(b"x"), SegmentOptions("sam3", words=words), link, size=(11, 5))
    assert [record.getMessage().split(", as its")[0] for record in caplog.records] == [
        f"{fake.work(0).item.name}: localhost:1 has found 312 of 'coin' and sends the best 2"
    ]


def test_words_are_checked_before_an_image_is_read() -> None:
    for words in (WordOptions(("",)), WordOptions(("coin",), 2.0), WordOptions(("coin",), None, 0)):
        with pytest.raises(InvalidInput):
            check_options(SegmentOptions("sam3", words=words))


# whole jobs


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, str]]:
    service = Fake(segmenters={**SEGMENTERS, "sam3": REAL})
    with listening(service) as port:
        yield service, f"http://127.0.0.1:{port}"


@pytest.fixture
def server(shared: tuple[Fake, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WordServer:
    service, url = shared
    server = WordServer()
    service.transport.answer = server.infer
    monkeypatch.setenv("TRITON_URL", url)
    get_settings.cache_clear()
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for number in range(3):
        Image.new("RGB", (concepts.WIDTH, concepts.HEIGHT), (number, 90, 90)).save(f"photos/{number}.png")
    return server


def test_a_job_with_a_category_for_each_text(server: WordServer) -> None:
    job = BatchJob("photos", "job", text=TEXTS, save=["coco", "labels", "overlays", "geojson"])
    assert job.run().done == 3
    assert {call.model for call in server.clicks} == {"sam3"}
    document = json.loads(Path("job/annotations.json").read_text())
    assert document["categories"] == [
        {"id": number, "name": text, "supercategory": "object"} for number, text in enumerate(TEXTS, 1)
    ]
    assert [entry["category_id"] for entry in document["annotations"]] == [1, 3, 3] * 3
    known = COCO("job/annotations.json")
    mask = known.annToMask(known.loadAnns(known.getAnnIds(imgIds=[1], catIds=[1]))[0])
    assert np.array_equal(mask, concepts.mask_of(concepts.WORLD["spoon"][0][0]))
    with Image.open("job/labels/0.png") as picture:
        assert set(np.unique(np.asarray(picture))) == {0, 1, 2, 3}
    report = Path("job/report.html").read_text()
    for row in ("spoon</bdi></td><td class='count'>3</td><td class='count'>3", "zebra</bdi></td><td class='count'>0<"):
        assert row in report
    assert "spoon, zebra, coin" in report


def test_images_without_instances_are_ordinary(server: WordServer) -> None:
    assert BatchJob("photos", "job", text="zebra", save=["coco", "labels"]).run().failed == 0
    document = json.loads(Path("job/annotations.json").read_text())
    assert (len(document["images"]), document["annotations"]) == (3, [])
    assert [category["name"] for category in document["categories"]] == ["zebra"]
    with Image.open("job/labels/2.png") as picture:
        assert not np.asarray(picture).any()


def test_the_same_words_go_on_and_others_are_refused(server: WordServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the model that the job was begun with, whatever the server would choose now."""
    BatchJob("photos", "job", text=["coin"], score_threshold=0.3).run()
    Path("job/results/000000/000000001.json").unlink()
    server.calls.clear()
    with listening(Fake(segmenters=DEAF)) as port:
        job = BatchJob("photos", "job", text=" coin ", score_threshold=0.3, url=f"http://127.0.0.1:{port}")
        job._definition()
        assert job._options.model == "sam3"
    assert BatchJob("photos", "job", text="coin", score_threshold=0.3).run().done == 3
    assert len(server.clicks) == 1
    for other, told in (
        ({"text": "spoon", "score_threshold": 0.3}, 'text was "coin" and is "spoon"'),
        ({"text": "coin"}, "score threshold was 0.3 and is not given"),
        ({"everything": True, "model": "sam3"}, "everything mode was off and is on"),
    ):
        with pytest.raises(InvalidInput, match=f"the folder holds another job: .*{told}"):
            BatchJob("photos", "job", **other).run()  # type: ignore[arg-type]


def test_no_server_takes_text(server: WordServer) -> None:
    with listening(Fake(segmenters=DEAF)) as port, pytest.raises(NotFound, match="setup sam3"):
        BatchJob("photos", "job", text="coin", url=f"http://127.0.0.1:{port}").run()
    assert not list(Path("job").glob("results/*"))


def test_any_of_the_servers_may_have_the_model(server: WordServer) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with listening(Fake(segmenters=DEAF)) as port:
        deaf = f"http://127.0.0.1:{port}"
        job = BatchJob("photos", "job", text="coin", url=[nobody, deaf, get_settings().url])
        job._definition()
        assert job._options.model == "sam3"
        with pytest.raises(NotFound, match="setup sam3"):
            BatchJob("photos", "other", text="coin", url=[nobody, deaf])._definition()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"text": ""}, "text is empty"),
        ({"text": []}, "there is no text"),
        ({"text": ["coin", " coin"]}, "the text 'coin' is given twice"),
        ({"text": "coin", "everything": True}, "one of them"),
        ({"text": "coin", "score_threshold": 3}, "from 0 to 1"),
        ({"score_threshold": 0.3, "everything": True}, "add --text"),
        ({}, "say what to segment: --text"),
    ],
)
def test_what_is_wrong(options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        BatchJob(tmp_path, tmp_path / "job", **options)


def test_the_command(server: WordServer) -> None:
    words = ["--text", "coin", "--text", "spoon", "--score-threshold", "0.3", "--max-instances", "1"]
    done = CliRunner().invoke(app.app, ["batch", "photos", "--out", "job", *words])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    document = json.loads(Path("job/annotations.json").read_text())
    assert [entry["category_id"] for entry in document["annotations"]] == [1, 2] * 3
    again = CliRunner().invoke(app.app, ["batch", "photos", "--out", "job", "--text", "coin"])
    assert "the folder holds another job" in str(again.exception)

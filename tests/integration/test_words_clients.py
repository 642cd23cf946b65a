"""Words and examples by everything that a user has: both clients, Meta's names, a form, the command line, a batch."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.analytic import analytic_spec, png
from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import Expected, expected_instances, scene
from tests.conftest import server_factory
from triton_sam import BatchJob, ConceptPredictor, ConceptSegmentation, SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.cli import app
from triton_sam.client import masks_memory
from triton_sam.client.text_models import model_for_text
from triton_sam.core.masks import decode
from triton_sam.core.masks_memory import Place, received_shape
from triton_sam.core.rle import from_rle
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
PICTURE = scene()
PNG = png(PICTURE)
BLUE, YELLOW = [90, 130, 150, 170], [10, 190, 70, 230]
WAYS = ("HTTP", "gRPC", "service")
PROMPTS: dict[str, dict[str, Any]] = {
    "one text": {"text": "red"},
    "texts": {"text": ["yellow", "green", "red"], "score_threshold": 0.3},
    "examples": {"exemplars": np.array([BLUE])},
    "both": {"text": "red", "exemplars": [BLUE, YELLOW], "exemplar_labels": [1, 0], "max_instances": 2},
    "nothing": {"text": "green"},
}


@pytest.fixture(scope="module")
def running(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("words")
    repository = write_analytic_concepts(folder / "repository", folder / "graphs")
    with server_factory(repository, analytic_spec(), tmp_path_factory)() as started:
        yield started


def assert_equal(found: ConceptSegmentation, other: ConceptSegmentation) -> None:
    assert np.array_equal(found.masks.masks, other.masks.masks)
    assert np.array_equal(found.boxes, other.boxes)
    assert np.array_equal(found.scores, other.scores)
    assert found.names == other.names
    assert found.concepts == other.concepts


def assert_found(masks: Any, scores: Any, expected: list[Expected]) -> None:
    assert np.asarray(scores) == pytest.approx([instance.score for instance in expected], abs=1e-5)
    for mask, instance in zip(masks, expected, strict=True):
        clear = np.abs(instance.logits) > 1e-2
        assert (mask == (instance.logits > 0))[clear].all()


@pytest.mark.parametrize("prompt", PROMPTS)
def test_every_way_gives_the_same(running: RunningServer, prompt: str) -> None:
    wanted = PROMPTS[prompt]
    answers = []
    for way in WAYS:
        with SAM2TritonClient(running.urls[way]) as client:
            answers += [client.segment(image=PNG, **wanted), client.segment(**wanted, format="rle")]

        async def asked(url: str) -> ConceptSegmentation | None:
            async with SpeculativeSAM2Client(url) as client:
                found: ConceptSegmentation | None = await client.segment_async(image=PNG, **wanted)
                return found

        found = asyncio.run(asked(running.urls[way]))
        assert found is not None
        answers.append(found)
    for answer in answers[1:]:
        assert_equal(answer, answers[0])
    assert (len(answers[0]) == 0) == (prompt == "nothing")
    if prompt == "one text":
        assert_found(answers[0].masks.masks, answers[0].scores, expected_instances(PICTURE, "red"))


@pytest.mark.parametrize("way", ["HTTP", "gRPC"])
def test_large_masks_come_in_memory(running: RunningServer, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[tuple[int, ...] | None] = []

    def noted(masks: Any, place: Place) -> tuple[int, ...] | None:
        received.append(received_shape(masks, place))
        return received[-1]

    monkeypatch.setattr(masks_memory, "received_shape", noted)
    large = png(PICTURE.resize((2048, 1536), Image.Resampling.NEAREST))
    with SAM2TritonClient(running.urls[way]) as client:
        client.set_image(large)
        first, *later = (client.segment(text=["red", "yellow"]) for _ in range(3))
        assert len(first.masks.masks) > 1
        for found in later:
            assert_equal(found, first)
        assert received == [(len(first.masks.masks), 1536, 256)] * 2
        drawn = client.segment(text=["red", "yellow"], format="rle")
        assert np.array_equal(drawn.masks.masks, first.masks.masks)


def test_by_metas_names(running: RunningServer) -> None:
    with ConceptPredictor(running.urls["HTTP"], "sam2") as predictor:
        state = predictor.set_image(PICTURE)
        predictor.set_text_prompt("red", state)
        assert_found(state["masks"][:, 0], state["scores"], expected_instances(PICTURE, "red"))
        predictor.reset_all_prompts(state)
        width, height = PICTURE.size
        x0, y0, x1, y1 = BLUE
        box = [(x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height]
        predictor.add_geometric_prompt(box, True, state)
        assert_found(state["masks"][:, 0], state["scores"], expected_instances(PICTURE, exemplars=[BLUE]))
        predictor.set_confidence_threshold(0.999, state)
        assert len(state["scores"]) == 0


def test_a_form_with_a_file(running: RunningServer) -> None:
    boundary = "edge"
    fields = {"text": '["red", "blue"]', "format": "png", "score_threshold": "0.5"}
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    body = "".join(parts).encode() + head.encode() + PNG + f"\r\n--{boundary}--\r\n".encode()
    request = urllib.request.Request(
        f"{running.urls['service']}/v1/segment", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        answer = json.load(response)
    red = [entry for entry in answer["masks"] if entry["concept"] == 0]
    assert_found(
        [decode(entry) for entry in red], [entry["score"] for entry in red], expected_instances(PICTURE, "red")
    )
    assert [concept["text"] for concept in answer["concepts"]] == ["red", "blue"]


@pytest.mark.parametrize("way", WAYS)
def test_the_model_that_takes_text(running: RunningServer, way: str) -> None:
    assert model_for_text(running.urls[way]) == "sam2"


def test_the_command_line(running: RunningServer, tmp_path: Path) -> None:
    picture, result, overlay = (tmp_path / name for name in ("scene.png", "found.json", "overlay.png"))
    picture.write_bytes(PNG)
    words = ["--text", "red", "--text", "green", "--out", str(result), "--out", str(overlay)]
    done = CliRunner().invoke(app.app, ["segment", str(picture), *words, "--url", running.urls["HTTP"]])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    expected = expected_instances(PICTURE, "red")
    first, second, _ = done.output.splitlines()
    assert first.startswith(f"red: {len(expected)} found, numbers 1 to {len(expected)}, scores {expected[0].score:.2f}")
    assert second.startswith("green: nothing; presence 0.")
    entries = json.loads(result.read_text())["masks"]
    assert_found([from_rle(entry["rle"]) for entry in entries], [entry["score"] for entry in entries], expected)
    with Image.open(overlay) as drawn:
        assert drawn.size == PICTURE.size


def test_a_batch(running: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    scene(200, 300).save(tmp_path / "photos" / "a.png")
    Image.new("RGB", (64, 48), "white").save(tmp_path / "photos" / "b.png")
    job = BatchJob(tmp_path / "photos", tmp_path / "job", text=["red", "blue"], url=running.urls["HTTP"])
    summary = job.run()
    assert (summary.done, summary.failed) == (2, 0)
    document = json.loads((tmp_path / "job" / "annotations.json").read_text())
    assert [category["name"] for category in document["categories"]] == ["red", "blue"]
    by_category = [[entry for entry in document["annotations"] if entry["category_id"] == number] for number in (1, 2)]
    for entries, text in zip(by_category, ("red", "blue"), strict=True):
        masks = [from_rle(entry["segmentation"]) for entry in entries]
        assert_found(masks, [entry["score"] for entry in entries], expected_instances(scene(200, 300), text))
    assert {entry["image_id"] for entry in document["annotations"]} == {1}

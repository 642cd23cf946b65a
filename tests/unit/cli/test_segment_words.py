"""``triton-sam segment --text`` and ``--exemplar``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tests.unit import concept_messages as concepts
from tests.unit.client.memory_server import MemoryServer
from tests.unit.client.test_concepts import Server
from tests.unit.service.helpers import SEGMENTERS, Fake, listening
from tests.unit.service.test_concepts import REAL
from triton_sam.cli import app
from triton_sam.core.rle import from_rle

runner = CliRunner()


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Fake, str]]:
    fake = Fake(segmenters={**SEGMENTERS, "sam3": REAL})
    with listening(fake) as port:
        yield fake, f"http://127.0.0.1:{port}"


@pytest.fixture
def server(shared: tuple[Fake, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MemoryServer:
    """A service in front of a server in memory; the working folder is empty but for a picture."""
    fake, url = shared
    server = Server()
    fake.transport.answer = server.infer
    monkeypatch.setenv("TRITON_URL", url)
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (concepts.WIDTH, concepts.HEIGHT), (90, 90, 90)).save("photo.png")
    return server


def run(*words: str) -> str:
    done = runner.invoke(app.app, ["segment", "photo.png", *words])
    assert done.exit_code == 0, f"{done.output} {done.exception}"
    return done.output


def test_a_word(server: Server) -> None:
    assert run("--text", "coin") == (
        "coin: 2 found, numbers 1 to 2, scores 0.93 to 0.75; presence 0.97\n"
        "2 instance(s), 4 ms on the server: overlay.png\n"
    )
    with Image.open("overlay.png") as picture:
        assert picture.size == (concepts.WIDTH, concepts.HEIGHT)
    assert {call.model for call in server.calls} == {"sam3"}


def test_all_options_and_all_outputs(server: Server) -> None:
    names = ["found.json", "mask.png", "labels.png", "seen.png"]
    words = ["--text", "coin", "--text", "zebra", "--text", "spoon", "--score-threshold", "0.3", "--max-instances", "2"]
    output = run(*words, "--clean", "3", *(word for name in names for word in ("--out", name)))
    assert output.splitlines() == [
        "coin: 3 found, numbers 1 to 2, scores 0.93 to 0.75; presence 0.97",
        "zebra: nothing; presence 0.03",
        "spoon: 1 found, number 3, score 0.62; presence 0.97",
        "3 instance(s), 4 ms on the server: found.json, mask.png, labels.png, seen.png",
    ]
    prompt = concepts.prompt_of(server.clicks[0])
    assert (prompt["score_threshold"], prompt["max_instances"]) == (0.3, 2)
    assert prompt["clean"] == {"holes": 3, "islands": 3}
    result = json.loads(Path("found.json").read_text())
    assert [concept["text"] for concept in result["concepts"]] == ["coin", "zebra", "spoon"]
    assert [entry["concept"] for entry in result["masks"]] == [0, 0, 2]
    boxes = [*concepts.WORLD["coin"][:2], *concepts.WORLD["spoon"]]
    expected = [concepts.mask_of(box) for box, _ in boxes]
    assert [entry["box"] for entry in result["masks"]] == [list(box) for box, _ in boxes]
    assert [entry["score"] for entry in result["masks"]] == pytest.approx([score for _, score in boxes])
    assert np.array_equal([from_rle(entry["rle"]) for entry in result["masks"]], expected)
    with Image.open("mask.png") as picture:
        assert np.array_equal(np.asarray(picture) > 0, np.any(expected, axis=0))
    with Image.open("labels.png") as picture:
        labels = np.asarray(picture)
    assert set(np.unique(labels)) == {0, 1, 2, 3}
    assert np.array_equal(labels == 1, expected[0]), "the smallest is on top"
    assert (labels[expected[2] & ~expected[1]] == 3).all()


def test_all_that_is_found_is_told_if_one_is_wanted(server: Server) -> None:
    output = run("--text", "coin", "--score-threshold", "0.3", "--max-instances", "1")
    assert output.startswith("coin: 3 found, number 1, score 0.93; presence 0.97\n1 instance(s)")


def test_examples(server: Server) -> None:
    run("--exemplar", "0,0,2,2", "--exemplar", "3,1,5,4,0", "--model", "sam3")
    [concept] = concepts.prompt_of(server.clicks[0])["concepts"]
    assert concept == {"exemplars": [[0, 0, 2, 2], [3, 1, 5, 4]], "exemplar_labels": [1, 0]}
    run("--text", "coin", "--exemplar", "0,0,2,2,0")
    assert concepts.prompt_of(server.clicks[1])["concepts"][0]["text"] == "coin"


def test_nothing_is_found(server: Server) -> None:
    names = ["found.json", "mask.png", "labels.png", "seen.png"]
    output = run("--text", "zebra", *(word for name in names for word in ("--out", name)))
    assert output.startswith("zebra: nothing; presence 0.03\n0 instance(s)")
    assert json.loads(Path("found.json").read_text())["masks"] == []
    for name in ("mask.png", "labels.png"):
        with Image.open(name) as picture:
            assert picture.size == (concepts.WIDTH, concepts.HEIGHT)
            assert not np.asarray(picture).any()
    with Image.open("seen.png") as seen, Image.open("photo.png") as photo:
        assert np.array_equal(np.asarray(seen), np.asarray(photo))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--text", ""], "text is empty"),
        (["--text", "coin", "--point", "1,1"], "cannot be combined with --text or --exemplar"),
        (["--exemplar", "1,1,2,2", "--box", "1,1,2,2"], "cannot be combined"),
        (["--exemplar", "1,1,2"], "is not a --exemplar"),
        (["--exemplar", "1,1,2,2,7"], "its last number is 1 (like this) or 0"),
        (["--exemplar", "1,1,2,2,0"], "negative exemplars alone"),
        (["--text", "a", "--text", "b", "--exemplar", "1,1,2,2"], "ambiguous"),
        (["--score-threshold", "0.4", "--point", "1,1"], "are for words"),
        (["--text", "coin", "--score-threshold", "2"], "--score-threshold"),
        ([], "nothing to segment: give a"),
    ],
)
def test_what_is_wrong_is_not_asked(words: list[str], sentence: str, server: MemoryServer) -> None:
    done = runner.invoke(app.app, ["segment", "photo.png", *words])
    assert done.exit_code != 0
    assert sentence in f"{done.output} {done.exception}"
    assert server.calls == []


def test_a_server_without_words(
    shared: tuple[Fake, str], server: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(Fake()) as port:
        monkeypatch.setenv("TRITON_URL", f"http://127.0.0.1:{port}")
        done = runner.invoke(app.app, ["segment", "photo.png", "--text", "coin", "--url", f"http://127.0.0.1:{port}"])
    assert "takes text: set one up there with `triton-sam setup sam3`" in str(done.exception)

"""Words and examples that are refused on the real server: one sentence, and the right status, by every way a user has.

What Triton itself is asked is in :mod:`.test_concepts`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.analytic import analytic_spec, png
from tests.analytic_concept_graphs import write_analytic_concepts
from tests.analytic_concepts import scene
from tests.concept_refusals import REFUSALS, Refusal
from tests.conftest import server_factory
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client
from triton_sam.cli.app import main
from triton_sam.errors import InvalidInput, NotFound, Unsupported
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
PICTURE = scene()
PNG = png(PICTURE)
WAYS = ("HTTP", "gRPC", "service")
#: What a model without words is asked.
DEAF = ({"text": "red"}, {"exemplars": [[9, 9, 20, 20]]}, {"concepts": [{"text": "red"}]})


@pytest.fixture(scope="module")
def running(embedded_server: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("refused")
    repository = write_analytic_concepts(folder / "repository", folder / "graphs")
    with server_factory(repository, analytic_spec(), tmp_path_factory)() as started:
        yield started


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    file = tmp_path / "scene.png"
    file.write_bytes(PNG)
    return file


# -- Python ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_clients(running: RunningServer, way: str) -> None:
    async def asked(prompt: Mapping[str, Any]) -> str:
        async with SpeculativeSAM2Client(running.urls[way]) as client:
            with pytest.raises(InvalidInput) as caught:
                await client.segment_async(image=PNG, **prompt)
            return str(caught.value)

    with SAM2TritonClient(running.urls[way]) as client:
        for refusal in REFUSALS:
            with pytest.raises(InvalidInput) as caught:
                client.segment(image=PNG, **refusal.prompt)
            expected = refusal.python or refusal.sentence
            assert [str(caught.value), asyncio.run(asked(refusal.prompt))] == [expected] * 2
        assert len(client.segment(text="red")) == 3, "the server goes on"


# -- the service -----------------------------------------------------------------------------------------------------


def answered(url: str, prompt: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    """The status and the error of a request; NaN and the like are sent as Python writes them."""
    body = json.dumps({"image": base64.b64encode(PNG).decode(), **prompt})
    with httpx.Client(trust_env=False, timeout=60) as client:
        answer = client.post(f"{url}/v1/segment", content=body, headers={"content-type": "application/json"})
    return answer.status_code, answer.json()["error"]


def test_the_service(running: RunningServer) -> None:
    for refusal in REFUSALS:
        status, error = answered(running.urls["service"], refusal.prompt)
        assert (status, error["code"], error["message"]) == (400, "invalid_input", refusal.sentence)


# -- the command line ------------------------------------------------------------------------------------------------


def words_of(prompt: Mapping[str, Any]) -> list[str]:
    """The options of ``triton-sam segment`` for a prompt."""
    texts, labels = prompt.get("text", []), prompt.get("exemplar_labels", ())
    words = [word for text in ([texts] if isinstance(texts, str) else texts) for word in ("--text", text)]
    for index, box in enumerate(prompt.get("exemplars", ())):
        words += ["--exemplar", ",".join(map(str, [*box, *labels[index : index + 1]]))]
    for point in prompt.get("points", ()):
        words += ["--point", ",".join(map(str, point))]
    if "box" in prompt:
        words += ["--box", ",".join(map(str, prompt["box"]))]
    for name in ("score_threshold", "max_instances"):
        words += [f"--{name.replace('_', '-')}", str(prompt[name])] if name in prompt else []
    return words


def run(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """(exit code, what stderr has) of a command, without a server's address in the environment."""
    monkeypatch.setattr(sys, "argv", ["triton-sam", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capsys.readouterr()
    assert captured.out == ""
    return ended.value.code, captured.err


@pytest.mark.parametrize("way", ["HTTP", "service"])
def test_the_command_line(
    running: RunningServer, way: str, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(picture.parent)
    asked: list[Refusal] = [refusal for refusal in REFUSALS if refusal.shell is not None]
    assert len(asked) > 20
    for refusal in asked:
        command = ["segment", picture.name, *words_of(refusal.prompt), "--url", running.urls[way]]
        code, said = run(command, monkeypatch, capsys)
        if "Invalid value" in (refusal.shell or ""):
            assert code == 2
            assert refusal.shell in said
        else:
            assert (code, said) == (1, f"error: {refusal.shell or refusal.sentence}\n")
    assert [file.name for file in picture.parent.iterdir()] == [picture.name], "nothing is written"


def test_a_batch(
    running: RunningServer, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only the server knows is the reason why each image fails."""
    monkeypatch.chdir(picture.parent)
    known = ({"text": ""}, {"text": ["red"] * 2}, {"text": "red\x00bus"}, {"text": "a" * 10_000})
    sentences = [next((each.sentence for each in REFUSALS if each.prompt == prompt), "twice") for prompt in known]
    command = ["batch", picture.name, "--out", "job", "--url", running.urls["HTTP"]]
    for prompt, sentence in zip(known, sentences, strict=True):
        code, said = run([*command, *words_of(prompt)], monkeypatch, capsys)
        assert code == 1
        assert said.startswith("error: ")
        assert sentence in said
        assert not Path("job").exists()
    monkeypatch.setattr(sys, "argv", ["triton-sam", *command, "--text", "red blue " * 10])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "has 22 tokens, start and end included, and 12 are the most: use fewer words" in capsys.readouterr().out


# -- a model without words -------------------------------------------------------------------------------------------

WITHOUT = (
    "sam2:tiny takes points, boxes and masks, not text or exemplars: set up a model that does, for example "
    "with `triton-sam setup sam3`"
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("prompt", DEAF, ids=str)
def test_a_model_without_words(server: RunningServer, way: str, prompt: dict[str, Any]) -> None:
    with SAM2TritonClient(server.urls[way]) as client:
        with pytest.raises(Unsupported) as caught:
            client.segment(image=PNG, **prompt)
        assert str(caught.value) == WITHOUT
    status, error = answered(server.urls["service"], {"model": "sam2", **prompt})
    assert (status, error["code"], error["message"]) == (422, "unsupported", WITHOUT)


def test_commands_for_a_model_without_words(
    server: RunningServer, picture: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["segment", str(picture), "--text", "red", "--url", server.urls["HTTP"]]
    assert run([*command, "--model", "sam2"], monkeypatch, capsys) == (1, f"error: {WITHOUT}\n")
    code, said = run(command, monkeypatch, capsys)
    assert code == 1
    assert said.startswith("error: it serves sam2, and no model at ")
    assert "takes text: set one up there with `triton-sam setup sam3`" in said
    assert said.count("\n") == 1
    with SAM2TritonClient(server.urls["HTTP"], "sam3") as client, pytest.raises(NotFound, match="sam3"):
        client.segment(image=PNG, text="red")

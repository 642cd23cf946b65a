"""What vision-language models say through the real Triton is what they say without it, whichever way they are asked."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http

from tests.integration.vlm_serving import (
    SCHEMES,
    Reference,
    Says,
    figure,
    generate_stream,
    picture,
    png,
    serving_vlms,
)
from triton_sam.client.vlm_client import AsyncTritonVLMClient, TritonVLMClient
from triton_sam.errors import InvalidInput, NotFound, TooLarge, TritonSamError
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.torch]
#: Each model that is asked loads torch in a process of its own: for every commit one has to do.
NAMES = ("llava", *(pytest.param(name, marks=pytest.mark.part("vlm")) for name in ("kosmos2", "moondream2")))
ASKED = ("What is it?", "Describe the whole image in detail, please, and do not be brief", "Hm", "Is it a dog?")
TOKENS = 24
#: On a busy machine four at once may come too far apart for one batch.
TRIES = 4
#: Scenes that the little model has not seen.
SCENES = 200


@pytest.fixture(scope="module", params=[*SCHEMES, "service"])
def client(request: pytest.FixtureRequest, vlm_server: RunningServer) -> Iterator[TritonVLMClient]:
    with TritonVLMClient(vlm_server.urls[request.param]) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
def test_a_client_gets_what_the_network_says(name: str, client: TritonVLMClient, says: Says) -> None:
    image, text = picture(1), ASKED[0]
    expected = says[name](image, text, TOKENS)
    assert len(expected) > 8, "nothing would be compared"
    assert client.infer(name, png(image), text, max_new_tokens=TOKENS) == expected
    pieces = list(client.stream(f"vlm:{name}", png(image), text, max_new_tokens=TOKENS))
    assert "".join(pieces) == expected
    assert len(pieces) > 1 or (name == "moondream2" and " " not in expected), "word by word"


@pytest.mark.parametrize("name", NAMES)
def test_plain_kserve_without_our_client(name: str, vlm_server: RunningServer, says: Says) -> None:
    """One request and one answer at ``NAME``; server-sent events at ``NAME_stream``."""
    image, text = png(picture(2)), ASKED[1]
    expected = says[name](picture(2), text, TOKENS)
    inputs = [
        tritonclient.http.InferInput("image", [len(image)], "UINT8"),
        tritonclient.http.InferInput("prompt", [1], "BYTES"),
        tritonclient.http.InferInput("max_new_tokens", [1], "INT32"),
    ]
    values = (np.frombuffer(image, np.uint8), np.array([text.encode()], object), np.array([TOKENS], np.int32))
    for tensor, value in zip(inputs, values, strict=True):
        tensor.set_data_from_numpy(value)
    address = f"{vlm_server.reach}:{vlm_server.ports.http}"
    with contextlib.closing(tritonclient.http.InferenceServerClient(address)) as plain:
        result = plain.infer(name, inputs)
    assert result.as_numpy("generated_text")[0].decode() == expected
    assert result.as_numpy("finish_reason")[0] in (b"stop", b"length")
    assert json.loads(result.as_numpy("usage_json")[0])["completion_tokens"] > 0

    asked = {"image_b64": base64.b64encode(image).decode(), "prompt": text, "max_new_tokens": TOKENS}
    events = generate_stream(vlm_server, name, asked)
    assert "".join(event["generated_text"] for event in events) == expected
    assert [event["finish_reason"] != "" for event in events] == [False] * (len(events) - 1) + [True]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", NAMES)
def test_four_at_once_are_one_batch_and_say_what_each_says_alone(
    name: str, scheme: str, vlm_server: RunningServer, says: Says
) -> None:
    counts = (TOKENS, 5, 1, 16)
    cases = [(picture(at), text, count) for at, (text, count) in enumerate(zip(ASKED, counts, strict=True))]

    async def ask() -> list[str]:
        async with AsyncTritonVLMClient(vlm_server.urls[scheme]) as client:
            await client.infer(name, png(picture(9)), "Load", max_new_tokens=1)
            # The code of moondream2 takes one at a time.
            wanted = len(cases) if name == "moondream2" else 1
            for _ in range(TRIES):
                before = {key: figure(vlm_server, name, key) for key in ("batches", "questions")}
                asked = (client.infer(name, png(image), text, max_new_tokens=count) for image, text, count in cases)
                answers = await asyncio.gather(*asked)
                assert figure(vlm_server, name, "questions") - before["questions"] == len(cases)
                batches = figure(vlm_server, name, "batches") - before["batches"]
                if batches == wanted:
                    break
            assert batches == wanted
            return answers

    answers = asyncio.run(ask())
    assert answers == [says[name](image, text, count) for image, text, count in cases]
    assert len(set(answers)) > 2, "nothing would be compared"


def test_a_conversation(client: TritonVLMClient, says: Says) -> None:
    turns = ("What is it?", "a dog", "And its colour?")
    roles = ("user", "assistant", "user")
    told = [{"role": role, "content": text} for role, text in zip(roles, turns, strict=True)]
    image = picture(3)
    assert client.infer("llava", png(image), told, max_new_tokens=TOKENS) == says["llava"](image, turns, TOKENS)


@pytest.mark.part("vlm")
def test_a_model_without_conversations(client: TritonVLMClient) -> None:
    told = [{"role": role, "content": "What?"} for role in ("user", "assistant", "user")]
    with pytest.raises(InvalidInput, match="one question at a time"):
        client.infer("moondream2", png(picture(3)), told)


# -- grounding ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grounding(
    embedded_server: None, grounded_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    with serving_vlms(tmp_path_factory.mktemp("grounding"), {"vlm:kosmos2": grounded_folder}) as running:
        yield running


@pytest.mark.part("vlm")
def test_phrases_have_boxes_in_original_pixels(grounding: RunningServer, grounded_folder: Path) -> None:
    from transformers import AutoProcessor

    from tests.vlm_checkpoints import GROUNDED_PROMPT

    image = picture(4, size=(310, 120))
    width, height = image.size
    said = Reference(grounded_folder).decoded(image, GROUNDED_PROMPT, 64)
    text, found = AutoProcessor.from_pretrained(grounded_folder).post_process_generation(said)
    assert [phrase for phrase, _, _ in found] == ["a red ball", "a dog"]
    for scheme in SCHEMES:
        with TritonVLMClient(grounding.urls[scheme]) as client:
            answer = client.answer("kosmos2", png(image), GROUNDED_PROMPT)
        assert answer.text == text == "a red ball by a dog."
        assert answer.finish_reason == "stop"
        for entity, (phrase, _, boxes) in zip(answer.entities, found, strict=True):
            assert entity.phrase == phrase
            assert entity.span is not None
            assert answer.text[slice(*entity.span)] == phrase
            expected = np.array(boxes) * [width, height, width, height]  # Kosmos-2 squeezes the image, and cuts nothing
            np.testing.assert_allclose(entity.boxes, expected, atol=0.01)
    events = generate_stream(grounding, "kosmos2", {"image_b64": base64.b64encode(png(image)).decode(), "prompt": "x"})
    assert "entities_json" in events[-1]
    assert all("entities_json" not in event for event in events[:-1])


# -- a model that was trained ------------------------------------------------------------------------------------


@pytest.mark.part("vlm")
def test_shapes_knows_scenes_that_it_has_not_seen(
    vlm_server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    from training.shapes.evaluate import held_out
    from training.shapes.scenes import draw

    cases = [(png(draw(scene)), question) for scene, question in held_out(SCENES)]

    async def ask_all() -> list[str]:
        async with AsyncTritonVLMClient(vlm_server.urls["gRPC"]) as client:
            turn = asyncio.Semaphore(16)

            async def ask(image: bytes, text: str) -> str:
                async with turn:
                    return await client.infer("shapes", image, text)

            return await asyncio.gather(*(ask(image, question.text) for image, question in cases))

    answers = asyncio.run(ask_all())
    wrong = [(q.text, said, q.answer) for (_, q), said in zip(cases, answers, strict=True) if said != q.answer]
    share = 1 - len(wrong) / SCENES
    with capsys.disabled():
        batches = figure(vlm_server, "shapes", "batches")
        print(f" [shapes: {share:.1%} of {SCENES} right, {batches} batches]", end="")  # noqa: T201
    assert share >= 0.95, wrong[:5]


# -- options -----------------------------------------------------------------------------------------------------


def test_an_answer_is_cut_and_stopped(client: TritonVLMClient, says: Says) -> None:
    image, text = png(picture(1)), ASKED[0]
    whole = says["llava"](picture(1), text, TOKENS)
    short = client.answer("llava", image, text, max_new_tokens=3)
    assert (short.finish_reason, short.completion_tokens) == ("length", 3)
    assert short.text == says["llava"](picture(1), text, 3)
    word = whole[6:8]
    stopped = client.answer("llava", image, text, max_new_tokens=TOKENS, stop=[word, "never said"])
    assert stopped.finish_reason == "stop"
    assert stopped.text == whole[: whole.index(word)].rstrip()
    assert stopped.prompt_tokens > len(text)


@pytest.mark.part("vlm")
def test_a_seed_draws_the_same_in_any_company(vlm_server: RunningServer) -> None:
    image = png(picture(1))
    drawn: dict[str, Any] = {"temperature": 1.0, "top_p": 0.95, "max_new_tokens": TOKENS}

    async def ask(scheme: str) -> tuple[str, list[str]]:
        async with AsyncTritonVLMClient(vlm_server.urls[scheme]) as client:
            alone = await client.infer("llava", image, ASKED[0], seed=7, **drawn)
            others = [client.infer("llava", png(picture(2)), ASKED[1], seed=seed, **drawn) for seed in (7, 8)]
            greedy = client.infer("llava", image, ASKED[0], max_new_tokens=TOKENS)
            return alone, await asyncio.gather(
                client.infer("llava", image, ASKED[0], seed=7, **drawn),
                client.infer("llava", image, ASKED[0], seed=8, **drawn),
                *others,
                greedy,
            )

    results = {scheme: asyncio.run(ask(scheme)) for scheme in SCHEMES}
    assert results["HTTP"] == results["gRPC"]
    alone, together = results["HTTP"]
    assert together[0] == alone
    assert len({alone, *together}) == 5, "every other seed, question and temperature says something else"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"max_new_tokens": 0}, InvalidInput, "max_new_tokens is a number from 1 to"),
        ({"max_new_tokens": 10**6}, InvalidInput, "max_new_tokens is a number from 1 to"),
        ({"temperature": -0.5}, InvalidInput, "temperature is a number from 0 to 2"),
        ({"temperature": float("nan")}, InvalidInput, "temperature is a finite number"),
        ({"top_p": 0.0}, InvalidInput, "top_p is a number above 0"),
        ({"stop": ["x"] * 9}, InvalidInput, "stop has at most 8"),
        ({"prompt": " "}, InvalidInput, "the prompt is empty"),
        ({"prompt": "What is <image>?"}, InvalidInput, "remove it from the text"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, InvalidInput, "must alternate"),
        ({"prompt": "x" * 40_000}, TooLarge, "40,000 bytes and 32,768 are allowed"),
        ({"prompt": "x" * 2_000}, InvalidInput, "tokens with its image, and the model reads 1024"),
        ({"image": b"no image"}, InvalidInput, "image"),
        ({"model_name": "flamingo"}, NotFound, "does not serve flamingo, but .*llava.*: choose one of these"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_refusals_are_one_sentence(
    client: TritonVLMClient,
    options: dict[str, Any],
    error: type[TritonSamError],
    words: str,
    request: pytest.FixtureRequest,
) -> None:
    asked = {"model_name": "llava", "image": png(picture(1)), "prompt": "What?", **options}
    with pytest.raises(error) as refused:
        client.infer(**asked)
    assert type(refused.value) is error
    if "service" not in request.node.name:  # it has words of its own, and the same kinds of errors
        assert re.search(words, str(refused.value))
    assert "\n" not in str(refused.value)
    assert not str(refused.value).endswith("]"), "marks of the wire are taken off"


def test_the_door_and_the_events_refuse_as_well(vlm_server: RunningServer) -> None:
    """Over plain KServe the same sentence comes with a status, or as an event where there is none."""
    asked = {"image_b64": base64.b64encode(png(picture(1))).decode(), "prompt": " "}
    events = generate_stream(vlm_server, "llava", asked)
    assert "the prompt is empty: send a question" in events[-1]["error"]
    inputs = [{"name": name, "shape": [1], "datatype": "BYTES", "data": [text]} for name, text in asked.items()]
    address = f"{vlm_server.urls['HTTP']}/v2/models/llava/infer"
    answer = httpx.post(address, json={"inputs": inputs}, timeout=30, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("the prompt is empty: send a question")

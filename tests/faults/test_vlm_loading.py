"""How vision-language models come into memory and leave it: once for many, in turn, or not at all.

What cannot be loaded is told in one sentence, and the others serve on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from pathlib import Path

import httpx
import pytest

from tests.faults.test_vlm_faults import QUESTION, TOLD_WITHIN, chat, told_quickly
from tests.integration.vlm_serving import (
    SCHEMES,
    figure,
    llava_says,
    one_thread,
    picture,
    png,
    server_log,
    serving_vlms,
)
from tests.waiting import eventually
from triton_sam.client.vlm_client import AsyncTritonVLMClient, TritonVLMClient
from triton_sam.errors import InternalError, NotFound, Unavailable
from triton_sam.serving import RunningServer

pytestmark = [pytest.mark.triton, pytest.mark.part("faults"), pytest.mark.torch]
#: Room for one of the models of these tests, and not for two: shapes takes 32 MB.
ROOM_FOR_ONE = "32600000"


@pytest.fixture(scope="module")
def llava(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vlm_checkpoints import make_llava

    return make_llava(tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def scenes() -> list[tuple[bytes, str, str]]:
    """(image, question, answer of the network without a server)."""
    import torch
    from training.shapes import evaluate
    from training.shapes.scenes import draw
    from transformers import LlavaForConditionalGeneration, LlavaProcessor

    from triton_sam.models.vlm_catalog import get_vlm
    from triton_sam.models.vlm_weights import checkpoint_folder

    folder = checkpoint_folder(get_vlm("vlm:shapes"), "")
    network = LlavaForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    cases = evaluate.held_out(10)
    with one_thread():
        said = evaluate.answers(network, LlavaProcessor.from_pretrained(folder), cases)
    return [(png(draw(scene)), question.text, text) for (scene, question), text in zip(cases, said, strict=True)]


def test_a_hundred_first_questions_load_once_and_nobody_asking_unloads(
    embedded_server: None, scenes: list[tuple[bytes, str, str]], tmp_path: Path
) -> None:
    async def ask_all(running: RunningServer) -> list[str]:
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(AsyncTritonVLMClient(running.urls[scheme], retries=0))
                for scheme in SCHEMES
            ]
            cases = (scenes * 10)[:100]
            asked = [clients[at % 2].infer("shapes", image, text) for at, (image, text, _) in enumerate(cases)]
            return await asyncio.gather(*asked)

    with serving_vlms(tmp_path, {"vlm:shapes": None}, vlm_idle_seconds="1") as running:
        assert asyncio.run(ask_all(running)) == [right for _, _, right in scenes] * 10
        assert figure(running, "shapes", "loads") == 1
        assert server_log(running).count("shapes: loading from") == 1
        eventually(lambda: figure(running, "shapes", "unloads") == 1, "unloading")
        assert "shapes: unloaded (idle for" in server_log(running)
        image, text, right = scenes[0]
        with TritonVLMClient(running.urls["HTTP"]) as client:
            assert client.infer("shapes", image, text) == right
        assert figure(running, "shapes", "loads") == 2


def test_two_that_do_not_fit_together_take_turns(
    embedded_server: None, scenes: list[tuple[bytes, str, str]], llava: Path, tmp_path: Path
) -> None:
    image, text, right = scenes[0]
    right_llava = llava_says(llava)(picture(1), QUESTION, 8)
    models = {"vlm:shapes": None, "vlm:llava": llava}
    with (
        serving_vlms(tmp_path, models, vlm_memory_bytes=ROOM_FOR_ONE) as running,
        TritonVLMClient(running.urls["gRPC"]) as client,
    ):
        for turn in (1, 2):
            assert client.infer("shapes", image, text) == right
            assert client.infer("llava", png(picture(1)), QUESTION, max_new_tokens=8) == right_llava
            assert figure(running, "shapes", "unloads") == turn
        assert [figure(running, name, "loads") for name in ("shapes", "llava")] == [2, 2]
        assert "unloaded (another model needs the memory)" in server_log(running)


def test_what_cannot_be_loaded_says_why_and_the_others_serve_on(
    embedded_server: None, scenes: list[tuple[bytes, str, str]], llava: Path, tmp_path: Path
) -> None:
    """No room, a damaged checkpoint, one that is gone; and a wait that is too short for loading anything."""
    from tests.vlm_checkpoints import make_kosmos2, make_moondream2

    models = {"vlm:shapes": None, "vlm:llava": llava}
    models["vlm:kosmos2"] = make_kosmos2(tmp_path / "kosmos2")
    models["vlm:moondream2"] = make_moondream2(tmp_path / "moondream2")
    settings = {"vlm_memory_bytes": ROOM_FOR_ONE, "vlm_when_full": "refuse", "vlm_wait_seconds": "0.5"}
    image, text, right = scenes[0]
    with (
        serving_vlms(tmp_path, models, **settings) as running,
        TritonVLMClient(running.urls["HTTP"], retries=0) as client,
    ):
        weights = tmp_path / "kosmos2" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:5000])
        shutil.rmtree(tmp_path / "moondream2")
        with told_quickly(), pytest.raises(Unavailable, match=r"shapes is loading, \d+ s so far: try again"):
            client.infer("shapes", image, text)

        def told(model: str) -> str:
            """The answer, or the error's class and words; asked again while it loads."""
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                begun = time.monotonic()
                try:
                    return client.infer(model, image, text)
                except (Unavailable, InternalError, NotFound) as error:
                    assert time.monotonic() - begun < TOLD_WITHIN
                    if "is loading" not in str(error):
                        return f"{type(error).__name__}: {error}"
            pytest.fail(f"{model} loads for ever")

        assert told("shapes") == right
        refused = told("llava")
        assert refused.startswith("Unavailable: llava needs 1 MB on cpu and 0 MB are free"), refused
        assert "(loaded: shapes): set TRITON_SAM_VLM_WHEN_FULL=evict" in refused
        damaged, gone = told("kosmos2"), told("moondream2")
        assert "model.safetensors is damaged: download the checkpoint again" in damaged
        assert "moondream2" in gone
        assert "\n" not in damaged + gone
        answer = httpx.post(**chat(running, text="x"), timeout=30, trust_env=False)
        assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (503, "unavailable")
        assert told("shapes") == right, "the others serve on"

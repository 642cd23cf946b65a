"""Clients that are never closed clean up by themselves and say nothing; closed ones refuse to be used."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.unit.client.memory_server import PICTURE as MEMORY_PICTURE
from tests.unit.client.memory_server import MemoryServer
from tests.unit.client.test_through_service import PICTURE, service
from tests.unit.fake_server import FakeAsyncTransport, FakeTransport
from tests.waiting import eventually
from triton_sam import SAM2TritonClient, SpeculativeSAM2Client, TritonVLMClient
from triton_sam.errors import InvalidInput

SEGMENTS = "client = SAM2TritonClient(URL); client.set_image(IMAGE); client.segment([[1, 1]])"
HOVERS = """
async def hover():
    client = SpeculativeSAM2Client(URL, latest_wins=True)
    client.set_image(IMAGE)
    assert await client.predict_async([[1, 1]], [1]) is not None
    return client
kept = asyncio.run(hover())
"""
FORGETS = HOVERS.replace("kept = ", "") + "import gc; gc.collect()"
ASKS = "assert TritonVLMClient(URL).infer('talker', IMAGE, 'What?') == 'a cat.'"
KEEPS = "client = TritonVLMClient(URL); client.infer('talker', IMAGE, 'What?')"


@pytest.mark.parametrize(
    "code", [SEGMENTS, HOVERS, FORGETS, ASKS, KEEPS], ids=["blocking", "hover", "gc", "vlm", "kept"]
)
def test_a_program_that_closes_nothing_ends_in_silence(code: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    picture.write_bytes(PICTURE)
    head = "import asyncio\nfrom triton_sam import SAM2TritonClient, SpeculativeSAM2Client, TritonVLMClient\n"
    with service(MemoryServer()) as url:
        script = f"{head}URL, IMAGE = {url!r}, {str(picture)!r}\n{code}\nprint('done')\n"
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120, check=False
        )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")


def io_threads() -> int:
    return sum(thread.name == "triton-sam-io" for thread in threading.enumerate())


def test_a_forgotten_client_ends_its_thread() -> None:
    before = io_threads()
    transport = FakeAsyncTransport()
    client = SpeculativeSAM2Client(transport=FakeTransport(), async_transport=transport)
    assert io_threads() == before + 1
    del client
    gc.collect()
    eventually(lambda: io_threads() == before, "the end of the thread")
    assert transport.closed


def test_a_closed_blocking_client() -> None:
    client = SAM2TritonClient(transport=MemoryServer())
    client.set_image(MEMORY_PICTURE)
    client.close()
    client.close()
    for use in (lambda: client.predict([[1, 1]]), lambda: client.segment([[1, 1]]), lambda: client.set_image(b"x")):
        with pytest.raises(InvalidInput, match="the client is closed: make a new one"):
            use()
    assert not client.is_ready()


def test_a_closed_asyncio_client() -> None:
    async def run() -> None:
        client = SpeculativeSAM2Client(transport=FakeTransport(), async_transport=FakeAsyncTransport())
        client.set_image(MEMORY_PICTURE)
        await client.image_ready()
        await client.aclose()
        for use in (client.predict_async([[1, 1]]), client.segment_async([[1, 1]])):
            with pytest.raises(InvalidInput, match="the client is closed: make a new one"):
                await use
        with pytest.raises(InvalidInput, match="the client is closed"):
            client.set_image(MEMORY_PICTURE)

    asyncio.run(run())


def test_a_closed_client_of_language_models() -> None:
    client = TritonVLMClient("127.0.0.1:1")
    client.close()
    for use in (lambda: client.infer("llava", PICTURE, "?"), lambda: next(iter(client.stream("llava", PICTURE, "?")))):
        with pytest.raises(InvalidInput, match="the client is closed: make a new one"):
            use()


def test_text_for_methods_that_have_none() -> None:
    sentence = "predict takes points, boxes and masks: a text goes to segment, which finds all instances"

    async def hover() -> None:
        async with SpeculativeSAM2Client(transport=FakeTransport(), async_transport=FakeAsyncTransport()) as client:
            await client.predict_async([[1, 1]], [1], text="a cat")

    with SAM2TritonClient(transport=MemoryServer()) as client:
        for use in (lambda: client.predict(text="a cat"), lambda: asyncio.run(hover())):
            with pytest.raises(InvalidInput) as caught:
                use()
            assert str(caught.value) == sentence
    with TritonVLMClient("127.0.0.1:1") as vlm, pytest.raises(InvalidInput, match="'text' is not an option: give max_"):
        vlm.infer("llava", PICTURE, "?", text="a cat")

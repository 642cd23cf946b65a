"""Processes that read videos: each caller has one at a time, and nobody waits for ever."""

from __future__ import annotations

import asyncio

import pytest

from triton_sam.errors import QueueFull
from triton_sam.service import shared_limits
from triton_sam.service.videos import turns
from triton_sam.service.videos.turns import Turns


async def settled() -> None:
    """Everything has gone as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_one_caller_does_not_keep_others_out() -> None:
    async def story() -> None:
        line, ended, working = Turns("read", 2), asyncio.Event(), []

        async def work(caller: str) -> None:
            async with line.of(caller):
                working.append(caller)
                await ended.wait()

        tasks = [asyncio.create_task(work(caller)) for caller in ("mine", "mine", "mine", "others")]
        await settled()
        assert working == ["mine", "others"]
        ended.set()
        await asyncio.gather(*tasks)
        assert sorted(working) == ["mine", "mine", "mine", "others"]

    asyncio.run(story())


def test_they_are_counted_over_all_processes() -> None:
    assert {"videos read", "videos exported"} <= set(shared_limits.COUNTS)


@pytest.mark.parametrize("second", ["mine", "others"])
def test_a_turn_that_does_not_come(monkeypatch: pytest.MonkeyPatch, second: str) -> None:
    monkeypatch.setattr(turns, "PATIENCE_SECONDS", 0.02)

    async def story() -> None:
        line = Turns("exported", 1)
        async with line.of("mine"):
            with pytest.raises(QueueFull, match="too many videos are being exported"):
                async with line.of(second):
                    pass
        async with line.of(second):
            pass

    asyncio.run(story())

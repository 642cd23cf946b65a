from __future__ import annotations

import asyncio

import pytest

from tests.unit.service.helpers import SEGMENTERS, SPEC
from triton_sam.errors import NotFound, SetupError, Unavailable
from triton_sam.models.specs import ModelSpec
from triton_sam.service import served_models
from triton_sam.service.served_models import EncoderPrecisions, ServedSegmenter, ServedSegmenters, choose


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        (None, "sam2"),  # the first that bears its family's name
        ("sam2", "sam2"),
        ("sam3", "sam3"),
        ("sam2.1_large", "sam2.1_large"),
        ("sam2.1:large", "sam2.1_large"),
        (SPEC.id, "sam2"),
        (SPEC.variant_name, "sam2"),
        ("sam3:full", "sam3"),
        ("sam3:tracker", "sam3"),
        ("sam3_full", "sam3"),
        ("sam3_tracker", "sam3"),
    ],
)
def test_every_name_of_a_model(wanted: str | None, name: str) -> None:
    assert choose(SEGMENTERS, wanted) == ServedSegmenter(name, SEGMENTERS[name])


def test_a_family_without_a_default_means_its_first() -> None:
    only = {"sam2.1_large": SEGMENTERS["sam2.1_large"]}
    assert choose(only, "sam2").name == "sam2.1_large"
    assert choose(only, None).name == "sam2.1_large"


def test_a_model_that_does_not_load_is_not_the_default() -> None:
    assert choose(SEGMENTERS, None).name == "sam2"
    assert choose(SEGMENTERS, None, {"sam2"}).name == "sam3"
    assert choose(SEGMENTERS, "sam2", {"sam2"}).name == "sam2", "a request that names it gets the reason"
    assert choose(SEGMENTERS, None, set(SEGMENTERS)).name == "sam2"
    known = ServedSegmenters(lambda: SEGMENTERS, lambda: {"sam2", "sam3"})
    assert asyncio.run(known.find(None)).name == "sam2.1_large"


def test_what_is_not_served() -> None:
    with pytest.raises(NotFound, match=r"'sam1'.*sam2\.1_large, sam2, sam3"):
        choose(SEGMENTERS, "sam1")
    with pytest.raises(NotFound, match="triton-sam setup"):
        choose({}, None)


def test_the_repository_is_not_read_for_every_click(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(served_models.time, "monotonic", lambda: now)
    asked = []

    async def run() -> None:
        nonlocal now
        known = ServedSegmenters(lambda: asked.append(1) or SEGMENTERS)  # type: ignore[func-returns-value]
        for _ in range(5):
            await known.find(None)
        assert len(asked) == 1
        now += 2
        await known.find(None)
        while len(asked) < 2:  # behind the back of the one who asked
            await asyncio.sleep(0)

    asyncio.run(run())


def test_a_repository_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr(served_models.time, "monotonic", lambda: now)
    asked = 0
    broken = True

    def ask() -> dict[str, ModelSpec]:
        nonlocal asked
        asked += 1
        if broken:
            raise SetupError("gone")
        return SEGMENTERS

    async def run() -> None:
        nonlocal now, broken
        known = ServedSegmenters(ask)
        for _ in range(3):
            with pytest.raises(SetupError, match="gone"):
                await known.all()
        assert asked == 1  # as rarely as if it had been read
        broken, now = False, now + 2
        assert await known.all() == SEGMENTERS
        broken, now = True, now + 2
        assert await known.all() == SEGMENTERS
        while caplog.text.count("cannot be read") < 2:  # the loop's clock stands still: no other wait is possible
            await asyncio.sleep(0)
        assert await known.all() == SEGMENTERS

    asyncio.run(run())
    assert "never retrieved" not in caplog.text


def test_each_segmenter_tells_its_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refreshed after a while; the last known value stays while a model does not respond."""
    monkeypatch.setattr(served_models, "_FRESH_SECONDS", 60.0)
    reported = {"sam2": "8-bit", "sam3": "float32"}
    asked: list[str] = []

    async def ask(name: str) -> dict[str, object]:
        asked.append(name)
        if name not in reported:
            raise Unavailable("not now")
        return {"encoder": reported[name]}

    async def look() -> None:
        encoders = EncoderPrecisions(ask)
        assert await encoders.of(["sam2", "sam3", "sam1"]) == {"sam2": "8-bit", "sam3": "float32", "sam1": None}
        assert await encoders.of(["sam2"]) == {"sam2": "8-bit"}
        assert asked == ["sam2", "sam3", "sam1"]
        monkeypatch.setattr(served_models, "_FRESH_SECONDS", 0.0)
        encoders = EncoderPrecisions(ask)
        await encoders.of(["sam2"])
        reported["sam2"] = "float32"  # another version was loaded
        assert await encoders.of(["sam2"]) == {"sam2": "float32"}
        del reported["sam2"]
        assert await encoders.of(["sam2"]) == {"sam2": "float32"}

    asyncio.run(look())


def test_a_segmenter_that_hangs_does_not_hold_up_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_models, "_DESCRIBE_SECONDS", 0.01)

    async def ask(name: str) -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    assert asyncio.run(EncoderPrecisions(ask).of(["sam2"])) == {"sam2": None}

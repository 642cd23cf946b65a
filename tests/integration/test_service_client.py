"""The clients through the service and through Triton, on one real server: equal results, and the same sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from triton_sam import SAM2TritonClient
from triton_sam.errors import InvalidInput, NotFound, TritonSamError, Unsupported
from triton_sam.models.specs import ModelSpec
from triton_sam.serving import RunningServer

pytestmark = pytest.mark.triton
WAYS = ("HTTP", "gRPC", "service")
SPOON = {"points": [[365, 290]], "labels": [1]}
SEVERAL = [{"points": [[365, 290]]}, {"box": [174, 18, 408, 208]}, {"points": [[20, 20], [300, 200]], "labels": [1, 0]}]


@pytest.fixture(scope="module")
def clients(server: RunningServer, photographs: Path) -> Iterator[dict[str, SAM2TritonClient]]:
    """The same image in a client for each way."""
    found = {way: SAM2TritonClient(server.urls[way]) for way in WAYS}
    assert len({client.set_image(photographs / "coffee.png") for client in found.values()}) == 1
    yield found
    for client in found.values():
        client.close()


def without_times(result: Any) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "timings_ms"}


@pytest.mark.parametrize("form", ["bits", "png", "rle", "polygon"])
@pytest.mark.parametrize(
    "click",
    [SPOON, {**SPOON, "multimask": True}, {"objects": SEVERAL}, {**SPOON, "clean": 500}],
    ids=["point", "three", "objects", "clean"],
)
def test_equal_masks(clients: dict[str, SAM2TritonClient], click: dict[str, Any], form: str) -> None:
    expected, *others = [client.segment(**click, format=form) for client in clients.values()]
    for found in others:
        assert without_times(found.result) == without_times(expected.result)
        if form != "polygon":
            assert np.array_equal(found.masks.masks, expected.masks.masks)
        assert set(found.timings_ms) == set(expected.timings_ms)


def test_equal_logits(clients: dict[str, SAM2TritonClient]) -> None:
    expected, *others = [client.predict([[365, 290]], [1], multimask_output=True) for client in clients.values()]
    for found in others:
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ({"points": [[5000, 1]]}, InvalidInput),
        ({"box": [0, 0, 9000, 5]}, InvalidInput),
        ({"points": [[1, 1]], "format": "gif"}, InvalidInput),
        ({"objects": [{"points": [[1, 1]]}] * 5000}, TritonSamError),
        ({"mask_input": np.zeros((1, 64, 64), np.float32)}, InvalidInput),
    ],
    ids=["outside", "box", "format", "many", "mask"],
)
def test_equal_refusals(
    clients: dict[str, SAM2TritonClient], prompt: dict[str, Any], kind: type[TritonSamError]
) -> None:
    told = []
    for client in clients.values():
        with pytest.raises(kind) as caught:
            client.segment(**prompt)
        told.append((type(caught.value), str(caught.value)))
    assert len({one for one, _ in told}) == 1, told
    assert told[0] == told[1]


@pytest.mark.parametrize("way", WAYS)
def test_models_that_are_not_served_are_told_what_is(server: RunningServer, way: str, photographs: Path) -> None:
    for name in ("flamingo", "sam3:full"):
        with SAM2TritonClient(server.urls[way], name) as client:
            assert not client.is_ready()
            with pytest.raises(NotFound, match=f"this server does not serve {name}, but sam2: choose one of these"):
                client.set_image(photographs / "coffee.png")


@pytest.mark.parametrize("way", WAYS)
def test_ids_and_readiness(server: RunningServer, spec: ModelSpec, way: str, photographs: Path) -> None:
    with SAM2TritonClient(server.urls[way], spec.id) as client:
        assert client.is_ready()
        client.set_image(photographs / "coffee.png")
        assert client.segment(**SPOON).result["model"] == spec.id  # type: ignore[arg-type]


def test_text_is_not_a_prompt_of_this_model(clients: dict[str, SAM2TritonClient]) -> None:
    for client in clients.values():
        with pytest.raises((InvalidInput, Unsupported), match="takes points, boxes and masks, not text or exemplars"):
            client.segment(text="a spoon")

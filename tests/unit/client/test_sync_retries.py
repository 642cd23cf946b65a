"""Names, retries and expired images of the blocking client, against a server in memory."""

from __future__ import annotations

import pytest

from tests.unit.client.memory_server import PICTURE, Forgetful, MemoryServer
from triton_sam.client.core import ImageFile
from triton_sam.client.link import ModelLink
from triton_sam.client.sync_client import SAM2TritonClient
from triton_sam.errors import (
    Cancelled,
    DeadlineExceeded,
    ImageExpired,
    InternalError,
    InvalidInput,
    NotFound,
    ServerUnreachable,
    TritonSamError,
    Unavailable,
)

# ids


@pytest.mark.parametrize(
    ("models", "asked", "name"),
    [
        ({"sam2": "sam2:tiny"}, "sam2:tiny", "sam2"),
        ({"sam2": "sam2.1:large"}, "sam2.1:large", "sam2"),
        ({"sam2": "sam2:tiny", "sam2.1_large": "sam2.1:large"}, "sam2.1:large", "sam2.1_large"),
        ({"sam2_tiny": "sam2:tiny", "sam2": "sam2.1:large"}, "sam2:tiny", "sam2_tiny"),
        ({"sam2_tiny": None, "sam2": "sam2:tiny"}, "sam2:tiny", "sam2"),
    ],
)
def test_an_id_is_looked_for_once(
    models: dict[str, str | None], asked: str, name: str, transport: MemoryServer
) -> None:
    transport.models = models
    client = SAM2TritonClient(model_type=asked, transport=transport)
    assert transport.asked == [], "not before it is needed"
    client.set_image(PICTURE)
    client.predict([[1, 2]])
    client.set_image(PICTURE)
    assert client.is_ready()
    assert {call.model for call in transport.calls} == {name}
    assert len(transport.asked) == len(set(transport.asked)) <= 2
    assert client.model_type == asked


@pytest.mark.parametrize("models", [{}, {"sam2": "sam2:tiny"}, {"sam2": None}, {"sam3": "sam2.1:large"}])
def test_an_id_that_is_not_served(models: dict[str, str | None], transport: MemoryServer) -> None:
    transport.models = models
    client = SAM2TritonClient(model_type="sam2.1:large", transport=transport)
    served = f", but {', '.join(models)}" if models else ""
    with pytest.raises(NotFound, match=r"run `triton-sam setup sam2\.1:large` and `triton-sam serve`") as caught:
        client.set_image(PICTURE)
    assert str(caught.value).startswith(f"this server does not serve sam2.1:large{served}: choose ")
    assert transport.calls == []
    assert not client.is_ready()


def test_a_name_is_not_looked_for(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    with_image.predict([[1, 2]])
    assert transport.asked == []


def test_looking_for_an_id_is_tried_again_and_its_errors_are_told(transport: MemoryServer, pauses: list[float]) -> None:
    transport.failures = [Unavailable("busy")]
    client = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    client.set_image(PICTURE)
    assert len(pauses) == 1
    transport.failures = [ServerUnreachable("nobody there")]
    other = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    with pytest.raises(ServerUnreachable):
        other.set_image(PICTURE)
    transport.failures = [ServerUnreachable("nobody there")]
    assert not other.is_ready()


def test_an_id_never_gets_another_models_masks(transport: MemoryServer) -> None:
    """The server's default changes while the client works: sam2 is another model from then on."""
    client = SAM2TritonClient(model_type="sam2:tiny", transport=transport)
    client.set_image(PICTURE)
    transport.models = {"sam2": "sam2.1:large", "sam2_tiny": "sam2:tiny"}
    transport.images.clear()
    client.predict([[1, 2]])
    assert transport.calls[-1].model == "sam2_tiny"
    transport.models = {"sam2": "sam2.1:large", "sam2_tiny": "sam2.1:small"}
    with pytest.raises(NotFound, match="does not serve sam2:tiny"):
        client.set_image(PICTURE)


@pytest.mark.parametrize("served", ["sam3", "sam3_full", "sam3_tracker"])
@pytest.mark.parametrize(("wanted", "told"), [("sam3:tracker", "sam3:full"), ("sam3:full", "sam3:tracker")])
def test_an_old_id_and_its_new_one_are_one_model(
    wanted: str, told: str, served: str, transport: MemoryServer, pauses: list[float]
) -> None:
    """Whichever of the client and the server is the older."""
    transport.models = {served: told}
    client = SAM2TritonClient(model_type=wanted, transport=transport)
    client.set_image(PICTURE)
    client.predict([[1, 2]])
    assert {call.model for call in transport.calls} == {served}
    transport.models = {served: "sam3:shapes"}
    with pytest.raises(NotFound, match=f"does not serve {wanted}"):
        client.set_image(PICTURE)


# retries


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_busy_server_is_asked_again_and_then_not(retries: int, transport: MemoryServer, pauses: list[float]) -> None:
    transport.failures = [Unavailable(f"busy {index}") for index in range(9)]
    client = SAM2TritonClient(transport=transport, retries=retries)
    with pytest.raises(Unavailable, match=f"busy {retries}"):
        client.set_image(PICTURE)
    assert len(transport.calls) == retries + 1
    assert len(pauses) == retries
    assert all(0 <= pause <= 2.0 for pause in pauses)


def test_a_retry_that_succeeds(transport: MemoryServer, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport)
    client.set_image(PICTURE)
    transport.failures = [Unavailable("busy"), Unavailable("busy")]
    masks, _ = client.predict([[5, 6]], [1])
    assert float(masks[0, 0, 0, 0]) == 5.0
    assert transport.kinds == ["encode", "click", "click", "click"]
    assert len(pauses) == 2


def test_each_request_has_its_own_retries(transport: MemoryServer, pauses: list[float]) -> None:
    client = SAM2TritonClient(transport=transport, retries=1)
    client.set_image(PICTURE)
    for _ in range(3):
        transport.failures = [Unavailable("busy")]
        client.predict([[5, 6]], [1])
    assert len(pauses) == 3


@pytest.mark.parametrize("kind", [ServerUnreachable, InvalidInput, DeadlineExceeded, InternalError, Cancelled])
def test_other_errors_are_raised_at_once(
    kind: type[TritonSamError], transport: MemoryServer, pauses: list[float]
) -> None:
    transport.failures = [kind("no")]
    with pytest.raises(kind, match="no"):
        SAM2TritonClient(transport=transport).set_image(PICTURE)
    assert len(transport.calls) == 1
    assert pauses == []


# an embedding that has expired


def test_an_expired_image_is_sent_again_once(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    transport.images.clear()
    masks, _ = with_image.predict([[5, 6]], [1])
    assert float(masks[0, 0, 0, 0]) == 5.0
    assert transport.kinds == ["click", "encode", "click"]
    assert transport.calls[1].inputs["image"].tobytes() == PICTURE
    assert transport.calls[0].inputs["prompt_json"][0] == transport.calls[2].inputs["prompt_json"][0]
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click", "click"]


def test_a_second_expiry_is_raised(
    with_image: SAM2TritonClient, transport: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "images", Forgetful())
    with pytest.raises(ImageExpired):
        with_image.segment([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click"]


def test_a_newer_version_gives_the_image_another_key(with_image: SAM2TritonClient, transport: MemoryServer) -> None:
    """The key of the version before is unknown to it, and stays so."""
    transport.version = "2"
    transport.images.clear()
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click"]
    assert transport.calls[2].inputs["image_key"][0].endswith(b"-sam2-2")
    with_image.predict([[5, 6]], [1])
    assert transport.kinds == ["click", "encode", "click", "click"]


def test_an_image_that_was_set_meanwhile_is_not_replaced_by_the_expired_one(
    with_image: SAM2TritonClient, transport: MemoryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ModelLink.encode

    def encode(self: ModelLink, image: ImageFile) -> str:
        monkeypatch.setattr(ModelLink, "encode", original)
        with_image.set_image(b"the next image")  # as another thread would
        return original(self, image)

    transport.images.clear()
    monkeypatch.setattr(ModelLink, "encode", encode)
    with_image.predict([[5, 6]], [1])
    with_image.predict([[5, 6]], [1])
    used = [transport.images[call.inputs["image_key"][0].decode()] for call in transport.calls[-2:]]
    assert used == [PICTURE, b"the next image"]

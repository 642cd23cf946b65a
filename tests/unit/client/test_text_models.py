from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.client.memory_server import MemoryServer
from tests.unit.service.helpers import SEGMENTERS, Fake, listening
from tests.unit.service.test_concepts import REAL
from triton_sam.client.text_models import TAKES_TEXT, model_for_text
from triton_sam.errors import NotFound, ServerUnreachable
from triton_sam.repository.configs import CONCEPTS
from triton_sam.server.host import free_port


class Server(MemoryServer):
    """Models by name: their id, and whether they take text."""

    def __init__(self, **models: tuple[str, bool]) -> None:
        super().__init__()
        self.configs = models

    def served(self) -> list[str]:
        return list(self.configs)

    def parameters(self, model: str) -> Mapping[str, str]:
        if model not in self.configs:
            raise NotFound("Request for unknown model")
        model_id, hears = self.configs[model]
        return {"model_id": model_id} | ({TAKES_TEXT: "32"} if hears else {})


@pytest.mark.parametrize(
    ("models", "name"),
    [
        ({"sam2": ("sam2:tiny", False), "sam3": ("sam3:full", True)}, "sam3"),
        ({"sam2": ("sam2:tiny", True)}, "sam2"),
        ({"a": ("somebody:else", True), "b": ("sam2:tiny", True)}, "a"),
    ],
)
def test_the_one_that_takes_text(models: dict[str, tuple[str, bool]], name: str) -> None:
    server = Server(**models)
    assert model_for_text("host:1", transport=server) == name
    assert server.closed == 1


@pytest.mark.parametrize("models", [{"sam2": ("sam2:tiny", False)}, {}])
def test_none_does(models: dict[str, tuple[str, bool]]) -> None:
    with pytest.raises(NotFound, match=r"no model at host:1 takes text: set one up there with `triton-sam setup sam3`"):
        model_for_text("host:1", transport=Server(**models))


@pytest.mark.parametrize("scheme", ["", "grpc://"])
def test_no_server_at_all(scheme: str) -> None:
    with pytest.raises(ServerUnreachable, match="triton-sam serve"):
        model_for_text(f"{scheme}127.0.0.1:{free_port()}")


def test_through_the_service() -> None:
    with listening(Fake(segmenters={**SEGMENTERS, "sam3": REAL})) as port:
        assert model_for_text(f"http://127.0.0.1:{port}") == "sam3"
    with listening(Fake()) as port, pytest.raises(NotFound, match=r"it serves sam2\.1_large, sam2, sam3, and no model"):
        model_for_text(f"http://127.0.0.1:{port}")


def test_the_name_in_the_config() -> None:
    assert TAKES_TEXT == CONCEPTS
